"""Segmentation metrics with a written contract: exact, fast, and never silent about what is undefined.

The contract is in `mcpmix.metrics.contract` and in `docs/metrics.md`.
"""

from mcpmix.metrics.classes import ClassScores, class_regions, mean_over_classes, score_classes
from mcpmix.metrics.contract import HIGHER_IS_BETTER, EmptyRule, higher_is_better, score_keys
from mcpmix.metrics.conventions import conventions_table
from mcpmix.metrics.folder import FolderOptions, FolderReport, score_class_folders, score_folder
from mcpmix.metrics.statistics import RegionAccumulator, bootstrap_intervals, compare_methods, holm, summarise
from mcpmix.metrics.suite import Counts, boundary_distances, count, region_scores, score, score_with_counts

__all__ = [
    "HIGHER_IS_BETTER",
    "ClassScores",
    "Counts",
    "EmptyRule",
    "FolderOptions",
    "FolderReport",
    "RegionAccumulator",
    "bootstrap_intervals",
    "boundary_distances",
    "class_regions",
    "compare_methods",
    "conventions_table",
    "count",
    "higher_is_better",
    "holm",
    "mean_over_classes",
    "region_scores",
    "score",
    "score_class_folders",
    "score_classes",
    "score_folder",
    "score_keys",
    "score_with_counts",
    "summarise",
]
