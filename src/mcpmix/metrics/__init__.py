"""Segmentation metrics with a written contract: exact, fast, and never silent about what is undefined.

The contract is in `mcpmix.metrics.contract` and in `docs/metrics.md`. Names are imported when they are first
used, so that importing the package compiles and loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpmix.metrics.accumulator import RegionAccumulator
    from mcpmix.metrics.boundary import boundary_distances
    from mcpmix.metrics.contract import HIGHER_IS_BETTER, EmptyRule, higher_is_better, score_keys
    from mcpmix.metrics.region import Counts, count, region_scores
    from mcpmix.metrics.statistics import Aggregate, summarise
    from mcpmix.metrics.suite import score, score_with_counts

_HOME = {
    "RegionAccumulator": "accumulator",
    "boundary_distances": "boundary",
    "HIGHER_IS_BETTER": "contract",
    "EmptyRule": "contract",
    "higher_is_better": "contract",
    "score_keys": "contract",
    "Counts": "region",
    "count": "region",
    "region_scores": "region",
    "Aggregate": "statistics",
    "summarise": "statistics",
    "score": "suite",
    "score_with_counts": "suite",
}

__all__ = [
    "HIGHER_IS_BETTER",
    "Aggregate",
    "Counts",
    "EmptyRule",
    "RegionAccumulator",
    "boundary_distances",
    "count",
    "higher_is_better",
    "region_scores",
    "score",
    "score_keys",
    "score_with_counts",
    "summarise",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name from its module when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
