"""How folders of masks are paired, read, scored and summarised."""

from collections.abc import Sequence
from dataclasses import dataclass

from mcpmix.core.errors import ConfigError, bullet_list
from mcpmix.metrics.contract import (
    DEFAULT_BAND,
    DEFAULT_RULE,
    DEFAULT_TOLERANCES,
    EmptyRule,
    check_lengths,
    score_keys,
)
from mcpmix.metrics.files import Missing


@dataclass(frozen=True)
class FolderOptions:
    """The settings of `score_folder`.

    Attributes:
        tolerances: lengths in pixels for boundary precision, recall and F1.
        band: radius in pixels of the bands that boundary IoU compares.
        rule: what the metrics are when masks are empty.
        threshold: fraction of full scale from which a soft map is foreground; None refuses soft maps.
        truth_ending: what true masks have at the end of their stem beyond the name, such as `_segmentation`.
        prediction_ending: the same for predictions.
        missing: whether a truth without prediction is an error or counts as an empty prediction.
        confidence: of intervals, in (0, 1).
        resamples: of the bootstrap.
        seed: of the bootstrap.
        worst: how many of the worst cases become pictures.
        worst_by: the metric that says what is worst.
        workers: threads that read and score files.
    """

    tolerances: Sequence[float] = DEFAULT_TOLERANCES
    band: float = DEFAULT_BAND
    rule: EmptyRule = DEFAULT_RULE
    threshold: float | None = None
    truth_ending: str = ""
    prediction_ending: str = ""
    missing: Missing = "error"
    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0
    worst: int = 8
    worst_by: str = "dsc"
    workers: int = 1

    def __post_init__(self) -> None:
        check_lengths(self.tolerances, self.band)
        keys = score_keys(self.tolerances)
        threshold_fits = self.threshold is None or 0 < self.threshold <= 1
        checks = [
            (threshold_fits, "threshold must be in (0, 1] or None", self.threshold),
            (self.missing in ("error", "empty"), "missing must be 'error' or 'empty'", self.missing),
            (0 < self.confidence < 1, "confidence must be in (0, 1)", self.confidence),
            (self.resamples >= 1, "resamples must be at least 1", self.resamples),
            (self.worst >= 0, "worst must be at least 0", self.worst),
            (self.worst_by in keys, f"worst_by must be one of {', '.join(keys)}", self.worst_by),
            (self.workers >= 1, "workers must be at least 1", self.workers),
        ]
        problems = [f"{text}, but is {value!r}" for good, text, value in checks if not good]
        if problems:
            raise ConfigError(bullet_list("The evaluation of folders is set up wrongly:", problems))
