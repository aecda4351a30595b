"""Stage 2: a ControlNet learns to put the lesion under the mask, on the training split only."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.processes import Processes, join
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_everything
from mcpmix.core.stage_folder import Artifact, StageKey, Workspace, read_artifact, reuse, workspace
from mcpmix.data.cache import Arrays, cache_of, load_arrays
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.leakage import images_of, read_seen, write_seen
from mcpmix.generator.conditions import read_depths
from mcpmix.generator.finetune_steps import (
    CHECKPOINT,
    LOG,
    Networks,
    Trainer,
    TrainingSet,
    build_networks,
    prepare,
    train,
)
from mcpmix.generator.judge import load_judge
from mcpmix.generator.validation import (
    USED,
    HeldOut,
    Validator,
    best_of,
    hold_out,
    judged_by,
    keep_both,
    validations,
)
from mcpmix.networks.depth import DepthNetwork
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.weight_files import folder_digest, resolve

_NOT_IN_KEY = {"save_every", "gradient_checkpointing"}  # the result does not depend on them


def takes_judge(config: Config) -> bool:
    """Whether validation asks the judge of the admission for its alignment score."""
    return config.synthesis.admission.enabled and config.finetune.validation.every > 0


def chosen_by_judge(config: Config) -> bool:
    """Whether the judge says which weights are the best; else it only writes figures into the log."""
    return takes_judge(config) and config.finetune.validation.best_by == "alignment"


def key(config: Config, dataset: Artifact, depth: Artifact, judge: Artifact | None = None) -> StageKey:
    """What the ControlNet depends on.

    The judge is part of it only where it chooses weights: whoever tries other settings of the admission
    should not have to train again for a column of the log.
    """
    settings = {
        "base": config.generator.base,
        "weights": folder_digest(resolve(config.generator.base, "pipeline")),
        "prompt": config.generator.prompt.text,
        "size": config.data.size,
        "precision": config.runtime.precision,
        "finetune": config.finetune.model_dump(mode="json", exclude=_NOT_IN_KEY),
    }
    if config.finetune.start is not None:
        settings["start"] = folder_digest(resolve(config.finetune.start, "control"))
    inputs = {"dataset": dataset.digest, "depth": depth.digest}
    if judge is not None and chosen_by_judge(config):
        inputs["judge"] = judge.digest
    return StageKey("finetune", settings, inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    judge: Artifact | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train the ControlNet; the averaged weights are the result.

    With `finetune.processes` above 1, all processes call this alike; the first one writes.

    Args:
        config: sections `generator`, `finetune` and `data.size`; `depth` for the validation.
        dataset: the data set's artefact; trained on its training part, validated on its validation part.
        depth: the depth maps of the training part.
        judge: scores the alignment of validation images; without, the effect of swapping masks does.
        out: folder of the result.
        runtime: device and precision.
        progress: where to report.

    Raises:
        ConfigError: the number of processes is not the configured one.
        DependencyError: the configured optimiser is not installed.
    """
    if (finished := reuse(out, key(config, dataset, depth, judge), progress)) is not None:
        return finished
    processes = join(config.finetune.processes)
    runtime = processes.place(runtime)
    progress = progress if processes.leads else SILENT
    index = DatasetIndex.read(dataset)
    with _shared_workspace(out, key(config, dataset, depth, judge), processes) as space:
        seed_everything(config.seed, "finetune")
        cache = cache_of(dataset.folder)
        material = _prepare(config, index, cache, depth, runtime, processes.leads)
        if config.finetune.validation.every and material.held_out is None:
            progress.say(
                "finetune: the validation part is empty; nothing is validated, the last weights are used"
            )
        validator = _validator(material, config, space.folder, runtime, judge)
        trainer = Trainer(material.networks, material.examples, config, runtime, processes)
        train(trainer, space.folder, progress, validator)
        if processes.leads:
            facts = _save_result(material, config, space.folder)
            _list_images(config, index, space.folder)
            images = sorted(record.image_sha256 for record in index.part("train"))
            done = space.finish(steps=config.finetune.steps, images=images, **facts)
            (done / CHECKPOINT).unlink()  # last: a kill before this costs nothing
        processes.wait()
    artifact = read_artifact(out)
    assert artifact is not None  # the leader has just written it
    return artifact


@dataclass(frozen=True)
class _Material:
    """What training works with; neither autoencoder nor text encoder are part of it."""

    networks: Networks
    examples: TrainingSet
    held_out: HeldOut | None


def _prepare(
    config: Config, index: DatasetIndex, cache: Path, depth: Artifact, runtime: Runtime, leads: bool
) -> _Material:
    """Encode all that is needed; what only encodes has left memory afterwards."""
    base = load_base(resolve(config.generator.base, "pipeline")).to(runtime.device)
    arrays = load_arrays(index.part("train"), config.data.size, cache)
    examples = prepare(base, arrays, read_depths(depth.folder, arrays.ids), config)
    networks = build_networks(base, config.finetune, runtime)
    held_out = None
    if leads and (chosen := _looked_at(index.part("validation"), config)):
        validation = load_arrays(chosen, config.data.size, cache)
        held_out = hold_out(validation, _depths(validation, config, runtime), base.vae)
    del base
    gc.collect()  # parts of a network may refer to each other in circles
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()
    return _Material(networks, examples, held_out)


def _looked_at(records: list[Record], config: Config) -> list[Record]:
    """The samples to validate on, evenly spread over the part; none if nothing is to be validated."""
    settings = config.finetune.validation
    if not settings.every:
        return []
    count = min(settings.images, len(records))
    return [records[len(records) * number // count] for number in range(count)]


def _depths(arrays: Arrays, config: Config, runtime: Runtime) -> np.ndarray:
    """N,S,S depths of validation images; the depth stage knows the training part only."""
    if config.finetune.condition == "mask":
        return np.zeros(arrays.masks.shape, np.float32)
    network = DepthNetwork(resolve(config.depth.model, "depth"), config.depth.near, runtime.device)
    size = config.depth.batch_size
    return np.concatenate([network(arrays.images[i : i + size]) for i in range(0, len(arrays), size)])


def _validator(
    material: _Material, config: Config, folder: Path, runtime: Runtime, judge: Artifact | None
) -> Validator | None:
    if material.held_out is None:
        return None
    text = material.examples.text[1:]
    score = None if judge is None else judged_by(load_judge(judge.folder, runtime.device))
    return Validator(material.networks, material.held_out, text, config, folder, runtime, score)


def _list_images(config: Config, index: DatasetIndex, folder: Path) -> None:
    """Write which images the ControlNet has seen, also in its start; into its folder too: it may be one."""
    before = [] if config.finetune.start is None else read_seen(resolve(config.finetune.start, "control"))
    images = {image.sha256: image for image in (*before, *images_of(index.part("train")))}
    for place in (folder, folder / USED):
        write_seen(place, list(images.values()))


def _save_result(material: _Material, config: Config, folder: Path) -> dict[str, Any]:
    """Write the weights; facts about them for the manifest."""
    if material.held_out is None:
        material.networks.save(folder / USED)
        return {"used": "last"}
    settings = config.finetune.validation
    keep_both(material.networks, folder, settings.use)
    rows = validations(JsonLines(folder / LOG))
    return {"used": settings.use, "best": best_of(rows, settings), "last": rows[-1]}


@contextmanager
def _shared_workspace(out: Path, stage_key: StageKey, processes: Processes) -> Iterator[Workspace]:
    """The stage's folder; the leader locks and prepares it, all others see it."""
    if not processes.leads:
        processes.wait()
        yield Workspace(out, stage_key)
        return
    with workspace(out, stage_key) as space:
        processes.wait()
        yield space
