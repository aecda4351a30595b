"""The table of a run: mean and standard deviation over seeds, for each arm and metric.

A seed's value is its mean over the test images. The spread is that of these values: how much a result depends
on initial weights and order of samples, not how much images differ. With one seed there is no spread, and
none is made up.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.metrics.contract import higher_is_better
from mcpmix.metrics.statistics import aggregate
from mcpmix.report.arms import label_of, reference_of

Run = tuple[str, int]
"""Arm and seed."""
Summary = Mapping[str, Mapping[str, float]]
"""Content of a summary.json: metric to mean, sd, n and undefined over images."""

_REGION = (
    ("miou", "mIoU"),
    ("pixel_accuracy", "PA"),
    ("recall", "Recall"),
    ("precision", "Precision"),
    ("dsc", "DSC"),
)
_DISTANCES = (("hd95", "HD95"), ("assd", "ASSD"))
_NONE = "–"


@dataclass(frozen=True)
class Column:
    """A metric in a table.

    Attributes:
        key: as `metrics.score` names it.
        label: its heading.
        unit: "%" or "px".
        higher_is_better: which end is the good one.
    """

    key: str
    label: str
    unit: str
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """Label with unit and an arrow towards better values."""
        return f"{self.label} {'↑' if self.higher_is_better else '↓'} ({self.unit})"


@dataclass(frozen=True)
class Spread:
    """Values of several seeds in brief.

    Attributes:
        mean: their mean; NaN if there is none.
        sd: their sample standard deviation (n - 1); None for fewer than two.
        count: how many there are.
    """

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Summarise the values that are defined."""
        found = aggregate(list(values))
        return cls(found.mean, None if math.isnan(found.sd) else found.sd, found.n)

    def text(self, signed: bool = False) -> str:
        """`71.25 ± 1.10`, without the second part where there is no spread; `–` if undefined."""
        if math.isnan(self.mean):
            return _NONE
        number = f"{self.mean:+.2f}" if signed else f"{self.mean:.2f}"
        return (number if self.sd is None else f"{number} ± {self.sd:.2f}").replace("-", "−")


@dataclass(frozen=True)
class Cell:
    """One metric of one arm.

    Attributes:
        values: seed to mean over images; NaN if undefined on all of them.
        spread: over seeds.
        scored: number of defined values, over images and seeds.
        undefined: number of undefined values, over images and seeds; they are in no mean.
        best: whether no other arm has a better mean.
        delta: over seeds, difference to the reference with the same seed; None for the reference itself.
    """

    values: dict[int, float]
    spread: Spread
    scored: int
    undefined: int
    best: bool = False
    delta: Spread | None = None


@dataclass(frozen=True)
class Row:
    """One arm: its name, its label and a cell for each column."""

    arm: str
    label: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """All arms of a run.

    Attributes:
        columns: in order.
        rows: in the order of the arms.
        seeds: all seeds of the run.
        reference: arm to which deltas refer; None if there is only one arm.
        images: number of test images.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    reference: str | None
    images: int

    def row(self, arm: str) -> Row:
        """The row of an arm."""
        return next(row for row in self.rows if row.arm == arm)

    def select(self, columns: Sequence[Column]) -> Self:
        """The same table with these columns only."""
        return type(self)(tuple(columns), self.rows, self.seeds, self.reference, self.images)


# --- collecting ---------------------------------------------------------------------------------------------


def region_columns() -> tuple[Column, ...]:
    """mIoU, PA, Recall, Precision and DSC."""
    return tuple(Column(key, label, "%", higher_is_better(key)) for key, label in _REGION)


def boundary_columns(tolerances: Sequence[float]) -> tuple[Column, ...]:
    """HD95, ASSD, boundary F1 at each tolerance (pixels), and boundary IoU."""
    distances = [Column(key, label, "px", higher_is_better(key)) for key, label in _DISTANCES]
    shares = [(f"bf1_{tolerance:g}", f"BF1@{tolerance:g}") for tolerance in tolerances] + [("biou", "BIoU")]
    return (*distances, *(Column(key, label, "%", higher_is_better(key)) for key, label in shares))


def read_summary(path: Path) -> Summary:
    """Read a summary.json.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(key): {name: float(value[name]) for name in ("mean", "n", "undefined")}
            for key, value in content.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path} is not a summary of scores ({error!r}). Delete its folder to evaluate again."
        ) from error


def build_table(summaries: Mapping[Run, Summary], columns: Sequence[Column]) -> Table:
    """Put the summaries of all evaluations together.

    Args:
        summaries: one for each arm and seed; arms keep the order in which they come first.
        columns: metrics to show.

    Raises:
        DataError: there are no summaries, some lack a metric, or they are over different numbers of images.
    """
    _refuse_bad(summaries, columns)
    arms = list(dict.fromkeys(arm for arm, _ in summaries))
    reference = reference_of(arms)
    cells = {arm: {c.key: _cell(summaries, arm, c.key) for c in columns} for arm in arms}
    compared = {arm: _compared(cells, arm, reference, columns) for arm in arms}
    first = next(iter(summaries.values()))[columns[0].key]
    return Table(
        columns=tuple(columns),
        rows=tuple(Row(arm, label_of(arm), compared[arm]) for arm in arms),
        seeds=tuple(sorted({seed for _, seed in summaries})),
        reference=reference,
        images=int(first["n"] + first["undefined"]),
    )


def _cell(summaries: Mapping[Run, Summary], arm: str, key: str) -> Cell:
    found = {seed: summary[key] for (name, seed), summary in summaries.items() if name == arm}
    values = {seed: entry["mean"] for seed, entry in sorted(found.items())}
    return Cell(
        values=values,
        spread=Spread.of(values.values()),
        scored=sum(int(entry["n"]) for entry in found.values()),
        undefined=sum(int(entry["undefined"]) for entry in found.values()),
    )


def _compared(
    cells: Mapping[str, Mapping[str, Cell]], arm: str, reference: str | None, columns: Sequence[Column]
) -> dict[str, Cell]:
    """The cells of an arm with their marks and their differences to the reference."""
    compared = {}
    for column in columns:
        cell = cells[arm][column.key]
        means = [row[column.key].spread.mean for row in cells.values()]
        delta = None
        if reference is not None and arm != reference:
            anchor = cells[reference][column.key].values
            delta = Spread.of(value - anchor[seed] for seed, value in cell.values.items() if seed in anchor)
        best = _is_best(cell.spread.mean, means, column.higher_is_better)
        compared[column.key] = Cell(cell.values, cell.spread, cell.scored, cell.undefined, best, delta)
    return compared


def _is_best(mean: float, means: Sequence[float], higher: bool) -> bool:
    """Whether a mean is the best of several; with one arm there is nothing to win."""
    defined = [value for value in means if not math.isnan(value)]
    return len(means) > 1 and bool(defined) and mean == (max(defined) if higher else min(defined))


def _refuse_bad(summaries: Mapping[Run, Summary], columns: Sequence[Column]) -> None:
    if not summaries:
        raise DataError("There is no evaluation to make a table of: run `mcpmix evaluate` first.")
    problems = [
        f"{arm} seed {seed}: no {column.key} in its summary"
        for (arm, seed), summary in summaries.items()
        for column in columns
        if column.key not in summary
    ]
    if not problems:
        counts = {
            run: int(entry["n"] + entry["undefined"])
            for run, summary in summaries.items()
            for entry in [summary[columns[0].key]]
        }
        if len(set(counts.values())) > 1:
            problems = [f"{arm} seed {seed}: {count} images" for (arm, seed), count in counts.items()]
    if problems:
        headline = "The evaluations do not fit into one table. Delete their folders to evaluate again:"
        raise DataError(bullet_list(headline, problems))


# --- showing ------------------------------------------------------------------------------------------------


def to_json(table: Table) -> dict[str, Any]:
    """The table as JSON values; undefined numbers are null."""
    return {
        "images": table.images,
        "seeds": list(table.seeds),
        "reference": table.reference,
        "columns": [asdict(column) for column in table.columns],
        "rows": [
            {
                "arm": row.arm,
                "label": row.label,
                "metrics": {c.key: _plain(asdict(row.cells[c.key])) for c in table.columns},
            }
            for row in table.rows
        ],
    }


def from_json(value: Mapping[str, Any]) -> Table:
    """What `to_json` gave."""
    return Table(
        columns=tuple(Column(**column) for column in value["columns"]),
        rows=tuple(
            Row(row["arm"], row["label"], {key: _read_cell(cell) for key, cell in row["metrics"].items()})
            for row in value["rows"]
        ),
        seeds=tuple(value["seeds"]),
        reference=value["reference"],
        images=value["images"],
    )


def to_rows(table: Table) -> list[list[str]]:
    """Heading and rows as texts, for a terminal; the best mean of a column carries a star.

    The last column is the difference to the reference in the last metric, if there is a reference.
    """
    last = table.columns[-1]
    delta = table.reference is not None
    heading = ["arm", *(column.heading for column in table.columns)]
    lines = [heading + ([f"Δ {last.label}"] if delta else [])]
    for row in table.rows:
        cells = [row.cells[column.key] for column in table.columns]
        texts = [row.label, *(cell.spread.text() + (" *" if cell.best else "") for cell in cells)]
        lines.append(texts + ([_delta_text(cells[-1])] if delta else []))
    return lines


def to_markdown(table: Table) -> str:
    """Two Markdown tables: the values with the best in bold, and the differences to the reference."""
    heading = ["", *(column.heading for column in table.columns)]
    values = [[row.label, *(_bold(row.cells[c.key]) for c in table.columns)] for row in table.rows]
    parts = [_markdown_table(heading, values)]
    if table.reference is not None:
        heading[0] = f"minus {label_of(table.reference)}"
        others = [row for row in table.rows if row.arm != table.reference]
        deltas = [[row.label, *(_delta_text(row.cells[c.key]) for c in table.columns)] for row in others]
        parts.append(_markdown_table(heading, deltas))
    return "\n".join(parts)


def _bold(cell: Cell) -> str:
    return f"**{cell.spread.text()}**" if cell.best else cell.spread.text()


def _delta_text(cell: Cell) -> str:
    return _NONE if cell.delta is None else cell.delta.text(signed=True)


def _markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [heading, rule, *rows])


def _plain(value: Any) -> Any:  # noqa: ANN401 (JSON values)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_cell(cell: Mapping[str, Any]) -> Cell:
    delta = cell["delta"]
    return Cell(
        values={int(seed): _number(value) for seed, value in cell["values"].items()},
        spread=_read_spread(cell["spread"]),
        scored=cell["scored"],
        undefined=cell["undefined"],
        best=cell["best"],
        delta=None if delta is None else _read_spread(delta),
    )


def _read_spread(value: Mapping[str, Any]) -> Spread:
    return Spread(_number(value["mean"]), value["sd"], value["count"])


def _number(value: float | None) -> float:
    return math.nan if value is None else value
