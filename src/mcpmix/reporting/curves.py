"""Curves over epochs from the rows of training logs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpmix.reporting.tables import Run

LogRow = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """A quantity over epochs.

    Attributes:
        epochs: counted from 1, rising.
        values: one for each epoch; all finite.
    """

    epochs: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.epochs)


def curve(rows: Sequence[LogRow], quantity: str) -> Curve:
    """The curve of a quantity in one log; epochs without a finite value are left out.

    Args:
        rows: of a log.jsonl.
        quantity: a key, or `section.key` for a nested one.
    """
    points = [(int(row["epoch"]), _value(row, quantity)) for row in rows]
    kept = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    return Curve(tuple(epoch for epoch, _ in kept), tuple(value for _, value in kept))


def curves_of(logs: Mapping[Run, Sequence[LogRow]], arm: str, quantity: str) -> list[Curve]:
    """The curves of an arm, one for each seed that has the quantity, in the order of the seeds."""
    runs = sorted(run for run in logs if run[0] == arm)
    return [found for run in runs if (found := curve(logs[run], quantity))]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at the epochs that all of them have."""
    values: dict[int, list[float]] = defaultdict(list)
    for item in curves:
        for epoch, value in zip(item.epochs, item.values, strict=True):
            values[epoch].append(value)
    common = sorted(epoch for epoch, found in values.items() if len(found) == len(curves))
    return Curve(tuple(common), tuple(math.fsum(values[epoch]) / len(curves) for epoch in common))


def _value(row: LogRow, quantity: str) -> float:
    value: Any = row
    for part in quantity.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return math.nan if value is None else float(value)
