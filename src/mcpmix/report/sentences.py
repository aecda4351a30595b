"""Sentences about results. One wording for a method that is ahead and for one that is behind."""

import math
from collections.abc import Mapping, Sequence

from mcpmix.report.arms import label_of
from mcpmix.report.tables import Column, Table

_FEW_SEEDS = 10  # below this a standard deviation over seeds is itself a rough estimate
_UNITS = {"%": "points", "px": "pixels"}


def comparison(table: Table, column: Column, arm: str, groups: Mapping[str, float], group_word: str) -> str:
    """How an arm compares with the reference in one metric.

    Args:
        table: of the run; it has a reference, which is not `arm`.
        column: the metric.
        arm: the arm to speak about.
        groups: test group to difference between arm and reference.
        group_word: plural of what a group is, e.g. "patients".
    """
    assert table.reference is not None
    delta = table.row(arm).cells[column.key].delta
    assert delta is not None
    names = f"{label_of(arm)} and {label_of(table.reference)}"
    if math.isnan(delta.mean):
        return f"{names} cannot be compared: no seed has a defined {column.label} for both."
    gain = delta.mean if column.higher_is_better else -delta.mean
    spread = "" if delta.sd is None else f" ± {delta.sd:.2f}"
    size = f"{abs(delta.mean):.2f}{spread} {_UNITS[column.unit]}"
    other = label_of(table.reference)
    if gain == 0:
        verdict = f"level with {other} in {column.label}, {size} apart"
    else:
        verdict = f"{size} of {column.label} {'ahead of' if gain > 0 else 'behind'} {other}"
    return (
        f"{label_of(arm)} is {verdict} ({_basis(delta.count)}): "
        f"ahead in {_ahead(_seed_gains(table, column, arm))} "
        f"and in {_ahead_groups(groups, column, group_word)}."
    )


def caution(seeds: int) -> str:
    """What a reader should keep in mind about so many seeds; empty if they are enough."""
    if seeds == 1:
        return "One seed says nothing about chance: train with more before believing a difference."
    if seeds < _FEW_SEEDS:
        return (
            f"{seeds} seeds are few: the standard deviation is itself a rough estimate, and a difference of "
            "its size may be chance."
        )
    return ""


def basis(table: Table, groups: int, word: str) -> str:
    """What the figures of a table are means of.

    Args:
        table: of the run.
        groups: number of test groups.
        word: plural of what a group is.
    """
    seeds = len(table.seeds)
    spread = f", then mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", for one seed"
    parts = [
        f"Each figure is the mean over {table.images} test images of {groups} {word}{spread}.",
        "The checkpoint was chosen on the validation part.",
    ]
    if table.reference is not None:
        parts.append(
            "The best of each column is marked. Signed figures are differences to "
            f"{label_of(table.reference)} with the same seed."
        )
    return " ".join(parts)


def undefined_note(table: Table) -> str:
    """How many values the means leave out, and where."""
    total = table.images * len(table.seeds)
    notes = [
        f"{row.label}: {', '.join(parts)}"
        for row in table.rows
        if (
            parts := [
                f"{column.label} {cell.undefined} of {cell.scored + cell.undefined}"
                for column in table.columns
                if (cell := row.cells[column.key]).undefined
            ]
        )
    ]
    if not notes:
        return f"No value was undefined ({total} for each arm and metric)."
    return f"Undefined values (truth and prediction both empty) are in no mean: {'; '.join(notes)}."


def step_note(steps: Mapping[str, Sequence[int]], batch_size: int) -> str:
    """Whether all arms were trained for the same number of optimiser steps.

    Args:
        steps: arm to the steps of its trainings.
        batch_size: real images per step.
    """
    counts = sorted({count for arm in steps.values() for count in arm})
    if len(counts) == 1:
        return (
            f"Every training ran for the same {counts[0]} optimiser steps with {batch_size} real images "
            "each; arms with pairs add as many mixed ones to each step."
        )
    listed = "; ".join(
        f"{label_of(arm)}: {', '.join(map(str, sorted(set(values))))}" for arm, values in steps.items()
    )
    return f"The trainings differ in their optimiser steps, so the comparison is not fair. {listed}."


def _basis(seeds: int) -> str:
    if seeds == 1:
        return "difference of one seed; no spread can be given"
    return f"mean ± standard deviation of the difference over {seeds} seeds"


def _seed_gains(table: Table, column: Column, arm: str) -> list[float]:
    assert table.reference is not None
    anchor = table.row(table.reference).cells[column.key].values
    values = table.row(arm).cells[column.key].values
    sign = 1 if column.higher_is_better else -1
    return [sign * (value - anchor[seed]) for seed, value in values.items() if seed in anchor]


def _ahead(gains: Sequence[float]) -> str:
    defined = [gain for gain in gains if not math.isnan(gain)]
    return f"{sum(gain > 0 for gain in defined)} of {len(defined)} {'seed' if len(defined) == 1 else 'seeds'}"


def _ahead_groups(groups: Mapping[str, float], column: Column, word: str) -> str:
    sign = 1 if column.higher_is_better else -1
    defined = [sign * value for value in groups.values() if not math.isnan(value)]
    return f"{sum(gain > 0 for gain in defined)} of {len(defined)} test {word}"
