"""What came out of scoring a folder: numbers per image, summaries, tests, and the files made of them."""

import csv
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import StorageError
from mcpmix.metrics.contract import higher_is_better
from mcpmix.metrics.conventions import ConventionRow
from mcpmix.metrics.files import FilePair
from mcpmix.metrics.options import FolderOptions
from mcpmix.metrics.region import Counts
from mcpmix.metrics.statistics import PairedTest

_OWN_FILES = {"images.csv", "against.csv", "summary.json", "worst"}


@dataclass(frozen=True)
class ImageScore:
    """One image of one method.

    Attributes:
        files: its files.
        scores: its metrics, with the keys of `score`.
        counts: its pixel counts.
        thresholded: pixels of truth and prediction that were neither 0 nor full scale in their files.
    """

    files: FilePair
    scores: dict[str, float]
    counts: Counts
    thresholded: int


@dataclass(frozen=True)
class MetricSummary:
    """One metric of one method over all images.

    Attributes:
        mean: mean over images with a defined value.
        sd: their sample standard deviation.
        low: lower end of the bootstrap interval of the mean.
        high: upper end.
        n: number of images with a defined value.
        undefined: number of images without.
        pooled: the metric of the pixel counts of all images together; None for boundary metrics.
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
    """How many images had a lesion, and what happened to those with an empty mask.

    Attributes:
        with_lesion: images whose truth has foreground.
        without_lesion: images whose truth has none.
        missed: images with a lesion of which no pixel was found.
        false_alarms: images without lesion on which something was found.
        correctly_empty: images without lesion on which nothing was found.
    """

    with_lesion: int
    without_lesion: int
    missed: int
    false_alarms: int
    correctly_empty: int


@dataclass(frozen=True)
class MethodScores:
    """One folder of predictions.

    Attributes:
        folder: where the predictions are.
        images: one entry per true mask, in the order of their names.
        metrics: summaries by key.
        frames: what happened to images without lesion, and to missed ones.
    """

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
            row = [key, spread, _interval(item.low, item.high), pooled, str(item.n), str(item.undefined)]
            if self.against:
                test, other = tests[key], self.against.metrics[key]
                row += [f"{other.mean:.2f} ± {other.sd:.2f}", f"{test.difference:+.2f}"]
                row += [_interval(test.low, test.high), f"{test.p_holm:.3g}", f"{test.effect:+.2f}"]
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
        from mcpmix.metrics.worst import draw_worst

        _clear(out)
        _write_csv(out / "images.csv", self.method.images)
        if self.against:
            _write_csv(out / "against.csv", self.against.images)
        draw_worst(self.worst(), self.options, out / "worst", images)
        (out / "summary.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")


def _interval(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


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


def _clear(out: Path) -> None:
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
