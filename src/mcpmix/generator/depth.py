"""Stage 1: depth maps of the training images, by a frozen network; cached as 16-bit PNG.

Where fine-tuning is validated, the validation images that it uses get maps too, and where it begins with
unlabelled images, these. `maps.jsonl` names the image (by the digest of its pixels) and the bytes of every
map: a killed stage keeps complete maps. After a change of the data set, only maps that no earlier folder of
this run has are computed.
"""

import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mcpmix.config import PSEUDO, Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.files import file_digest, written
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, read_artifact, reuse, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, Record, cache_of, load_arrays, training_digest
from mcpmix.data.leakage import SeenImage, images_of
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.networks.depth import DepthNetwork, convention
from mcpmix.networks.weight_files import folder_digest, resolve, source_name

MAPS = "maps.jsonl"
_WHITE = 65535  # of a 16-bit PNG: the nearest point, depth 1
_DECIDES = ("weights", "near", "size")  # settings on which a map depends, apart from its image


def covers_unlabelled(config: Config) -> bool:
    """Whether unlabelled images need maps: where a ControlNet that sees depth begins with them."""
    return config.finetune.start == PSEUDO and config.finetune.condition != "mask"


def key(config: Config, dataset: Artifact, unlabelled: Artifact | None = None) -> StageKey:
    """What the depth maps depend on."""
    folder = resolve(config.depth.model, "depth")
    settings: dict[str, Any] = {
        "model": source_name(config.depth.model),
        "weights": folder_digest(folder),
        "near": convention(folder, config.depth.near),
        "size": config.data.size,
    }
    if config.finetune.validation.every:
        settings["validation images"] = config.finetune.validation.images
    inputs = {"dataset": training_digest(dataset)}
    if unlabelled is not None and covers_unlabelled(config):
        inputs["unlabelled"] = unlabelled.digest
    return StageKey("depth", settings, inputs)


def validation_records(index: DatasetIndex, config: Config) -> list[Record]:
    """The validation images that fine-tuning uses, evenly spread; none if it is not validated."""
    records, settings = index.part("validation"), config.finetune.validation
    count = min(settings.images, len(records)) if settings.every else 0
    return [records[len(records) * number // count] for number in range(count)]


def run(
    config: Config,
    dataset: Artifact,
    unlabelled: Artifact | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Compute the maps that are missing."""
    stage_key = key(config, dataset, unlabelled)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    index, cache = DatasetIndex.read(dataset), cache_of(dataset.folder)
    parts: dict[str, Sequence[SeenImage]] = {
        "train": images_of(index.part("train")),
        "validation": images_of(validation_records(index, config)),
    }
    pool = None
    if unlabelled is not None and covers_unlabelled(config):
        pool = Unlabelled.read(unlabelled)
        parts["unlabelled"] = pool.seen
    with workspace(out, stage_key) as space:
        log = JsonLines(space.folder / MAPS)
        log.rewrite(row for row in log.rows() if _intact(space.folder / f"{row['id']}.png", row["sha256"]))
        reused = _take_over([image for part in parts.values() for image in part], out, stage_key, log)
        done, count = {row["id"] for row in log.rows()}, sum(map(len, parts.values()))
        if len(done) < count:
            network = DepthNetwork(resolve(config.depth.model, "depth"), config.depth.near, runtime.device)
            with progress.track("depth", count, len(done)) as advance:
                for name, part in parts.items():
                    if not part:
                        continue
                    if pool is not None and name == "unlabelled":
                        ids, images = pool.ids, pool.images
                    else:
                        arrays = load_arrays(index.part(name), config.data.size, cache, progress)
                        ids, images = arrays.ids, arrays.images
                    row_of = {each: row for row, each in enumerate(ids)}
                    for start in range(0, len(part), config.depth.batch_size):
                        batch = part[start : start + config.depth.batch_size]
                        pixels = images[[row_of[image.id] for image in batch]]
                        advance(_compute(network, batch, pixels, done, log))
        return space.finish(maps=count, reused=reused)


def read_depths(folder: Path, ids: Sequence[str]) -> np.ndarray:
    """N,H,W float32 depth maps in [0, 1] of the samples with these ids."""
    maps = []
    for name in ids:
        path = folder / f"{name}.png"
        try:
            with Image.open(path) as image:
                maps.append(np.asarray(image, dtype=np.float32) / _WHITE)
        except OSError as error:
            raise DataError(
                f"Cannot read the depth map {path}: {error}. Delete the depth folder to redo it."
            ) from error
    return np.stack(maps)


def _compute(
    network: Callable[[np.ndarray], np.ndarray],
    batch: Sequence[SeenImage],
    pixels: Pixels,
    done: Container[str],
    log: JsonLines,
) -> int:
    """Compute and write the missing maps of a batch; returns how many.

    Networks round differently at different batch sizes. So a batch cut short by a kill is computed as a whole
    again, and none spans two parts: every map is that of an uninterrupted run, to the last bit.
    """
    missing = [place for place, image in enumerate(batch) if image.id not in done]
    if missing:
        with torch.inference_mode():
            maps = network(pixels)
        for place in missing:
            image, path = batch[place], log.path.parent / f"{batch[place].id}.png"
            write_png(path, np.round(maps[place] * _WHITE).astype(np.uint16))
            log.append(id=image.id, image_sha256=image.sha256, sha256=file_digest(path))
    return len(missing)


def _intact(path: Path, digest: str) -> bool:
    return path.exists() and file_digest(path) == digest


def _take_over(images: Sequence[SeenImage], out: Path, stage_key: StageKey, log: JsonLines) -> int:
    """Copy maps of the same images from earlier folders of this run; returns how many were copied."""
    done = {row["id"] for row in log.rows()}
    missing = [image for image in images if image.id not in done]
    known = _earlier_maps(out, stage_key.settings) if missing else {}
    copied = 0
    for image in missing:
        path, digest = known.get(image.sha256, (None, ""))
        if path is not None and _intact(path, digest):
            place = log.path.parent / f"{image.id}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            with written(place) as temporary:
                shutil.copyfile(path, temporary)
            log.append(id=image.id, image_sha256=image.sha256, sha256=digest)
            copied += 1
    return copied


def _earlier_maps(out: Path, settings: Mapping[str, Any]) -> dict[str, tuple[Path, str]]:
    """File and digest of each map made with the same weights, convention and size, by its image's digest."""
    found: dict[str, tuple[Path, str]] = {}
    for folder in (*sorted((out.parent / "superseded").glob(f"{out.name}-*")), out):
        try:
            artifact = read_artifact(folder)
        except StorageError:  # a damaged folder has nothing to give
            continue
        before = artifact.manifest["key"]["settings"] if artifact else {}
        if artifact and all(before.get(name) == settings[name] for name in _DECIDES):
            for row in JsonLines(artifact / MAPS).rows():
                found[row["image_sha256"]] = (artifact / f"{row['id']}.png", row["sha256"])
    return found
