"""The tables of the paper from finished cells: means over seeds, ranks, and paired comparisons.

A block of a table is one data set with so many labels. Its rows are methods, with their network and generator
where there are several. Ours is compared with each rival on the same images with the same seeds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mcpmix.bench.cells import Scored
from mcpmix.bench.grid import Grid, Selection, TableSpec
from mcpmix.bench.plan import Plan
from mcpmix.bench.published import Figures, published_table, what_differs
from mcpmix.bench.sheets import Item, Sheet
from mcpmix.bench.state import REAL, Cell
from mcpmix.config import Config
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.data.splits import KNOWN
from mcpmix.metrics.statistics import Difference, aggregate, holm, paired_differences
from mcpmix.report.arms import label_of, method_of
from mcpmix.report.tables import REGION, Column, Spread, column, read_metrics, spread_of, spread_text
from mcpmix.segmenter.evaluate import TESTED

_REFERENCES = ("full-sup", "full-sup-strong")  # the floor of every table
_OURS = ("mcpmix", "mcpmix-rla")
_MIXES = (
    *("cutmix", "mixup", "gridmix", "smoothmix", "puzzlemix"),
    *("augmix", "pixmix", "diffusemix", "hsmix"),
)
_GENERATIVE = ("append", "controlpolypnet", "gensrrfi", "satsynth")


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

    def as_json(self) -> dict[str, Any]:
        """As `plain` values."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def plain(value: Any) -> Any:  # noqa: ANN401
    """A JSON value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- what images say ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """The images of a test part, with their groups."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]


def tested_images(data: Artifact, part: str) -> Images:
    """The images of a part; everything of a transfer set is tested."""
    records = DatasetIndex.read(data).part(KNOWN if part == KNOWN else "test")
    return Images(tuple(r.id for r in records), tuple(r.group for r in records))


def scores_of(scored: Scored, images: Images, part: str, metrics: Sequence[str]) -> np.ndarray:
    """(n, K) scores of a cell on the images of a part, NaN where undefined."""
    known = part in TESTED
    evaluation = scored.evaluations["test" if known else part]
    rows = read_metrics(evaluation / f"scores{TESTED[part] if known else ''}.csv", metrics, images.ids)
    return np.array([rows[name] for name in images.ids])


# --- building -----------------------------------------------------------------------------------------------


def columns_of(kind: Kind, config: Config) -> list[Column]:
    """The columns of the paper's table."""
    if not kind.boundary:
        return list(REGION)
    edges = [
        column(f"{key}_{t:g}", f"{label}@{t:g}")
        for t in config.evaluation.tolerances
        for key, label in (("bp", "B-P"), ("br", "B-R"), ("bf1", "B-F1"))
    ]
    return [column("hd95", "HD95"), column("assd", "ASSD"), *edges, column("biou", "BIoU")]


def build_table(
    plan: Plan, spec: TableSpec, cells: Mapping[Cell, Scored], data: Mapping[str, Artifact]
) -> BenchTable:
    """The table of a specification, of the cells that are finished.

    Args:
        data: the tested data set of each input group by name, and of each transfer set.
    """
    kind, name = KINDS[spec.kind], spec.name or spec.kind
    grid = plan.grid
    wanted = spec.model_copy(update={"arms": spec.arms or tuple(kind.arms)})
    if spec.segmenters is None and not kind.networks:
        wanted = wanted.model_copy(update={"segmenters": (next(iter(grid.segmenters)),)})
    chosen = [cell for cell in _ordered(plan, wanted) if cell in cells]
    title = spec.title or kind.title
    if not chosen:
        return BenchTable(name, title, list(REGION), [])
    columns = columns_of(kind, plan.cells[chosen[0]].config)
    blocks: dict[tuple[str, str], list[Cell]] = {}
    for cell in chosen:
        blocks.setdefault((cell.dataset, cell.labels), []).append(cell)
    made = []
    for members in blocks.values():
        task = plan.cells[members[0]]
        part = spec.part
        images = tested_images(data[part if part in grid.transfer else task.group], part)
        if not images.ids:  # no new images of known groups
            continue
        values = {cell: scores_of(cells[cell], images, part, [c["key"] for c in columns]) for cell in members}
        made.append(_build_block(grid, spec, columns, values, images, task.config))
    return BenchTable(name, title, columns, made)


def _ordered(plan: Plan, wanted: Selection) -> list[Cell]:
    """Cells of a selection: by place in the grid, then in the order in which the arms are wanted."""
    arms = list(wanted.arms or ())
    places = list(dict.fromkeys((cell.dataset, cell.labels, cell.segmenter) for cell in plan.cells))

    def key(cell: Cell) -> tuple[int, int]:
        return places.index((cell.dataset, cell.labels, cell.segmenter)), arms.index(cell.method)

    return sorted(plan.selected(wanted), key=key)


def _build_block(
    grid: Grid,
    spec: TableSpec,
    columns: Sequence[Column],
    values: Mapping[Cell, np.ndarray],
    images: Images,
    config: Config,
) -> Block:
    rows: dict[tuple[str, str, str], dict[int, np.ndarray]] = {}
    for cell, found in values.items():
        rows.setdefault((cell.segmenter, cell.generator, cell.method), {})[cell.seed] = found
    several = [len({key[0] for key in rows}) > 1, len({key[1] for key in rows} - {REAL}) > 1]
    lines = {}
    for key, seeds in rows.items():
        means = {seed: [aggregate(list(c)).mean for c in found.T] for seed, found in seeds.items()}
        spreads = {
            item["key"]: spread_of([mean[place] for mean in means.values()])
            for place, item in enumerate(columns)
        }
        lines[key] = Line(_label(grid, key, several), key[2], key[0], key[1], sorted(seeds), spreads)
    _rank(list(lines.values()), columns)
    ours = method_of([key[2] for key in rows])
    for key in rows:
        if key[2] == ours:
            rivals = [k for k in rows if k != key and k[0] == key[0] and k[1] in (REAL, key[1])]
            lines[key].rivals = _compare(rows, key, rivals, lines, columns, images)
    cell = next(iter(values))
    source = spec.published or config.data.source
    theirs = published_table(spec.kind, source)
    for (segmenter, _, method), line in lines.items():
        line.published = theirs.get(f"{segmenter}/{method}", theirs.get(method, {}))
    notes = []
    if any(line.published for line in lines.values()):
        notes = [what_differs(config, cell.labels, source, [len(line.seeds) for line in lines.values()])]
    groups = len(set(images.groups))
    return Block(cell.dataset, cell.labels, len(images.ids), groups, list(lines.values()), notes)


def _label(grid: Grid, key: tuple[str, str, str], several: Sequence[bool]) -> str:
    segmenter, generator, method = key
    label = grid.label_of(method) or label_of(method)
    label = f"{segmenter}: {label}" if several[0] else label
    return f"{label} ({generator})" if several[1] and generator != REAL else label


def _rank(lines: Sequence[Line], columns: Sequence[Column]) -> None:
    for item in columns:
        key = item["key"]
        means = {mean for line in lines if (mean := line.spreads[key]["mean"]) is not None}
        order = sorted(means, reverse=item["higher_is_better"])[:2] if len(lines) > 1 else []
        for line in lines:
            mean = line.spreads[key]["mean"]
            line.ranks[key] = order.index(mean) + 1 if mean in order else 0


def _compare(
    rows: Mapping[tuple[str, str, str], Mapping[int, np.ndarray]],
    ours: tuple[str, str, str],
    rivals: Sequence[tuple[str, str, str]],
    lines: Mapping[tuple[str, str, str], Line],
    columns: Sequence[Column],
    images: Images,
) -> dict[str, dict[str, Rival]]:
    """Ours against each rival: the mean over the seeds that both have of the difference on each image."""
    kept, parts = [], []
    for rival in rivals:
        if shared := sorted(rows[ours].keys() & rows[rival].keys()):
            gains = np.stack([rows[ours][seed] - rows[rival][seed] for seed in shared])
            kept.append(rival)
            parts.append(gains.mean(0))
    if not parts:
        return {}
    found = paired_differences(np.concatenate(parts, axis=1), images.groups)
    table = [found[start : start + len(columns)] for start in range(0, len(found), len(columns))]
    corrected = [holm([row[place].p for row in table]) for place in range(len(columns))]
    return {
        lines[rival].label: {
            item["key"]: Rival(row[place], corrected[place][number]) for place, item in enumerate(columns)
        }
        for number, (rival, row) in enumerate(zip(kept, table, strict=True))
    }


# --- to read ------------------------------------------------------------------------------------------------


def to_sheets(table: BenchTable) -> list[Sheet]:
    """The table itself, and ours against the best rival of each metric."""
    if not table.blocks:
        return [Sheet(table.title, ["method"], [], ["No cell of this table is finished."])]
    heading = ["method", *(f"{c['label']} {'↑' if c['higher_is_better'] else '↓'}" for c in table.columns)]
    rows: list[Sequence[Item]] = []
    notes = [
        "Mean ± standard deviation over seeds of the means over test images; bold: best, underlined: second. "
        "Region and boundary metrics in percent, distances in pixels."
    ]
    for block in table.blocks:
        rows.append([Item(_block_title(block), "head")])
        for line in block.lines:
            cells = [
                Item(spread_text(line.spreads[c["key"]]), ("", "best", "second")[line.ranks[c["key"]]])
                for c in table.columns
            ]
            count = len(line.seeds)
            rows.append([Item(f"{line.label}, {count} seed{'s' if count > 1 else ''}"), *cells])
            if line.published:
                theirs = [_theirs(line.published.get(c["key"])) for c in table.columns]
                rows.append([Item(f"{line.label}, published†", "theirs"), *theirs])
        notes += block.notes
    return [Sheet(table.title, heading, rows, list(dict.fromkeys(notes))), *_rival_sheets(table)]


def _block_title(block: Block) -> str:
    labels = "" if block.labels == "all" else f", {block.labels.replace('pc', ' %')} labelled"
    return f"{block.dataset}{labels}: {block.images} images of {block.groups} groups"


def _theirs(value: Sequence[float | None] | None) -> Item:
    if value is None or value[0] is None:
        return Item("")
    return Item(spread_text({"mean": value[0], "sd": value[1], "count": 0}), "theirs")


def _rival_sheets(table: BenchTable) -> Iterator[Sheet]:
    rows: list[Sequence[Item]] = []
    for block in table.blocks:
        for line in block.lines:
            if line.rivals:
                rows.append([Item(f"{line.label}, {_block_title(block)}", "head")])
                rows += [_rival_row(block, line, c) for c in table.columns]
    if rows:
        heading = ["metric", "best rival", "difference", "95 % over images", "over groups", "p", "p, Holm"]
        note = (
            "Ours minus the rival on the same images with the same seeds, averaged over seeds. Intervals by "
            "bootstrap over images and over whole groups; p by Wilcoxon's signed-rank test over images, "
            "corrected by Holm over all rivals. They say nothing about the choice of seeds."
        )
        yield Sheet(f"{table.title}: ours against the best rival", heading, rows, [note])


def best_rival(block: Block, line: Line, item: Column) -> tuple[str, Rival]:
    """The rival of a row with the best mean in a metric."""
    lines = {other.label: other for other in block.lines}
    sign = 1 if item["higher_is_better"] else -1

    def quality(name: str) -> float:
        mean = lines[name].spreads[item["key"]]["mean"]
        return -math.inf if mean is None else sign * mean

    name = max(line.rivals, key=quality)
    return name, line.rivals[name][item["key"]]


def _rival_row(block: Block, line: Line, item: Column) -> list[Item]:
    name, rival = best_rival(block, line, item)
    found = rival.difference
    texts = [
        item["label"],
        name,
        spread_text({"mean": None if math.isnan(found.mean) else found.mean, "sd": None, "count": 0}, True),
        interval_text(found.low, found.high),
        interval_text(found.group_low, found.group_high),
        p_text(found.p),
        p_text(rival.p_holm),
    ]
    return [Item(text) for text in texts]


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
                found = rival.difference if rival else None
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
                        "ours_minus": found.mean if found else None,
                        "low": found.low if found else None,
                        "high": found.high if found else None,
                        "group_low": found.group_low if found else None,
                        "group_high": found.group_high if found else None,
                        "p": found.p if found else None,
                        "p_holm": rival.p_holm if rival else None,
                    }
                )
    return rows
