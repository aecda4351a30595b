"""The result of scoring a folder of masks: settings, numbers per image, summaries, and the files written."""

import csv
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import ConfigError, StorageError, bullet_list
from mcpmix.core.stage_folder import write_json
from mcpmix.metrics.contract import (
    DEFAULT_BAND,
    DEFAULT_RULE,
    DEFAULT_TOLERANCES,
    EmptyRule,
    as_pair,
    check_lengths,
    higher_is_better,
    score_keys,
)
from mcpmix.metrics.conventions import ConventionRow
from mcpmix.metrics.files import FilePair, Missing, read_pair
from mcpmix.metrics.region import Counts
from mcpmix.metrics.statistics import PairedTest

if TYPE_CHECKING:
    from PIL import Image


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
            raise ConfigError(bullet_list("Wrong settings for scoring a folder:", problems))


_OWN_FILES = {"images.csv", "against.csv", "summary.json", "worst"}


@dataclass(frozen=True)
class ImageScore:
    """One image of one method; `thresholded` counts pixels that were neither 0 nor full scale in a file."""

    files: FilePair
    scores: dict[str, float]
    counts: Counts
    thresholded: int


@dataclass(frozen=True)
class MetricSummary:
    """One metric of one method over all images.

    `low` and `high` are the ends of the bootstrap interval of the mean; `n` and `undefined` count images with
    and without a defined value; `pooled` is the metric of all pixels together, None for boundary metrics.
    """

    mean: float
    sd: float
    low: float
    high: float
    n: int
    undefined: int
    pooled: float | None


@dataclass(frozen=True)
class Frames:
    """How many images had a lesion, and what happened on those without one.

    `missed`: a lesion of which no pixel was found; `false_alarms`: something found where there was no lesion.
    """

    with_lesion: int
    without_lesion: int
    missed: int
    false_alarms: int
    correctly_empty: int


@dataclass(frozen=True)
class MethodScores:
    """One folder of predictions: its images in the order of their names, and summaries by metric."""

    folder: Path
    images: tuple[ImageScore, ...]
    metrics: dict[str, MetricSummary]
    frames: Frames


@dataclass(frozen=True)
class FolderReport:
    """The result of `score_folder`.

    Attributes:
        truth: folder of true masks.
        method: the predictions.
        against: other predictions on the same images, if any.
        tests: paired tests of `method` against `against`, one per metric.
        conventions: the predictions under the conventions of other evaluations, if asked for.
        notes: whatever a reader must know: undefined values, missing or ignored files, thresholds applied.
        options: the settings.
    """

    truth: Path
    method: MethodScores
    against: MethodScores | None
    tests: tuple[PairedTest, ...]
    conventions: tuple[ConventionRow, ...]
    notes: tuple[str, ...]
    options: FolderOptions

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of a table of all metrics, as text."""
        percent = f"{100 * self.options.confidence:g} %"
        header = ["metric", "mean ± sd", f"{percent} interval", "pooled", "n", "undefined"]
        if self.against:
            header += ["against", "difference", f"{percent} interval", "p (Holm)", "effect"]
        rows = []
        tests = {test.metric: test for test in self.tests}
        for key, item in self.method.metrics.items():
            pooled = "" if item.pooled is None else f"{item.pooled:.2f}"
            spread = f"{item.mean:.2f} ± {item.sd:.2f}"
            row = [
                key,
                spread,
                f"{item.low:.2f} to {item.high:.2f}",
                pooled,
                str(item.n),
                str(item.undefined),
            ]
            if self.against:
                test, other = tests[key], self.against.metrics[key]
                row += [f"{other.mean:.2f} ± {other.sd:.2f}", f"{test.difference:+.2f}"]
                row += [f"{test.low:.2f} to {test.high:.2f}", f"{test.p_holm:.3g}", f"{test.effect:+.2f}"]
            rows.append(row)
        return header, rows

    def worst(self) -> list[ImageScore]:
        """The worst images by the chosen metric, worst first; undefined values are not ranked."""
        key = self.options.worst_by
        sign = 1 if higher_is_better(key) else -1
        ranked = [image for image in self.method.images if not math.isnan(image.scores[key])]
        ranked.sort(key=lambda image: (sign * image.scores[key], image.files.name))
        return ranked[: self.options.worst]

    def summary(self) -> dict[str, Any]:
        """Everything but the single images, of types that JSON knows; NaN is None, infinity a string."""
        content = {
            "truth": str(self.truth),
            "images": len(self.method.images),
            "method": _method(self.method),
            "against": _method(self.against) if self.against else None,
            "tests": [asdict(test) for test in self.tests],
            "conventions": [asdict(row) for row in self.conventions],
            "worst": [image.files.name for image in self.worst()],
            "notes": list(self.notes),
            "options": asdict(self.options),
        }
        return {key: _plain(value) for key, value in content.items()}

    def write(self, out: Path, images: Path | None = None) -> None:
        """Write `images.csv`, `summary.json`, `against.csv` if there is another method, and `worst/*.png`.

        Args:
            out: a folder; made if needed. An earlier report in it is replaced.
            images: folder of images with the names of the masks, to paint the worst cases on.

        Raises:
            StorageError: the folder holds other files.
        """
        if out.exists():
            own = _OWN_FILES if (out / "images.csv").is_file() else set()
            strangers = sorted(path.name for path in out.iterdir() if path.name not in own)
            if strangers:
                raise StorageError(
                    f"{out} must be empty or hold an earlier report, but it has {', '.join(strangers[:5])}. "
                    f"Choose another folder."
                )
            # The summary is written last: without it the folder is not a finished report.
            (out / "summary.json").unlink(missing_ok=True)
            (out / "against.csv").unlink(missing_ok=True)
            shutil.rmtree(out / "worst", ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        _write_csv(out / "images.csv", self.method.images)
        if self.against:
            _write_csv(out / "against.csv", self.against.images)
        if worst := self.worst():
            (out / "worst").mkdir()
        for number, case in enumerate(worst, start=1):
            truth, prediction, _ = read_pair(case.files, self.options.threshold)
            name, value = case.files.name, case.scores[self.options.worst_by]
            caption = f"{name}  {self.options.worst_by} {value:.1f}"
            picture = draw_case(truth, prediction, _image_of(name, images, truth.shape), caption)
            picture.save(out / "worst" / f"{number:02d}_{name.replace('/', '_')}.png")
        write_json(out / "summary.json", self.summary())


def _method(method: MethodScores) -> dict[str, Any]:
    return {
        "folder": str(method.folder),
        "frames": asdict(method.frames),
        "metrics": {key: asdict(item) for key, item in method.metrics.items()},
    }


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _write_csv(path: Path, images: Sequence[ImageScore]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        keys = list(images[0].scores)
        writer.writerow(["name", *keys, "tp", "fp", "fn", "tn", "prediction_missing", "thresholded_pixels"])
        for image in images:
            c = image.counts
            scores = [image.scores[key] for key in keys]
            missing = int(image.files.prediction is None)
            writer.writerow([image.files.name, *scores, c.tp, c.fp, c.fn, c.tn, missing, image.thresholded])


# Colours that stay apart under the common kinds of colour blindness.
FOUND = (240, 240, 240)
MISSED = (230, 159, 0)
INVENTED = (0, 114, 178)
_OPACITY = 0.5
_CAPTION_HEIGHT = 16
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def draw_case(
    truth: npt.ArrayLike,
    prediction: npt.ArrayLike,
    image: npt.NDArray[np.uint8] | None = None,
    caption: str = "",
) -> "Image.Image":
    """Paint true positives light, misses orange and false positives blue, over the image or over black.

    Truth and prediction are (H, W) hard masks, the image is (H, W, 3); the caption is a line of text below.
    """
    from PIL import Image, ImageDraw

    y, p = (mask.astype(bool) for mask in as_pair(truth, prediction))
    canvas = np.zeros((*y.shape, 3)) if image is None else image.astype(np.float64)
    opacity = 1.0 if image is None else _OPACITY
    for area, colour in ((y & p, FOUND), (y & ~p, MISSED), (~y & p, INVENTED)):
        canvas[area] = (1 - opacity) * canvas[area] + opacity * np.array(colour)
    picture = Image.fromarray(canvas.round().astype(np.uint8))
    if not caption:
        return picture
    framed = Image.new("RGB", (picture.width, picture.height + _CAPTION_HEIGHT))
    framed.paste(picture)
    ImageDraw.Draw(framed).text((2, picture.height + 2), caption, fill=FOUND)
    return framed


def _image_of(name: str, folder: Path | None, shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    """The image of a mask, to paint on; None if there is none, or one of another size."""
    from PIL import Image

    candidates = [folder / f"{name}{suffix}" for suffix in _IMAGE_SUFFIXES] if folder else []
    for path in candidates:
        if path.is_file():
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            return pixels if pixels.shape[:2] == shape else None
    return None
