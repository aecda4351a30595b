"""Aggregates over images that say over how many, and how many were undefined."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcpmix.core.errors import DataError


@dataclass(frozen=True)
class Aggregate:
    """One metric over many images.

    Attributes:
        mean: mean of the defined values; NaN if there is none.
        sd: sample standard deviation (n - 1) of the defined values; NaN for fewer than two.
        n: number of images with a defined value.
        undefined: number of images whose value is NaN. They are in neither mean nor sd.
    """

    mean: float
    sd: float
    n: int
    undefined: int

    def __str__(self) -> str:
        note = f", {self.undefined} undefined" if self.undefined else ""
        return f"{self.mean:.2f} ± {self.sd:.2f} (n={self.n}{note})"


def aggregate(values: Sequence[float]) -> Aggregate:
    """Mean and spread of one metric over images; NaN values are counted, not averaged.

    Sums are exactly rounded, so the result does not depend on the order of the images.
    """
    defined = [value for value in values if not math.isnan(value)]
    n = len(defined)
    mean = math.fsum(defined) / n if n else math.nan
    sd = math.nan
    if n > 1 and math.isfinite(mean):
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in defined) / (n - 1))
    return Aggregate(mean, sd, n, len(values) - n)


def summarise(rows: Sequence[Mapping[str, float]]) -> dict[str, Aggregate]:
    """Aggregate the scores of many images, metric by metric.

    Args:
        rows: one result of `score` per image; all with the same keys.

    Returns:
        One aggregate per key, in the order of the first row; empty if there are no rows.

    Raises:
        DataError: rows have different keys.
    """
    if not rows:
        return {}
    keys = list(rows[0])
    for number, row in enumerate(rows):
        if set(row) != set(keys):
            raise DataError(
                f"all rows must have the same metrics, but row 0 has {sorted(keys)} and row {number} has "
                f"{sorted(row)}. Score all images with the same tolerances."
            )
    return {key: aggregate([row[key] for row in rows]) for key in keys}
