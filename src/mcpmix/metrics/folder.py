"""Score a folder of predicted masks, of any tool, against a folder of true ones."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.metrics.contract import Mask
from mcpmix.metrics.conventions import conventions_table
from mcpmix.metrics.files import FilePair, Pairing, pair_files, read_mask, read_pair, read_probability
from mcpmix.metrics.region import Counts, region_scores
from mcpmix.metrics.report import FolderOptions, FolderReport, Frames, ImageScore, MethodScores, MetricSummary
from mcpmix.metrics.statistics import PairedTest, bootstrap_intervals, compare_methods, summarise
from mcpmix.metrics.suite import score_with_counts

_SHOWN_PROBLEMS = 20
_DEFAULT_THRESHOLD = 0.5


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
        _score_method(folder, pairing, settings, progress)
        for folder, pairing in zip(folders, pairings, strict=True)
    ]
    tests: list[PairedTest] = []
    if against is not None:
        first, second = ([image.scores for image in method.images] for method in methods)
        tests = compare_methods(
            first, second, confidence=settings.confidence, resamples=settings.resamples, seed=settings.seed
        )

    def soft_pairs() -> Iterator[tuple[Mask, npt.NDArray[Any]]]:
        for pair in pairings[0].pairs:
            mask, _ = read_mask(pair.truth, settings.threshold)
            yield mask, read_probability(pair.prediction) if pair.prediction else np.zeros(mask.shape)

    rows = conventions_table(soft_pairs(), settings.threshold or _DEFAULT_THRESHOLD) if conventions else []
    report = FolderReport(
        truth=Path(truth),
        method=methods[0],
        against=methods[1] if against is not None else None,
        tests=tuple(tests),
        conventions=tuple(rows),
        notes=tuple(_notes(methods, pairings, tests)),
        options=settings,
    )
    if out is not None:
        report.write(Path(out), Path(images) if images is not None else None)
    return report


def _score_method(folder: Path, pairing: Pairing, options: FolderOptions, progress: Progress) -> MethodScores:
    def score_image(pair: FilePair) -> ImageScore | str:
        try:
            truth, prediction, thresholded = read_pair(pair, options.threshold)
            masks = truth.view(np.bool_), prediction.view(np.bool_)  # checked already
            return ImageScore(
                pair, *score_with_counts(*masks, options.tolerances, options.band, options.rule), thresholded
            )
        except DataError as error:
            return f"{pair.name}: {error}"

    images, problems = [], []
    with (
        progress.track(f"scoring {folder.name}", len(pairing.pairs)) as advance,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        for result in pool.map(score_image, pairing.pairs):
            if isinstance(result, str):
                problems.append(result)
            else:
                images.append(result)
            advance()
    if problems:
        shown = problems[:_SHOWN_PROBLEMS]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown)} more")
        headline = f"{len(problems)} of {len(pairing.pairs)} pairs cannot be scored:"
        raise DataError(bullet_list(headline, shown))

    aggregates = summarise([image.scores for image in images])
    intervals = bootstrap_intervals(
        [[image.scores[key] for key in aggregates] for image in images],
        confidence=options.confidence,
        resamples=options.resamples,
        seed=options.seed,
    )
    counts = [image.counts for image in images]
    pooled = region_scores(sum(counts, Counts(0, 0, 0, 0)), options.rule)
    metrics = {
        key: MetricSummary(
            item.mean, item.sd, float(low), float(high), item.n, item.undefined, pooled.get(key)
        )
        for (key, item), (low, high) in zip(aggregates.items(), intervals, strict=True)
    }
    empty = [item for item in counts if item.truth_empty]
    frames = Frames(
        with_lesion=len(counts) - len(empty),
        without_lesion=len(empty),
        missed=sum(not item.truth_empty and item.tp == 0 for item in counts),
        false_alarms=sum(not item.prediction_empty for item in empty),
        correctly_empty=sum(item.prediction_empty for item in empty),
    )
    return MethodScores(folder, tuple(images), metrics, frames)


def _notes(
    methods: Sequence[MethodScores], pairings: Sequence[Pairing], tests: Sequence[PairedTest]
) -> Iterator[str]:
    for method, pairing in zip(methods, pairings, strict=True):
        name = method.folder.name
        undefined = method.metrics["dsc"].undefined
        if undefined:
            yield (
                f"{name}: {undefined} images without lesion and without prediction are undefined for most "
                f"metrics and not in their means; both_empty='perfect' would count them as 100 %."
            )
        missing = [image.files.name for image in method.images if image.files.prediction is None]
        if missing:
            yield f"{name}: {len(missing)} predictions are missing and count as empty masks."
        if pairing.extra:
            first = pairing.extra[0]
            yield f"{name}: {len(pairing.extra)} predictions have no truth and were ignored: {first}, ..."
        thresholded = [image.thresholded for image in method.images if image.thresholded]
        if thresholded:
            yield (
                f"{name}: {len(thresholded)} pairs were not hard masks; the threshold decided "
                f"{sum(thresholded)} pixels."
            )
    excluded = max((test.excluded for test in tests), default=0)
    if excluded:
        yield f"the tests leave out up to {excluded} images on which a method is undefined."
