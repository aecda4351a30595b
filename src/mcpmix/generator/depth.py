"""Stage 1: a depth map for each training image, by a frozen network; cached as 16-bit PNG.

`maps.jsonl` names the image (by digest of its pixels) and the bytes of every map. So a killed stage keeps
what is whole, and a changed data set computes only what no earlier folder of this run has.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import StorageError
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, file_digest, read_artifact, reuse, workspace
from mcpmix.data.cache import Arrays, cache_of, load_arrays
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.generator.conditions import write_depth
from mcpmix.networks.depth import DepthNetwork, convention
from mcpmix.networks.weight_files import folder_digest, resolve

MAPS = "maps.jsonl"
_DECIDES = ("weights", "near", "size")  # settings on which a map depends, beside its image


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the depth maps depend on."""
    folder = resolve(config.depth.model, "depth")
    settings = {
        "model": config.depth.model,
        "weights": folder_digest(folder),
        "near": convention(folder, config.depth.near),
        "size": config.data.size,
    }
    return StageKey("depth", settings, {"dataset": dataset.digest})


def run(
    config: Config, dataset: Artifact, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Compute the maps that are not there yet.

    Args:
        config: sections `depth` and `data.size`.
        dataset: the data set's artefact.
        out: folder of the result.
        runtime: device to run on.
        progress: where to report.
    """
    records = DatasetIndex.read(dataset).part("train")
    stage_key = key(config, dataset)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    with workspace(out, stage_key) as space:
        log = JsonLines(space.folder / MAPS)
        log.rewrite(_whole(log.rows(), space.folder))
        reused = _take_over(records, out, stage_key, space.folder, log)
        done = {row["id"] for row in log.rows()}
        if len(done) < len(records):
            arrays = load_arrays(records, config.data.size, cache_of(dataset.folder), progress)
            _compute(records, arrays, config, space.folder, log, runtime, progress)
        return space.finish(maps=len(records), reused=reused)


def _compute(
    records: Sequence[Record],
    arrays: Arrays,
    config: Config,
    folder: Path,
    log: JsonLines,
    runtime: Runtime,
    progress: Progress,
) -> None:
    """Compute what is missing, in batches that do not depend on it.

    Networks round differently at different batch sizes: a batch cut short by a kill is computed as a whole
    again, so that every map is that of an uninterrupted run, to the last bit.
    """
    network = DepthNetwork(resolve(config.depth.model, "depth"), config.depth.near, runtime.device)
    done = {row["id"] for row in log.rows()}
    with progress.track("depth", len(records), len(done)) as advance:
        for start in range(0, len(records), config.depth.batch_size):
            places = range(start, min(start + config.depth.batch_size, len(records)))
            missing = [place for place in places if records[place].id not in done]
            if not missing:
                continue
            with torch.inference_mode():
                maps = network(arrays.images[places.start : places.stop])
            for place in missing:
                record, path = records[place], folder / f"{records[place].id}.png"
                write_depth(path, maps[place - start])
                log.append(id=record.id, image_sha256=record.image_sha256, sha256=file_digest(path))
            advance(len(missing))


def _whole(rows: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Rows whose maps are there, to the last bit."""
    return [row for row in rows if _intact(folder / f"{row['id']}.png", row["sha256"])]


def _intact(path: Path, digest: str) -> bool:
    return path.exists() and file_digest(path) == digest


def _take_over(
    records: Sequence[Record], out: Path, stage_key: StageKey, folder: Path, log: JsonLines
) -> int:
    """Copy maps of the same images from earlier folders of this run; how many were copied."""
    done = {row["id"] for row in log.rows()}
    missing = [record for record in records if record.id not in done]
    known = _earlier_maps(out, stage_key.settings) if missing else {}
    copied = 0
    for record in missing:
        path, digest = known.get(record.image_sha256, (None, ""))
        if path is not None and _intact(path, digest):
            temporary = folder / f"{record.id}.png.tmp"
            shutil.copyfile(path, temporary)
            temporary.replace(folder / f"{record.id}.png")
            log.append(id=record.id, image_sha256=record.image_sha256, sha256=digest)
            copied += 1
    return copied


def _earlier_maps(out: Path, settings: Mapping[str, Any]) -> dict[str, tuple[Path, str]]:
    """File and digest of each map made with the same weights, convention and size, by its image's digest."""
    found: dict[str, tuple[Path, str]] = {}
    for artifact in _earlier(out):
        before = artifact.manifest["key"]["settings"]
        if all(before.get(name) == settings[name] for name in _DECIDES):
            for row in JsonLines(artifact / MAPS).rows():
                found[row["image_sha256"]] = (artifact / f"{row['id']}.png", row["sha256"])
    return found


def _earlier(out: Path) -> Iterator[Artifact]:
    for folder in (*sorted((out.parent / "superseded").glob(f"{out.name}-*")), out):
        try:
            artifact = read_artifact(folder)
        except StorageError:  # a damaged folder has nothing to give
            continue
        if artifact is not None:
            yield artifact
