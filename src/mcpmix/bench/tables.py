"""The tables of the paper from finished cells: means over seeds, ranks, and paired comparisons.

A block of a table is one data set with so many labels. Its rows are methods, with their network and generator
where there are several. Ours is compared with each rival on the same images with the same seeds. The paper's
own figures stand beside where it has them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np

from mcpmix.bench.cells import Outcome
from mcpmix.bench.grid import TableSpec
from mcpmix.bench.state import REAL, Cell
from mcpmix.config import Config
from mcpmix.data.index import Record
from mcpmix.metrics.statistics import Difference, aggregate, holm, paired_differences
from mcpmix.report.arms import method_of
from mcpmix.report.tables import REGION, Column, Spread, column, spread_of, spread_text
from mcpmix.segmenter.evaluate import TESTED

_REFERENCES = ("full-sup", "full-sup-strong")  # the floor of every table
_OURS = ("mcpmix", "mcpmix-rla")
_MIXES = (
    *("cutmix", "mixup", "gridmix", "smoothmix", "puzzlemix"),
    *("augmix", "pixmix", "diffusemix", "hsmix"),
)
_GENERATIVE = ("append", "controlpolypnet", "gensrrfi", "satsynth")


_DETAILS = ("low", "high", "group_low", "group_high", "p")  # of a difference, in the CSV file

Figures = Mapping[str, Sequence[float | None]]
"""Metric to mean and standard deviation, None where the paper gives none."""
Mark = Literal["", "best", "second", "theirs", "head"]


@dataclass(frozen=True)
class Kind:
    """What a table of the paper shows; arms that a grid does not have are left out."""

    title: str
    arms: Sequence[str]
    boundary: bool = False
    networks: bool = False  # all of them, not the first of the grid alone


KINDS = {
    "mixing": Kind("Comparison with mixing-based methods", (*_REFERENCES, *_MIXES, *_OURS)),
    "boundary": Kind("Boundary sensitivity", (*_REFERENCES, *_MIXES, *_OURS), boundary=True),
    "generative": Kind("Comparison with generative augmentation", (*_REFERENCES, *_GENERATIVE, *_OURS)),
    "ablation": Kind("Ablation", (*_REFERENCES, *_OURS)),
    "backbones": Kind("Networks with and without ours", (*_REFERENCES, "mcpmix-rla"), networks=True),
    "schedules": Kind(
        "Schedules of the share", (*_REFERENCES, "mcpmix-stepwise", "mcpmix-cosine", "mcpmix-rla")
    ),
}


@dataclass(frozen=True)
class Rival:
    """Ours minus a rival in one metric, and p after Holm's correction over all rivals in this metric."""

    difference: Difference
    p_holm: float


@dataclass
class Line:
    """One row: a method with its network and generator, and each metric over its seeds."""

    label: str
    method: str
    segmenter: str
    generator: str
    seeds: list[int]
    spreads: dict[str, Spread]
    ranks: dict[str, int] = field(default_factory=dict)  # 1 and 2 for best and second
    published: Figures = field(default_factory=dict)
    rivals: dict[str, dict[str, Rival]] = field(default_factory=dict)  # of ours: label to metric


@dataclass(frozen=True)
class Block:
    """The rows of one data set with so many labels."""

    dataset: str
    labels: str
    images: int
    groups: int
    lines: list[Line]
    notes: list[str]


@dataclass(frozen=True)
class BenchTable:
    """A whole table."""

    name: str
    title: str
    columns: list[Column]
    blocks: list[Block]


def plain(value: Any) -> Any:  # noqa: ANN401
    """A JSON value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- building -----------------------------------------------------------------------------------------------


def build_table(found: Outcome, spec: TableSpec) -> BenchTable:
    """The table of a specification, of the cells that are finished."""
    kind, plan, part = KINDS[spec.kind], found.plan, spec.part
    arms, networks = spec.arms or tuple(kind.arms), spec.segmenters
    if networks is None and not kind.networks:
        networks = (next(iter(plan.grid.segmenters)),)
    wanted = spec.model_copy(update={"arms": arms, "segmenters": networks})
    evaluation = "test" if part in TESTED else part
    cells = [cell for cell in found.selected(wanted) if evaluation in found.cells[cell].evaluations]
    # By place in the grid, then in the order in which the arms are wanted.
    places = list(dict.fromkeys((cell.dataset, cell.labels, cell.segmenter) for cell in plan.cells))
    cells.sort(key=lambda c: (places.index((c.dataset, c.labels, c.segmenter)), arms.index(c.method)))

    columns = list(REGION)
    if kind.boundary and cells:
        columns = [column("hd95", "HD95"), column("assd", "ASSD")]
        for t in plan.cells[cells[0]].config.evaluation.tolerances:
            for key, label in (("bp", "B-P"), ("br", "B-R"), ("bf1", "B-F1")):
                columns.append(column(f"{key}_{t:g}", f"{label}@{t:g}"))
        columns.append(column("biou", "BIoU"))
    members: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        members.setdefault((cell.dataset, cell.labels), []).append(cell)
    blocks = []
    for block in members.values():
        images = found.tested(block[0], part)
        if images:  # there may be no new images of known groups
            blocks.append(_build_block(found, spec, columns, block, images))
    return BenchTable(spec.stem, spec.title or kind.title, columns, blocks)


def _build_block(
    found: Outcome,
    spec: TableSpec,
    columns: Sequence[Column],
    cells: Sequence[Cell],
    images: Sequence[Record],
) -> Block:
    keys = [item["key"] for item in columns]
    rows: dict[tuple[str, str, str], dict[int, np.ndarray]] = {}
    marking: set[tuple[str, str, str]] = set()  # rows that find something of a lesion with any seed
    for cell in cells:
        row = (cell.segmenter, cell.generator, cell.method)
        scores = found.scores(cell, images, [*keys, "recall"], spec.part)
        rows.setdefault(row, {})[cell.seed] = scores[:, :-1]
        if np.nan_to_num(scores[:, -1]).any():
            marking.add(row)
    networks = {segmenter for segmenter, _, _ in rows}
    generators = {generator for _, generator, _ in rows} - {REAL}
    config = found.plan.cells[cells[0]].config
    source = spec.published or config.data.source
    theirs = published_table(spec.kind, source)
    lines = {}
    for (segmenter, generator, method), seeds in rows.items():
        label = found.plan.grid.label_of(method)
        label = f"{segmenter}: {label}" if len(networks) > 1 else label
        label = f"{label} ({generator})" if len(generators) > 1 and generator != REAL else label
        means = [[aggregate(list(values)).mean for values in scores.T] for scores in seeds.values()]
        spreads = {key: spread_of(values) for key, *values in zip(keys, *means, strict=True)}
        line = Line(label, method, segmenter, generator, sorted(seeds), spreads)
        line.published = theirs.get(f"{segmenter}/{method}", theirs.get(method, {}))
        lines[segmenter, generator, method] = line

    for item in columns:
        key = item["key"]
        means_of = {row: line.spreads[key]["mean"] for row, line in lines.items() if row in marking}
        defined = {mean for mean in means_of.values() if mean is not None}
        best = sorted(defined, reverse=item["higher_is_better"])[:2] if len(lines) > 1 else []
        for row, line in lines.items():
            mean = means_of.get(row)
            line.ranks[key] = best.index(mean) + 1 if mean in best else 0
    groups = [image.group for image in images]
    ours = method_of([method for _, _, method in rows])
    for (segmenter, generator, method), line in lines.items():
        if method == ours:
            line.rivals = _rivals(rows, (segmenter, generator, method), lines, keys, groups)
    labels, notes = cells[0].labels, []
    if silent := [line.label for row, line in lines.items() if row not in marking]:
        notes.append(
            f"Learnt nothing, and not ranked: {', '.join(silent)}; no lesion was found in any image. "
            "Train longer (train.epochs), or start from pretrained weights (segmenter.weights)."
        )
    if any(line.published for line in lines.values()):
        notes.append(what_differs(config, labels, source, [len(line.seeds) for line in lines.values()]))
    return Block(cells[0].dataset, labels, len(images), len(set(groups)), list(lines.values()), notes)


def _rivals(
    rows: Mapping[tuple[str, str, str], Mapping[int, np.ndarray]],
    ours: tuple[str, str, str],
    lines: Mapping[tuple[str, str, str], Line],
    metrics: Sequence[str],
    groups: Sequence[str],
) -> dict[str, dict[str, Rival]]:
    """Ours against each rival on the same network: the mean over the seeds that both have of the gain."""
    gains = {}
    for rival, scores in rows.items():
        shared = sorted(rows[ours].keys() & scores.keys())
        if rival != ours and rival[0] == ours[0] and rival[1] in (REAL, ours[1]) and shared:
            gain = np.stack([rows[ours][seed] - scores[seed] for seed in shared])
            gains[lines[rival].label] = gain.mean(0)
    found = compare(list(gains.values()), groups)
    return {name: dict(zip(metrics, row, strict=True)) for name, row in zip(gains, found, strict=True)}


def compare(gains: Sequence[np.ndarray], groups: Sequence[str]) -> list[list[Rival]]:
    """What (n, K) gains over each of several rivals on n images say about K metrics.

    Args:
        groups: n names, of the group that each image belongs to.
    """
    if not gains:
        return []
    found = iter(paired_differences(np.concatenate(gains, axis=1), groups))
    table = [[next(found) for _ in gain.T] for gain in gains]
    corrected = [holm([item.p for item in rivals]) for rivals in zip(*table, strict=True)]
    return [
        [Rival(item, p) for item, p in zip(row, p_values, strict=True)]
        for row, p_values in zip(table, zip(*corrected, strict=True), strict=True)
    ]


# --- the figures of the paper -------------------------------------------------------------------------------


@cache
def published() -> dict[str, Any]:
    """All tables, and the setting in which they were measured."""
    text = (resources.files("mcpmix.bench") / "published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def published_table(kind: str, dataset: str) -> Mapping[str, Figures]:
    """The rows of a table on a data set: arm, or network/arm, to figures; empty if the paper has none."""
    rows: Mapping[str, Figures] = published()["tables"].get(kind, {}).get(dataset, {})
    return rows


def what_differs(config: Config, labels: str, dataset: str, seeds: Sequence[int]) -> str:
    """A note about the published figures: whose they are, and how our setting differs from theirs."""
    paper = published()
    ours = {
        "data": config.data.source,
        "labelled images": labels,
        "pixels a side": config.data.size,
        "network": config.segmenter.name,
        "epochs": config.train.epochs,
        "images a step": config.train.batch_size,
        "seeds": " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
    }
    theirs = {
        "data": dataset,
        "labelled images": "all",
        "pixels a side": paper["size"],
        "network": paper["segmenter"],
        "epochs": paper["epochs"],
        "images a step": paper["batch_size"],
        "seeds": str(paper["seeds"]),
    }
    listed = "; ".join(
        f"{key}: {ours[key]}, theirs {theirs[key]}" for key in ours if ours[key] != theirs[key]
    )
    return (
        f"† As published for {paper['sets'].get(dataset, dataset)}, not measured by us. The paper names no "
        f"split, code or weights. What differs besides: {listed or 'nothing that the paper names'}."
    )


# --- to read ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A cell of a sheet: its text, and what it is."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True)
class Sheet:
    """A table to read. A row has the length of the heading, or one item, which heads the rows below."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[Item]]
    notes: Sequence[str] = ()


def to_sheets(table: BenchTable) -> list[Sheet]:
    """The table itself, and ours against the best rival of each metric."""
    if not table.blocks:
        return [Sheet(table.title, ["method"], [], ["No cell of this table is finished."])]
    heading = ["method", *(f"{c['label']} {'↑' if c['higher_is_better'] else '↓'}" for c in table.columns)]
    rows: list[Sequence[Item]] = []
    rival_rows: list[Sequence[Item]] = []
    notes = [
        "Mean ± standard deviation over seeds of the means over test images; bold: best, underlined: second. "
        "Region and boundary metrics in percent, distances in pixels."
    ]
    for block in table.blocks:
        labels = "" if block.labels == "all" else f", {block.labels.replace('pc', ' %')} labelled"
        title = f"{block.dataset}{labels}: {block.images} images of {block.groups} groups"
        rows.append([Item(title, "head")])
        for line in block.lines:
            rows += _line_rows(line, table.columns)
            if line.rivals:
                rival_rows.append([Item(f"{line.label}, {title}", "head")])
                for item in table.columns:
                    name, rival = best_rival(block, line, item)
                    gain = rival.difference
                    texts = [
                        item["label"],
                        name,
                        spread_text(spread_of([gain.mean]), signed=True),
                        interval_text(gain.low, gain.high),
                        interval_text(gain.group_low, gain.group_high),
                        p_text(gain.p),
                        p_text(rival.p_holm),
                    ]
                    rival_rows.append([Item(text) for text in texts])
        notes += block.notes
    sheets = [Sheet(table.title, heading, rows, list(dict.fromkeys(notes)))]
    if rival_rows:
        heading = ["metric", "best rival", "difference", "95 % over images", "over groups", "p", "p, Holm"]
        note = (
            "Ours minus the rival on the same images with the same seeds, averaged over seeds. Intervals by "
            "bootstrap over images and over whole groups; p by Wilcoxon's signed-rank test over images, "
            "corrected by Holm over all rivals. They say nothing about the choice of seeds."
        )
        sheets.append(Sheet(f"{table.title}: ours against the best rival", heading, rival_rows, [note]))
    return sheets


def _line_rows(line: Line, columns: Sequence[Column]) -> list[list[Item]]:
    """Our row and, where the paper has one, theirs below it."""
    count = len(line.seeds)
    ours = [Item(f"{line.label}, {count} seed{'s' if count > 1 else ''}")]
    theirs = [Item(f"{line.label}, published†", "theirs")]
    for item in columns:
        key = item["key"]
        ours.append(Item(spread_text(line.spreads[key]), ("", "best", "second")[line.ranks[key]]))
        mean, sd = (*line.published.get(key, ()), None, None)[:2]
        text = "" if mean is None else spread_text({"mean": mean, "sd": sd, "count": 0})
        theirs.append(Item(text, "theirs" if text else ""))
    return [ours, theirs] if line.published else [ours]


def best_rival(block: Block, line: Line, item: Column) -> tuple[str, Rival]:
    """The rival of a row with the best mean in a metric."""
    lines = {other.label: other for other in block.lines}
    sign = 1 if item["higher_is_better"] else -1

    def quality(name: str) -> float:
        mean = lines[name].spreads[item["key"]]["mean"]
        return -math.inf if mean is None else sign * mean

    name = max(line.rivals, key=quality)
    return name, line.rivals[name][item["key"]]


def interval_text(low: float, high: float) -> str:
    """`0.31 to 2.10`; `–` where undefined."""
    if math.isnan(low) or math.isnan(high):
        return "–"
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def p_text(p: float) -> str:
    """A p-value; `–` where undefined."""
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def to_rows(table: BenchTable) -> list[dict[str, object]]:
    """One row for each metric of each method, for a CSV file; differences are ours minus this method."""
    rows: list[dict[str, object]] = []
    for block in table.blocks:
        ours = [line for line in block.lines if line.rivals]
        for line in block.lines:
            for item in table.columns:
                key = item["key"]
                mean, sd = (*line.published.get(key, []), None, None)[:2]
                rival = next((o.rivals[line.label][key] for o in ours if line.label in o.rivals), None)
                rows.append(
                    {
                        "dataset": block.dataset,
                        "labels": block.labels,
                        "generator": line.generator,
                        "segmenter": line.segmenter,
                        "method": line.method,
                        "metric": key,
                        "seeds": len(line.seeds),
                        "mean": line.spreads[key]["mean"],
                        "sd": line.spreads[key]["sd"],
                        "rank": line.ranks[key] or None,
                        "published_mean": mean,
                        "published_sd": sd,
                        "ours_minus": rival.difference.mean if rival else None,
                        **{name: getattr(rival.difference, name) if rival else None for name in _DETAILS},
                        "p_holm": rival.p_holm if rival else None,
                    }
                )
    return rows
