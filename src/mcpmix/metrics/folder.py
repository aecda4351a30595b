"""Score a folder of predicted masks, of any tool, against a folder of true ones: numbers, a table, files."""

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mcpmix.core.errors import ConfigError, DataError, StorageError, bullet_list
from mcpmix.core.files import write_json
from mcpmix.core.pixels import Pixels, list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.sample import read_image
from mcpmix.data.tables import write_csv
from mcpmix.metrics.classes import mean_over_classes
from mcpmix.metrics.contract import (
    DEFAULT_BAND,
    DEFAULT_RULE,
    DEFAULT_TOLERANCES,
    EmptyRule,
    Mask,
    as_pair,
    check_lengths,
)
from mcpmix.metrics.conventions import ConventionRow, conventions_table
from mcpmix.metrics.files import (
    FilePair,
    Missing,
    OneClass,
    pair_files,
    read_mask,
    read_pair,
    read_probability,
)
from mcpmix.metrics.statistics import Aggregate, PairedTest, bootstrap_intervals, compare_methods, summarise
from mcpmix.metrics.suite import Counts, region_scores, score_with_counts

_SHOWN_PROBLEMS = 20
_WORST = 8  # cases that become pictures
_OWN_FILES = {"images.csv", "against.csv", "summary.json", "worst"}


@dataclass(frozen=True)
class FolderOptions:
    """The settings of `score_folder`."""

    tolerances: Sequence[float] = DEFAULT_TOLERANCES  # pixels, for boundary precision, recall and F1
    band: float = DEFAULT_BAND  # radius in pixels of the bands that boundary IoU compares
    rule: EmptyRule = DEFAULT_RULE
    threshold: float | None = None  # share of full scale from which a soft map is foreground; None refuses it
    truth_ending: str = ""  # what true masks have at the end of their stem beyond the name
    prediction_ending: str = ""
    missing: Missing = "error"  # or "empty": a truth without prediction counts as an empty prediction
    one: OneClass | None = None  # the class that is scored, where masks have several; None: lesion

    def __post_init__(self) -> None:
        check_lengths(self.tolerances, self.band)
        problems = []
        if self.threshold is not None and not 0 < self.threshold <= 1:
            problems.append(f"threshold must be in (0, 1] or None, but is {self.threshold!r}")
        if self.missing not in ("error", "empty"):
            problems.append(f"missing must be 'error' or 'empty', but is {self.missing!r}")
        if self.one is not None and self.threshold is not None:
            problems.append("threshold is for soft maps of one class, and these are labels of several")
        if problems:
            raise ConfigError(bullet_list("Wrong settings for scoring a folder:", problems))


@dataclass(frozen=True)
class ImageScore:
    """One image of one method; `thresholded` counts pixels that were neither 0 nor full scale in a file."""

    files: FilePair
    scores: dict[str, float]
    counts: Counts
    thresholded: int


@dataclass(frozen=True)
class MetricSummary(Aggregate):
    """One metric of one method over all images."""

    low: float  # ends of the bootstrap interval of the mean
    high: float
    pooled: float | None  # of all pixels together; None for boundary metrics


@dataclass(frozen=True)
class MethodScores:
    """One folder of predictions."""

    folder: Path
    images: Sequence[ImageScore]  # in the order of their names
    extra: Sequence[str]  # names of predictions without a true mask, which are not scored
    metrics: dict[str, MetricSummary]
    # How many images have a lesion or none (`with_lesion`, `without_lesion`), on how many no pixel of it was
    # found (`missed`), and what was found without one (`false_alarms`, `correctly_empty`).
    frames: dict[str, int]


@dataclass(frozen=True)
class FolderReport:
    """The result of `score_folder`."""

    truth: Path  # folder of true masks
    method: MethodScores
    against: MethodScores | None  # other predictions on the same images
    tests: Sequence[PairedTest]  # of `method` against `against`, one per metric
    conventions: Sequence[ConventionRow]
    notes: Sequence[str]  # what a reader must know: undefined values, missing or ignored files, thresholds
    options: FolderOptions

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of a table of all metrics, as text."""
        header = ["metric", "mean ± sd", "95 % interval", "pooled", "n", "undefined"]
        if self.against:
            header += ["against", "difference", "95 % interval", "p (Holm)", "effect"]
        rows = []
        tests = {test.metric: test for test in self.tests}
        for key, item in self.method.metrics.items():
            pooled = "" if item.pooled is None else f"{item.pooled:.2f}"
            row = [key, f"{item.mean:.2f} ± {item.sd:.2f}", f"{item.low:.2f} to {item.high:.2f}", pooled]
            row += [str(item.n), str(item.undefined)]
            if self.against:
                test, other = tests[key], self.against.metrics[key]
                row += [f"{other.mean:.2f} ± {other.sd:.2f}", f"{test.difference:+.2f}"]
                row += [f"{test.low:.2f} to {test.high:.2f}", f"{test.p_holm:.3g}", f"{test.effect:+.2f}"]
            rows.append(row)
        return header, rows

    def worst(self) -> list[ImageScore]:
        """The images with the worst DSC, worst first; undefined values are not ranked."""
        ranked = [image for image in self.method.images if not math.isnan(image.scores["dsc"])]
        return sorted(ranked, key=lambda image: (image.scores["dsc"], image.files.name))[:_WORST]

    def summary(self) -> dict[str, Any]:
        """Everything but the single images, of types that JSON knows; NaN is None, infinity a string."""

        def of_method(method: MethodScores) -> dict[str, Any]:
            metrics = {key: asdict(item) for key, item in method.metrics.items()}
            return {"folder": str(method.folder), "frames": method.frames, "metrics": metrics}

        def plain(value: Any) -> Any:  # noqa: ANN401
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            if isinstance(value, float) and not math.isfinite(value):
                return None if math.isnan(value) else str(value)
            return value

        content: dict[str, Any] = {
            "truth": str(self.truth),
            "images": len(self.method.images),
            "method": of_method(self.method),
            "against": of_method(self.against) if self.against else None,
            "tests": [asdict(test) for test in self.tests],
            "conventions": [asdict(row) for row in self.conventions],
            "worst": [image.files.name for image in self.worst()],
            "notes": list(self.notes),
            "options": asdict(self.options),
        }
        return {key: plain(value) for key, value in content.items()}

    def write(self, out: Path, images: Path | None = None) -> None:
        """Write `images.csv`, `summary.json`, `against.csv` if there is another method, and `worst/*.png`.

        Args:
            out: a folder; made if needed. An earlier report in it is replaced.
            images: folder of images with the names of the masks, to paint the worst cases on.
        """
        if out.exists():
            own = _OWN_FILES if (out / "images.csv").is_file() else set()
            strangers = sorted(path.name for path in out.iterdir() if path.name not in own)
            if strangers:
                raise StorageError(
                    f"{out} must be empty or hold an earlier report, but it has {', '.join(strangers[:5])}. "
                    "Choose another folder."
                )
            # The summary is written last: without it the folder is not a finished report.
            (out / "summary.json").unlink(missing_ok=True)
            (out / "against.csv").unlink(missing_ok=True)
            shutil.rmtree(out / "worst", ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for name, method in (("images.csv", self.method), ("against.csv", self.against)):
            rows = [
                {
                    "name": image.files.name,
                    **image.scores,
                    **asdict(image.counts),
                    "prediction_missing": int(image.files.prediction is None),
                    "thresholded_pixels": image.thresholded,
                }
                for image in (method.images if method else ())
            ]
            if rows:
                write_csv(out / name, rows)
        photos = {}
        if images is not None:
            found = list_images(images, deep=True)
            photos = {path.relative_to(images).with_suffix("").as_posix(): path for path in found}
        if worst := self.worst():
            (out / "worst").mkdir()
        for number, case in enumerate(worst, start=1):
            truth, prediction, _ = read_pair(case.files, self.options.threshold, self.options.one)
            name = case.files.name
            photo = None
            if name in photos:
                pixels = read_image(photos[name])
                photo = pixels if pixels.shape[:2] == truth.shape else None
            picture = draw_case(truth, prediction, photo, f"{name}  dsc {case.scores['dsc']:.1f}")
            picture.save(out / "worst" / f"{number:02d}_{name.replace('/', '_')}.png")
        write_json(out / "summary.json", self.summary())


def score_folder(
    truth: str | Path,
    prediction: str | Path,
    *,
    against: str | Path | None = None,
    out: str | Path | None = None,
    images: str | Path | None = None,
    conventions: bool = False,
    progress: Progress = SILENT,
    **options: Any,  # noqa: ANN401
) -> FolderReport:
    """Score predicted masks against true ones, paired by name, with all metrics and their uncertainty.

    Args:
        prediction: folder of predicted masks; suffixes may differ, sub-folders are part of the name.
        against: folder of the predictions of another method, for paired tests.
        out: folder for `images.csv`, `summary.json` and pictures of the worst cases; None writes nothing.
        images: folder of the images, to paint the worst cases on.
        conventions: also report the conventions of other evaluations.
        **options: fields of `FolderOptions`, such as `tolerances`, `threshold` or `missing`.

    Raises:
        DataError: files are missing, are not masks, or differ in size; the message lists them.
        ConfigError: an option is out of range.
        StorageError: `out` holds other files.
    """
    settings = FolderOptions(**options)
    if conventions and settings.one is not None:
        raise ConfigError("The conventions of other evaluations are for masks of lesion and background only.")
    folders = [Path(folder) for folder in (prediction, against) if folder is not None]
    pairings = [
        pair_files(
            Path(truth),
            folder,
            truth_ending=settings.truth_ending,
            prediction_ending=settings.prediction_ending,
            missing=settings.missing,
        )
        for folder in folders
    ]
    methods = [
        _score_method(folder, pairs, extra, settings, progress)
        for folder, (pairs, extra) in zip(folders, pairings, strict=True)
    ]
    tests: list[PairedTest] = []
    if against is not None:
        first, second = ([image.scores for image in method.images] for method in methods)
        tests = compare_methods(first, second)

    def soft_pairs() -> Iterator[tuple[Mask, npt.NDArray[Any]]]:
        for pair in pairings[0][0]:
            mask, _ = read_mask(pair.truth, settings.threshold, settings.one)
            yield mask, read_probability(pair.prediction) if pair.prediction else np.zeros(mask.shape)

    report = FolderReport(
        truth=Path(truth),
        method=methods[0],
        against=methods[1] if against is not None else None,
        tests=tests,
        conventions=conventions_table(soft_pairs(), settings.threshold or 0.5) if conventions else [],
        notes=list(_notes(methods, tests)),
        options=settings,
    )
    if out is not None:
        report.write(Path(out), Path(images) if images is not None else None)
    return report


def score_class_folders(
    truth: str | Path,
    prediction: str | Path,
    classes: Sequence[str],
    *,
    out: str | Path | None = None,
    **options: Any,  # noqa: ANN401
) -> tuple[dict[str, FolderReport], dict[str, Aggregate]]:
    """Score predicted label maps against true ones: each class against all else, and the mean over them.

    Args:
        classes: names of the labels 1, 2, ...
        out: gets a folder for each class, and `mean.json`.
        **options: all others of `score_folder`.

    Returns:
        The report of each class, and each metric of the mean of `ClassScores` over the images.
    """
    if len(set(classes)) != len(classes) or any(Path(name).name != name for name in classes):
        raise ConfigError(f"classes must be different names without a slash, but are {', '.join(classes)}.")
    reports = {
        name: score_folder(
            truth,
            prediction,
            out=None if out is None else Path(out) / name,
            one=OneClass(label, len(classes) + 1),
            **options,
        )
        for label, name in enumerate(classes, 1)
    }
    images = zip(*(report.method.images for report in reports.values()), strict=True)
    rows = [mean_over_classes([one.scores for one in each], [one.counts for one in each]) for each in images]
    mean = summarise(rows)
    if out is not None:
        write_json(Path(out) / "mean.json", {key: asdict(value) for key, value in mean.items()})
    return reports, mean


def _score_method(
    folder: Path, pairs: Sequence[FilePair], extra: Sequence[str], options: FolderOptions, progress: Progress
) -> MethodScores:
    images, problems = [], []
    with progress.track(f"scoring {folder.name}", len(pairs)) as advance:
        for pair in pairs:
            try:
                truth, prediction, thresholded = read_pair(pair, options.threshold, options.one)
                masks = truth.view(np.bool_), prediction.view(np.bool_)  # checked already
                scored = score_with_counts(*masks, options.tolerances, options.band, options.rule)
                images.append(ImageScore(pair, *scored, thresholded))
            except DataError as error:
                problems.append(f"{pair.name}: {error}")
            advance()
    if problems:
        rest = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"and {rest} more"] if rest > 0 else [])
        raise DataError(bullet_list(f"{len(problems)} of {len(pairs)} pairs cannot be scored:", shown))

    aggregates = summarise([image.scores for image in images])
    intervals = bootstrap_intervals([[image.scores[key] for key in aggregates] for image in images])
    counts = [image.counts for image in images]
    pooled = region_scores(sum(counts, Counts(0, 0, 0, 0)), options.rule)
    metrics = {
        key: MetricSummary(**asdict(item), low=float(low), high=float(high), pooled=pooled.get(key))
        for (key, item), (low, high) in zip(aggregates.items(), intervals, strict=True)
    }
    empty = [item for item in counts if item.truth_empty]
    frames = {
        "with_lesion": len(counts) - len(empty),
        "without_lesion": len(empty),
        "missed": sum(not item.truth_empty and item.tp == 0 for item in counts),
        "false_alarms": sum(not item.prediction_empty for item in empty),
        "correctly_empty": sum(item.prediction_empty for item in empty),
    }
    return MethodScores(folder, images, extra, metrics, frames)


def _notes(methods: Sequence[MethodScores], tests: Sequence[PairedTest]) -> Iterator[str]:
    for method in methods:
        name = method.folder.name
        if undefined := method.metrics["dsc"].undefined:
            yield (
                f"{name}: {undefined} images without lesion and without prediction are undefined for most "
                "metrics and not in their means; both_empty='perfect' would count them as 100 %."
            )
        if missing := sum(image.files.prediction is None for image in method.images):
            yield f"{name}: {missing} predictions are missing and count as empty masks."
        if extra := method.extra:
            yield f"{name}: {len(extra)} predictions have no truth and were ignored: {extra[0]}, ..."
        if thresholded := [image.thresholded for image in method.images if image.thresholded]:
            yield (
                f"{name}: {len(thresholded)} pairs were not hard masks; the threshold decided "
                f"{sum(thresholded)} pixels."
            )
    if excluded := max((test.excluded for test in tests), default=0):
        yield f"the tests leave out up to {excluded} images on which a method is undefined."


# --- pictures -----------------------------------------------------------------------------------------------

# Colours that stay apart under the common kinds of colour blindness.
FOUND = (240, 240, 240)
MISSED = (230, 159, 0)
INVENTED = (0, 114, 178)
_OPACITY = 0.5
_CAPTION_HEIGHT = 16


def draw_case(
    truth: npt.ArrayLike, prediction: npt.ArrayLike, image: Pixels | None = None, caption: str = ""
) -> Image.Image:
    """Paint true positives light, misses orange and false positives blue, over the image or over black.

    Truth and prediction are (H, W) hard masks, the image is (H, W, 3); the caption is a line of text below.
    """
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
