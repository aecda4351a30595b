"""What figures say in sentences: comparisons, notes below tables, and networks that have learnt nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mcpmix.report.arms import label_of
from mcpmix.report.tables import HEADLINE, Column, Row, Run, Table

_NOTHING = 5.0  # percent; below this a recall, or a DSC, is that of a network that finds nothing
_EVERYTHING, _HALF_WRONG = 90.0, 50.0  # percent: recall above, and pixel accuracy below
_CHANGES = (
    "Look at the masks (`mcpmix check CONFIG --html audit.html`), then train longer (train.epochs) or with "
    "another train.learning_rate"
)
CLASS_MEAN = (
    "Each figure of an image is the mean over the classes {} that are in its truth or in its prediction; "
    "each class against all else is in a table of its own."
)
_FEW_SEEDS = 10  # below this a standard deviation over seeds is itself a rough estimate


# --- what must be said before any comparison ----------------------------------------------------------------


def alarms(table: Table, logs: Mapping[Run, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Sentences about arms whose figures mean nothing, each with what to change; empty if all have learnt.

    Args:
        logs: the rows of log.jsonl of each training.
    """
    found = []
    if nothing_learnt(table):
        count = len(table["rows"])
        arms = f"none of the {count} arms has" if count > 1 else "the network has not"
        found.append(f"Nothing was learnt: {arms} reached a test DSC of {_NOTHING:g} %. {_CHANGES}.")
    for row in table["rows"]:
        recall, right = _mean(row, "recall"), _mean(row, "pixel_accuracy")
        if recall is not None and recall < _NOTHING:
            found.append(
                f"{row['label']} marks next to nothing: {recall:.1f} % of the lesion pixels of the test "
                f"images. {_CHANGES}."
            )
        elif recall is not None and right is not None and recall > _EVERYTHING and right < _HALF_WRONG:
            found.append(
                f"{row['label']} marks nearly everything: {recall:.0f} % of the lesion pixels, and only "
                f"{right:.0f} % of all pixels are right. Are the masks inverted? {_CHANGES}."
            )
    flat = []
    for (arm, seed), rows in logs.items():
        scores = [row["validation"][HEADLINE] for row in rows if "validation" in row]
        if len(scores) > 1 and max(scores[1:]) <= scores[0]:
            flat.append(f"{label_of(arm)}, seed {seed}")
    if flat:
        found.append(
            "Validation never rose after its first value, so training added nothing there: "
            f"{'; '.join(flat)}. Lower train.learning_rate, and look at the validation images."
        )
    return found


def nothing_learnt(table: Table) -> bool:
    """Whether no arm has learnt anything, so that arms cannot be compared."""
    return all((_mean(row, HEADLINE) or 0) < _NOTHING for row in table["rows"])


def _mean(row: Row, metric: str) -> float | None:
    return row["metrics"][metric]["spread"]["mean"]


# --- one wording for a method that is ahead and for one that is behind --------------------------------------


def comparison(table: Table, arm: str, groups: Mapping[str, float], word: str) -> str:
    """How the DSC of an arm compares with that of the table's reference, which is another arm.

    Args:
        groups: group to difference between arm and reference.
        word: plural of what these groups are, e.g. "test patients".
    """
    cells = {row["arm"]: row["metrics"][HEADLINE] for row in table["rows"]}
    reference, delta = table["reference"], cells[arm]["delta"]
    assert reference is not None
    assert delta is not None
    ours, theirs, mean = label_of(arm), label_of(reference), delta["mean"]
    if mean is None:
        return f"{ours} and {theirs} cannot be compared: no seed has a defined DSC for both."
    size = f"{abs(mean):.2f} points" if delta["sd"] is None else f"{abs(mean):.2f} ± {delta['sd']:.2f} points"
    if mean == 0:
        verdict = f"level with {theirs} in DSC, {size} apart"
    else:
        verdict = f"{size} of DSC {'ahead of' if mean > 0 else 'behind'} {theirs}"
    basis = "difference of one seed; no spread can be given"
    if delta["count"] > 1:
        basis = f"mean ± standard deviation of the difference over {delta['count']} seeds"
    anchor = cells[reference]["values"]
    seeds = [
        value - other
        for seed, value in cells[arm]["values"].items()
        if value is not None and (other := anchor.get(seed)) is not None
    ]
    gains = [gain for gain in groups.values() if not math.isnan(gain)]
    ahead = f"{sum(gain > 0 for gain in seeds)} of {len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    return (
        f"{ours} is {verdict} ({basis}): ahead in {ahead} "
        f"and in {sum(gain > 0 for gain in gains)} of {len(gains)} {word}."
    )


def caution(seeds: int) -> str:
    """What a reader should keep in mind about so many seeds; empty if they are enough."""
    if seeds == 1:
        return "One seed says nothing about chance: train with more before you trust a difference."
    if seeds < _FEW_SEEDS:
        return (
            f"{seeds} seeds are few: the standard deviation is itself a rough estimate, and a difference of "
            "its size may be chance."
        )
    return ""


# --- notes below a table ----------------------------------------------------------------------------------


def basis(table: Table, images: str) -> str:
    """What the figures of a table are means of; `images` are, for example, "test images of 3 patients"."""
    seeds = len(table["seeds"])
    spread = f", then mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", for one seed"
    if table["images"] == 1:
        images = images.replace("images", "image", 1)
    parts = [
        f"Each figure is the mean over {table['images']} {images}{spread}.",
        "Pooled figures are those of the pixels of all these images together, where a large lesion counts "
        "for more than a small one.",
        "The checkpoint was chosen on the validation part.",
    ]
    if table["reference"] is not None:
        parts.append(
            "The best of each column is marked. Signed figures are differences from "
            f"{label_of(table['reference'])} with the same seed."
        )
    return " ".join(parts)


def undefined_note(table: Table, columns: Sequence[Column]) -> str:
    """How many values the means of these columns leave out, and where."""
    notes = []
    for row in table["rows"]:
        cells = [(column["label"], row["metrics"][column["key"]]) for column in columns]
        parts = [
            f"{label} {cell['undefined']} of {cell['scored'] + cell['undefined']}"
            for label, cell in cells
            if cell["undefined"]
        ]
        if parts:
            notes.append(f"{row['label']}: {', '.join(parts)}")
    if not notes:
        total = table["images"] * len(table["seeds"])
        return f"No value was undefined ({total} for each arm and metric)."
    return f"Undefined values (truth and prediction both empty) are in no mean: {'; '.join(notes)}."


def step_note(steps: Mapping[str, Sequence[int]], batch_size: int) -> str:
    """Whether all arms were trained for the same number of optimiser steps; `steps` has those of each arm."""
    counts = {count for arm in steps.values() for count in arm}
    if len(counts) == 1:
        return (
            f"Every training ran for the same {counts.pop()} optimiser steps with {batch_size} real images "
            "each; arms with pairs add as many mixed ones to each step."
        )
    listed = "; ".join(
        f"{label_of(arm)}: {', '.join(map(str, sorted(set(values))))}" for arm, values in steps.items()
    )
    return (
        f"The trainings differ in their numbers of optimiser steps, so the comparison is not fair. {listed}."
    )
