"""Scores of a segmenter on the test images, at their own size; those of the part `known` by themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError
from mcpmix.core.files import write_json
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, Record, changed_files, whole_digest
from mcpmix.data.leakage import LeakSearch, SeenImage, images_of, leak_text, read_seen, seen_by_generator
from mcpmix.data.sample import read_image, read_mask
from mcpmix.data.splits import KNOWN
from mcpmix.data.tables import write_csv
from mcpmix.generator.few_steps import seen_by_lora
from mcpmix.metrics import (
    Counts,
    mean_over_classes,
    region_scores,
    score_classes,
    score_with_counts,
    summarise,
)
from mcpmix.networks.weight_files import resolve
from mcpmix.segmenter.model_card import write_scored_card
from mcpmix.segmenter.predict import Predictor, load_segmenter

_LOG = "scores.jsonl"  # while it runs; scores.csv is the result
_PREDICTIONS = "predictions"
TESTED = {"test": "", KNOWN: "-known"}  # parts that are scored: scores.csv and scores-known.csv


def key(config: Config, dataset: Artifact, segmenter: Artifact) -> StageKey:
    """What the scores depend on."""
    inputs = {"dataset": whole_digest(dataset), "segmenter": segmenter.digest}
    return StageKey("evaluate", config.evaluation.model_dump(mode="json"), inputs)


def run(
    config: Config,
    dataset: Artifact,
    segmenter: Artifact,
    generator: Artifact | None,
    search: LeakSearch | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Predict, write the masks, score them. A killed evaluation resumes after the last image it scored.

    Args:
        generator: the one whose pairs the segmenter saw, if any.
        search: what `search_leaks` returned. Networks that list other images than it knows are searched here.

    Raises:
        DataError: the segmenter, generator or base has seen test images or near-duplicates of them, or a
            test image has changed since it was indexed.
    """
    index = DatasetIndex.read(dataset)
    records = [record for record in index.records if record.split in TESTED]
    seen = {"the segmenter": read_seen(segmenter.folder) or _trained_on(index)}
    if generator is not None:
        base = resolve(config.generator.base, "pipeline")
        seen |= seen_by_generator(generator.folder, generator.manifest["counts"]["images"], base)
    # Lists that travel have no names and only prints; what the index knows is compared by its look.
    known = {image.sha256: image for image in images_of(index.records)}
    seen = {who: [known.get(image.sha256, image) for image in images] for who, images in seen.items()}
    leaks = _leaks(config, dataset, search or LeakSearch(images_of(records)), seen)
    with workspace(out, key(config, dataset, segmenter)) as space:
        log = JsonLines(space.folder / _LOG)
        done = _finished(log, records, space.folder)
        predictor = load_segmenter(segmenter.folder, runtime.device, trust=config.segmenter.name)
        (space.folder / _PREDICTIONS).mkdir(exist_ok=True)
        trained = predictor.description
        title = f"evaluate {trained.get('arm', '')} seed {trained.get('seed', '')}"
        with progress.track(title, len(records), len(done)) as advance:
            for record in records[len(done) :]:
                done.append({"id": record.id, **_score(config, record, predictor, space.folder)})
                log.append(**done[-1])
                advance()
        summaries, facts = {}, {}
        for part in dict.fromkeys(record.split for record in records):
            rows = [row for row, record in zip(done, records, strict=True) if record.split == part]
            summaries[part] = _write_scores(space.folder, TESTED[part], rows, config.data.classes)
            facts[part] = {"images": len(rows), "dsc": summaries[part]["dsc"]["mean"]}
        write_scored_card(space.folder, segmenter.folder, summaries)
        log.path.unlink()
        marks = {"leaks": leaks} if leaks else {}
        return space.finish(**facts.pop("test"), **facts, **marks)


def search_leaks(config: Config, dataset: Artifact, *, with_generator: bool) -> LeakSearch:
    """Search the test images among all that the networks of a run will see, before hours of training.

    Raises:
        DataError: some of them, or near-duplicates, were seen, and the user has not asked for such figures.
    """
    index = DatasetIndex.read(dataset)
    seen = {"the segmenter": _trained_on(index)}
    if with_generator:
        seen["the generator's base"] = read_seen(resolve(config.generator.base, "pipeline"))
        if (start := config.finetune.start_weights) is not None:
            seen["the generator's start"] = read_seen(resolve(start, "control"))
        seen |= seen_by_lora(config)
    search = LeakSearch(images_of(record for record in index.records if record.split in TESTED))
    _leaks(config, dataset, search, seen)
    return search


def _trained_on(index: DatasetIndex) -> list[SeenImage]:
    return images_of([*index.part("train"), *index.part("validation")])


def _leaks(
    config: Config, dataset: Artifact, search: LeakSearch, seen_by: Mapping[str, list[SeenImage]]
) -> str:
    """Why the figures will be too good; an error unless the user asked for such figures by name."""
    # A split that is known to leak was asked for by its name, and every table says so.
    asked = config.evaluation.seen == "mark" or bool(dataset.manifest["counts"].get("leaks"))
    remedy = " To score them anyway, with a mark in every table, set evaluation.seen=mark:"
    return leak_text(search, seen_by, refuse=not asked, remedy=remedy)


def _finished(log: JsonLines, records: list[Record], folder: Path) -> list[dict[str, Any]]:
    """Rows of the leading images that a killed run has finished; the log is cut to them."""
    kept = []
    for row, record in zip(log.rows(), records, strict=False):
        if row["id"] != record.id or not (folder / _PREDICTIONS / f"{record.id}.png").exists():
            break
        kept.append(row)
    log.rewrite(kept)
    return kept


def _write_scores(
    folder: Path, ending: str, rows: list[dict[str, Any]], classes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Write the scores of the images of a part and their summary, which is returned.

    With several classes these are the means over them, and the scores of each are written too.
    """
    write_csv(folder / f"scores{ending}.csv", [{"id": row["id"], **row["scores"]} for row in rows])
    by_class = {name: [row["classes"][name] for row in rows] for name in classes} or {"": rows}
    sums = [
        sum((Counts(**row["counts"]) for row in found), Counts(0, 0, 0, 0)) for found in by_class.values()
    ]
    pooled = [region_scores(counts) for counts in sums]
    if classes:
        each = zip(by_class.items(), pooled, strict=True)
        write_json(folder / f"classes{ending}.json", {n: _summary(found, both) for (n, found), both in each})
        write_csv(
            folder / f"scores-classes{ending}.csv",
            [
                {"id": row["id"], "class": name, **row["classes"][name]["scores"]}
                for row in rows
                for name in classes
            ],
        )
    summary = _summary(rows, mean_over_classes(pooled, sums))
    write_json(folder / f"summary{ending}.json", summary)
    return summary


def _summary(rows: list[dict[str, Any]], pooled: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Each metric over all images; and of all their pixels, for metrics that have that."""
    summary = {name: asdict(value) for name, value in summarise([row["scores"] for row in rows]).items()}
    for name, value in pooled.items():
        summary[name]["pooled"] = value
    return summary


def _score(config: Config, record: Record, predictor: Predictor, folder: Path) -> dict[str, Any]:
    """Predict one image, keep the mask; its scores and pixel counts, with several classes those of each."""
    settings = config.evaluation
    image, truth = read_image(record.image), read_mask(record.mask, record.labels)
    if problems := changed_files(record, image, truth):
        raise DataError(
            f"{' '.join(problems)} Restore it, or delete the run's folder dataset to rebuild the index."
        )
    prediction = predictor.mask(predictor.predict(image), settings.threshold)
    write_png(folder / _PREDICTIONS / f"{record.id}.png", predictor.grey_levels(prediction))
    lengths = settings.tolerances, settings.band
    if classes := config.data.classes:
        scored = score_classes(truth, prediction, classes, *lengths)
        each = {n: {"scores": scored.classes[n], "counts": asdict(scored.counts[n])} for n in classes}
        return {"scores": scored.mean, "classes": each}
    scores, counts = score_with_counts(truth.astype(bool), prediction.astype(bool), *lengths)
    return {"scores": scores, "counts": asdict(counts)}
