"""Segmentation metrics with a written contract: exact, fast, and never silent about what is undefined.

The contract is in `mcpmix.metrics.contract` and in `docs/metrics.md`. Names are imported when they are first
used, so that importing the package compiles and loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpmix.metrics.contract import HIGHER_IS_BETTER, EmptyRule, higher_is_better, score_keys
    from mcpmix.metrics.conventions import ConventionRow, conventions_table
    from mcpmix.metrics.folder import score_folder
    from mcpmix.metrics.region import Counts, RegionAccumulator, count, region_scores
    from mcpmix.metrics.report import FolderOptions, FolderReport, draw_case
    from mcpmix.metrics.statistics import (
        Aggregate,
        PairedTest,
        bootstrap_intervals,
        compare_methods,
        holm,
        summarise,
    )
    from mcpmix.metrics.suite import boundary_distances, score, score_with_counts

_MODULES = {
    "contract": ["HIGHER_IS_BETTER", "EmptyRule", "higher_is_better", "score_keys"],
    "conventions": ["ConventionRow", "conventions_table"],
    "folder": ["score_folder"],
    "region": ["Counts", "RegionAccumulator", "count", "region_scores"],
    "report": ["FolderOptions", "FolderReport", "draw_case"],
    "statistics": ["Aggregate", "PairedTest", "bootstrap_intervals", "compare_methods", "holm", "summarise"],
    "suite": ["boundary_distances", "score", "score_with_counts"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "HIGHER_IS_BETTER",
    "Aggregate",
    "ConventionRow",
    "Counts",
    "EmptyRule",
    "FolderOptions",
    "FolderReport",
    "PairedTest",
    "RegionAccumulator",
    "bootstrap_intervals",
    "boundary_distances",
    "compare_methods",
    "conventions_table",
    "count",
    "draw_case",
    "higher_is_better",
    "holm",
    "region_scores",
    "score",
    "score_folder",
    "score_keys",
    "score_with_counts",
    "summarise",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name from its module when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
