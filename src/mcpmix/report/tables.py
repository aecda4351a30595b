"""The table of a run over seeds, and the scores of images and groups.

A seed's value is its mean over the test images, or a metric of their pooled pixels. The spread is that of
these values: how much a result depends on initial weights and the order of samples, not how much images
differ. With one seed no spread is given.

A table is the content of table.json: plain values, None where undefined.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.files import read_json
from mcpmix.metrics.contract import higher_is_better
from mcpmix.metrics.statistics import aggregate
from mcpmix.report.arms import label_of, reference_of

K = TypeVar("K", bound=Hashable)
Run = tuple[str, int]
"""Arm and seed."""
Summary = Mapping[str, Mapping[str, float]]
"""Metric to its mean over images, and the numbers of defined (n) and undefined values."""
GroupValues = Mapping[str, Mapping[int, float]]
"""Test group to seed to a value."""
Groups = Mapping[str, GroupValues]
"""Arm to test group to seed to a value."""

HEADLINE = "dsc"
"""The metric that sentences, groups and cases are about."""
_NONE = "–"
_ADVICE = "Delete its folder to evaluate again."


class Column(TypedDict):
    """A metric in a table; the unit is "%" or "px"."""

    key: str
    label: str
    unit: str
    higher_is_better: bool


class Spread(TypedDict):
    """Mean and sample standard deviation of the defined values of several seeds, and how many these are."""

    mean: float | None
    sd: float | None
    count: int


class Cell(TypedDict):
    """One metric of one arm."""

    values: dict[str, float | None]  # of each seed
    spread: Spread
    scored: int  # defined values over images and seeds
    undefined: int  # the others
    best: bool  # no other arm has a better mean
    delta: Spread | None  # difference from the reference with the same seed; None for the reference itself


class Row(TypedDict):
    """One arm."""

    arm: str
    label: str
    metrics: dict[str, Cell]


class Table(TypedDict):
    """All arms of a run; `reference` is the arm to which deltas refer, None if there is only one arm."""

    images: int
    seeds: list[int]
    reference: str | None
    columns: list[Column]
    rows: list[Row]


# --- the table of all arms ----------------------------------------------------------------------------------


def column(key: str, label: str) -> Column:
    """The column of a metric of `metrics.score`, or of a pooled one."""
    better = higher_is_better(key)
    unit = "%" if better else "px"  # only of distances is less better, and only they are in pixels
    return {"key": key, "label": label, "unit": unit, "higher_is_better": better}


REGION = [
    column("miou", "mIoU"),
    column("pixel_accuracy", "PA"),
    column("recall", "Recall"),
    column("precision", "Precision"),
    column("dsc", "DSC"),
]


def all_columns(tolerances: Sequence[float]) -> list[list[Column]]:
    """The columns of three tables: region metrics and pooled ones, boundaries, their precision and recall."""
    pooled = [column("pooled_miou", "pooled mIoU"), column("pooled_dsc", "pooled DSC")]
    f1 = [column(f"bf1_{t:g}", f"BF1@{t:g}") for t in tolerances]
    sides = [column(f"{key}_{t:g}", f"{key.upper()}@{t:g}") for t in tolerances for key in ("bp", "br")]
    boundary = [column("hd95", "HD95"), column("assd", "ASSD"), *f1, column("biou", "BIoU")]
    return [[*REGION, *pooled], boundary, sides]


def read_summary(path: Path, name: str = "") -> Summary:
    """Read a summary.json; a pooled value becomes an entry of its own, `pooled_` before its name.

    With a name, the summary of this class in the classes.json of an evaluation.
    """
    summary = {}
    try:
        content = read_json(path)
        for key, entry in (content[name] if name else content).items():
            summary[key] = {value: float(entry[value]) for value in ("mean", "n", "undefined")}
            if "pooled" in entry:
                value, images = float(entry["pooled"]), summary[key]["n"] + summary[key]["undefined"]
                undefined = images if math.isnan(value) else 0
                summary[f"pooled_{key}"] = {"mean": value, "n": images - undefined, "undefined": undefined}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a summary of scores ({error!r}). {_ADVICE}") from error
    return summary


def build_table(summaries: Mapping[Run, Summary], columns: Sequence[Column]) -> Table:
    """Put the summaries of all evaluations together; arms keep the order in which they come first.

    Raises a DataError if there are none, some lack a metric, or they are over different numbers of images.
    """
    if not summaries:
        raise DataError("No evaluation found for the table: run `mcpmix evaluate` first.")
    problems = [
        f"{arm} seed {seed}: no {metric['key']} in its summary"
        for (arm, seed), summary in summaries.items()
        for metric in columns
        if metric["key"] not in summary
    ]
    images = {}
    if not problems:
        first = columns[0]["key"]
        images = {run: int(found[first]["n"] + found[first]["undefined"]) for run, found in summaries.items()}
        if len(set(images.values())) > 1:
            problems = [f"{arm} seed {seed}: {count} images" for (arm, seed), count in images.items()]
    if problems:
        headline = "The evaluations do not fit into one table. Delete their folders to evaluate again:"
        raise DataError(bullet_list(headline, problems))

    arms = list(dict.fromkeys(arm for arm, _ in summaries))
    reference = reference_of(arms)
    rows: list[Row] = [{"arm": arm, "label": label_of(arm), "metrics": {}} for arm in arms]
    for metric in columns:
        key = metric["key"]
        values: dict[str, dict[int, float]] = {arm: {} for arm in arms}
        for arm, seed in sorted(summaries):
            values[arm][seed] = summaries[arm, seed][key]["mean"]
        spreads = {arm: spread_of(found.values()) for arm, found in values.items()}
        means = [spread["mean"] for spread in spreads.values() if spread["mean"] is not None]
        best = (max if metric["higher_is_better"] else min)(means, default=None)
        if len(set(means)) < 2:  # where all arms are alike, none is the best
            best = None
        for row in rows:
            arm = row["arm"]
            entries = [summaries[arm, seed][key] for seed in values[arm]]
            row["metrics"][key] = {
                "values": {str(seed): _plain(value) for seed, value in values[arm].items()},
                "spread": spreads[arm],
                "scored": sum(int(entry["n"]) for entry in entries),
                "undefined": sum(int(entry["undefined"]) for entry in entries),
                "best": len(arms) > 1 and best is not None and spreads[arm]["mean"] == best,
                "delta": None
                if reference is None or arm == reference
                else spread_of(differences(values[arm], values[reference]).values()),
            }
    return {
        "images": next(iter(images.values())),
        "seeds": sorted({seed for _, seed in summaries}),
        "reference": reference,
        "columns": list(columns),
        "rows": rows,
    }


def spread_of(values: Iterable[float]) -> Spread:
    """Summarise the values that are defined."""
    found = aggregate(list(values))
    return {"mean": _plain(found.mean), "sd": _plain(found.sd), "count": found.n}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the table as text --------------------------------------------------------------------------------------


def spread_text(spread: Spread | None, signed: bool = False) -> str:
    """`71.25 ± 1.10`, without the second part where there is no spread; `–` if undefined."""
    if spread is None or spread["mean"] is None:
        return _NONE
    number = f"{spread['mean']:+z.2f}" if signed else f"{spread['mean']:.2f}"
    return (number if spread["sd"] is None else f"{number} ± {spread['sd']:.2f}").replace("-", "−")


def _heading(metric: Column) -> str:
    """Label with unit and an arrow towards better values."""
    return f"{metric['label']} {'↑' if metric['higher_is_better'] else '↓'} ({metric['unit']})"


def to_rows(table: Table, columns: Sequence[Column]) -> list[list[str]]:
    """Heading and rows as texts, for a terminal; the best mean of a column carries a star.

    The last column is the difference from the reference in the last metric, if there is a reference.
    """
    last = columns[-1]
    lines = [["arm", *map(_heading, columns), f"Δ {last['label']}"]]
    for row in table["rows"]:
        cells = [row["metrics"][metric["key"]] for metric in columns]
        texts = [spread_text(cell["spread"]) + (" *" if cell["best"] else "") for cell in cells]
        lines.append([row["label"], *texts, spread_text(cells[-1]["delta"], signed=True)])
    return lines if table["reference"] is not None else [line[:-1] for line in lines]


def to_markdown(table: Table, columns: Sequence[Column]) -> str:
    """Two Markdown tables: the values with the best in bold, and the differences from the reference."""
    headings, rule = [*map(_heading, columns)], ["---", *["---:"] * len(columns)]
    values, deltas = [["", *headings], rule], []
    if table["reference"] is not None:
        deltas = [[f"minus {label_of(table['reference'])}", *headings], rule]
    for row in table["rows"]:
        cells = [row["metrics"][metric["key"]] for metric in columns]
        texts = [spread_text(cell["spread"]) for cell in cells]
        bold = [f"**{text}**" if cell["best"] else text for cell, text in zip(cells, texts, strict=True)]
        values.append([row["label"], *bold])
        if table["reference"] not in (None, row["arm"]):
            deltas.append([row["label"], *(spread_text(cell["delta"], signed=True) for cell in cells)])
    parts = ["".join(f"| {' | '.join(line)} |\n" for line in part) for part in (values, deltas) if part]
    return "\n".join(parts)


# --- scores of images and groups ----------------------------------------------------------------------------


def read_metrics(path: Path, metrics: Sequence[str], ids: Collection[str]) -> dict[str, list[float]]:
    """Read some metrics of a scores.csv, which must be about these images: id to values; NaN: undefined."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            heading = next(rows)
            name, *places = (heading.index(key) for key in ("id", *metrics))
            scores = {row[name]: [float(row[place]) for place in places] for row in rows}
    except (OSError, ValueError, TypeError, IndexError, StopIteration, csv.Error) as error:
        raise DataError(
            f"{path} is not a table of scores with the columns id and {', '.join(metrics)} ({error!r}). "
            f"{_ADVICE}"
        ) from error
    if odd := sorted(scores.keys() ^ set(ids)):
        raise DataError(
            f"{path} has scores of {len(scores)} images, expected those of the {len(ids)} test images; "
            f"{len(odd)} differ, {odd[0]} among them. {_ADVICE}"
        )
    return scores


def by_group(scores: Mapping[Run, Mapping[str, float]], group_of: Mapping[str, str]) -> Groups:
    """Arm to group to seed to the mean of the defined scores of the group's images, NaN if there is none."""
    result: dict[str, dict[str, dict[int, float]]] = {}
    for (arm, seed), by_image in sorted(scores.items()):
        values: dict[str, list[float]] = defaultdict(list)
        for name, value in by_image.items():
            values[group_of[name]].append(value)
        for group, found in values.items():
            result.setdefault(arm, {}).setdefault(group, {})[seed] = aggregate(found).mean
    return result


def seed_means(groups: GroupValues) -> dict[str, float]:
    """Group to the mean over its seeds; NaN if none is defined."""
    return {group: aggregate(list(values.values())).mean for group, values in groups.items()}


def group_gains(groups: Groups, arm: str, reference: str) -> dict[str, dict[int, float]]:
    """Group to seed to the difference between an arm and the reference, for the seeds that both have."""
    anchor = groups[reference]
    return {name: differences(values, anchor[name]) for name, values in groups[arm].items() if name in anchor}


def differences(first: Mapping[K, float], second: Mapping[K, float]) -> dict[K, float]:
    """First minus second, for the keys that both have."""
    return {name: value - second[name] for name, value in first.items() if name in second}
