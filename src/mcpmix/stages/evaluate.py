"""Scores a segmenter on the test split, at the images' own size."""

import csv
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from mcpmix.core.artifacts import Artifact, StageKey, workspace, write_json
from mcpmix.core.config import Config
from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.runtime import Runtime
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.sample import read_image, read_mask
from mcpmix.inference import load_segmenter
from mcpmix.metrics import score, summarise
from mcpmix.reporting.model_card import complete_card


def key(config: Config, dataset: Artifact, segmenter: Artifact) -> StageKey:
    """What the scores depend on."""
    return StageKey(
        "evaluate",
        config.evaluation.model_dump(mode="json"),
        {"dataset": dataset.digest, "segmenter": segmenter.digest},
    )


def run(
    config: Config,
    dataset: Artifact,
    segmenter: Artifact,
    out: Path,
    runtime: Runtime,
    generator: Artifact | None = None,
    progress: Progress = SILENT,
) -> Artifact:
    """Predict, write the masks, score them.

    Args:
        config: section `evaluation`.
        dataset: the data set's artefact; its test part is read.
        segmenter: a trained segmenter.
        out: folder of the result.
        runtime: device to run on.
        generator: the generator whose pairs the segmenter saw, if any; it must not have seen a test image.
        progress: where to report.
    """
    records = DatasetIndex.read(dataset / "index.json").part("test")
    _refuse_seen(records, generator)
    with workspace(out, key(config, dataset, segmenter)) as space:
        predictor = load_segmenter(segmenter.folder, runtime.device)
        (space.folder / "predictions").mkdir(exist_ok=True)
        rows = []
        with progress.track("evaluate", len(records)) as advance:
            for record in records:
                prediction = predictor.predict(read_image(record.image)) >= config.evaluation.threshold
                path = space.folder / "predictions" / f"{record.id}.png"
                Image.fromarray(prediction.astype(np.uint8) * 255).save(path)
                rows.append(_scores(config, record, prediction))
                advance()
        _write_csv(space.folder / "scores.csv", [r.id for r in records], rows)
        summary = summarise(rows)
        written = {name: asdict(value) for name, value in summary.items()}
        write_json(space.folder / "summary.json", written)
        complete_card(segmenter.folder, written)
        return space.finish(images=len(records), dsc=summary["dsc"].mean)


def _scores(config: Config, record: Record, prediction: np.ndarray) -> dict[str, float]:
    settings = config.evaluation
    truth = read_mask(record.mask).astype(bool)
    return score(truth, prediction, tolerances=settings.tolerances, band=settings.band)


def _refuse_seen(records: list[Record], generator: Artifact | None) -> None:
    """A generator that saw a test image makes every figure of its segmenters worthless."""
    seen = set(generator.manifest["counts"]["images"]) if generator is not None else set()
    leaks = [record.id for record in records if record.image_sha256 in seen]
    if leaks:
        raise DataError(
            bullet_list(f"{len(leaks)} test images were used to train the generator; split anew:", leaks)
        )


def _write_csv(path: Path, ids: list[str], rows: list[dict[str, float]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", *rows[0]])
        writer.writeheader()
        writer.writerows({"id": name, **row} for name, row in zip(ids, rows, strict=True))
