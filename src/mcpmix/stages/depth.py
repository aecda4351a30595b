"""Stage 1: a depth map for each training image, by a frozen network; cached as 16-bit PNG."""

from pathlib import Path

import torch

from mcpmix.core.artifacts import Artifact, StageKey, workspace
from mcpmix.core.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.runtime import Runtime
from mcpmix.data.arrays import load_arrays
from mcpmix.data.conditions import write_depth
from mcpmix.data.index import DatasetIndex
from mcpmix.models.depth import DepthNetwork
from mcpmix.models.sources import folder_digest, resolve


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the depth maps depend on."""
    settings = {
        "model": config.depth.model,
        "weights": folder_digest(resolve(config.depth.model, "depth")),
        "near": config.depth.near,
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
    records = DatasetIndex.read(dataset / "index.json").part("train")
    with workspace(out, key(config, dataset)) as space:
        todo = [record for record in records if not (space.folder / f"{record.id}.png").exists()]
        network = DepthNetwork(resolve(config.depth.model, "depth"), config.depth.near, runtime.device)
        with progress.track("depth", len(records), len(records) - len(todo)) as advance:
            for start in range(0, len(todo), config.depth.batch_size):
                batch = todo[start : start + config.depth.batch_size]
                with torch.inference_mode():
                    maps = network(load_arrays(batch, config.data.size).images)
                for record, depth in zip(batch, maps, strict=True):
                    write_depth(space.folder / f"{record.id}.png", depth)
                advance(len(batch))
        return space.finish(maps=len(records))
