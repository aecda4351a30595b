"""Stage 2: a ControlNet learns to put the lesion under the mask, on the training part only."""

import gc
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError
from mcpmix.core.processes import Processes, join
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_everything
from mcpmix.core.stage_folder import Artifact, StageKey, Workspace, read_artifact, reuse, workspace
from mcpmix.data.index import Arrays, DatasetIndex, cache_of, load_arrays, training_digest
from mcpmix.data.leakage import images_of, read_seen, write_seen
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator.conditions import DepthMaps, Depths
from mcpmix.generator.counterparts import CONTROLNET, Looks
from mcpmix.generator.depth import read_depths, validation_records
from mcpmix.generator.distil import SCRATCH, distil, distil_key
from mcpmix.generator.finetune_trainer import (
    CHECKPOINT,
    Networks,
    Trainer,
    TrainingSet,
    build_networks,
    prepare,
    train,
)
from mcpmix.generator.judge import load_judge
from mcpmix.generator.pseudo import read_pseudo
from mcpmix.generator.validation import HeldOut, Validator
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.weight_files import folder_digest, resolve, source_name

_LATENTS = "latents"  # of all views, until the stage is finished
_NOT_IN_KEY = {"save_every", "gradient_checkpointing"}  # the result does not depend on them


class Marked(NamedTuple):
    """Unlabelled images, and their pseudo-masks."""

    unlabelled: Artifact
    pseudo: Artifact


def key(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    judge: Artifact | None = None,
    marked: Marked | None = None,
) -> StageKey:
    """What the ControlNet depends on.

    The judge is part of it only where it chooses weights: whoever tries other settings of the admission
    should not have to train again for a column of the log.
    """
    inputs = {"dataset": training_digest(dataset), "depth": depth.digest}
    settings: dict[str, Any] = {
        "weights": folder_digest(resolve(config.generator.base, "pipeline")),
        "prompt": config.generator.prompt.text,
        "size": config.data.size,
        "precision": config.runtime.precision,
        "finetune": config.finetune.model_dump(mode="json", exclude=_NOT_IN_KEY),
        **({"labels": config.data.labels} if config.data.classes else {}),
        **distil_key(config),
    }
    if marked is not None:
        inputs["pseudo"] = marked.pseudo.digest
    if (start := config.finetune.start_weights) is not None:
        settings["start"] = folder_digest(resolve(start, "control"))
        settings["finetune"]["start"] = source_name(start)
    validation = config.finetune.validation
    if judge is not None and validation.every > 0 and validation.best_by == "alignment":
        inputs["judge"] = judge.digest
    return StageKey("finetune", settings, inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    judge: Artifact | None,
    marked: Marked | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train the ControlNet; the averaged weights are the result.

    With `finetune.processes` above 1, all processes call this alike; the first one writes.

    Args:
        judge: scores the alignment of validation images; without, the effect of swapping masks does.
        marked: what `start: pseudo` begins with.

    Raises:
        ConfigError: the number of processes is not the configured one.
        DependencyError: the configured optimiser is not installed.
    """
    stage_key = key(config, dataset, depth, judge, marked)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    processes = join(config.finetune.processes)
    runtime = processes.place(runtime)
    progress = progress if processes.leads else SILENT
    index = DatasetIndex.read(dataset)
    with _shared_workspace(out, stage_key, processes) as space:
        seed_everything(config.seed, "finetune")
        pool, more = None, None
        if marked is not None:
            pool = Unlabelled.read(marked.unlabelled)
            more = read_pseudo(marked.pseudo, pool)
            if not len(more):
                raise DataError(
                    "finetune.start: pseudo, but no unlabelled image has a lesion on which the networks of "
                    "the judge agree. Lower pseudo.agreement, add unlabelled images, or set finetune.start."
                )
        digests = {record.id: record.image_sha256 for record in index.part("train")}
        digests |= {image.id: image.sha256 for image in (pool.seen if pool else ())}
        networks, examples, first, held_out = _encode(
            config, index, dataset, depth, more, digests, runtime, processes.leads, progress, space.folder
        )
        validator = None
        if held_out is None and config.finetune.validation.every:
            progress.say(
                "finetune: the validation part is empty; nothing is validated, the last weights are used"
            )
        elif held_out is not None:
            trust = config.synthesis.admission.judge.network
            trained = None if judge is None else load_judge(judge.folder, runtime.device, trust=trust)
            validator = Validator(
                networks, held_out, examples.text[1:2], config, space.folder, runtime, trained
            )
        trainer = Trainer(networks, examples, config, runtime, processes, first)
        train(trainer, space.folder, progress, validator)
        if processes.leads:
            facts: dict[str, Any] = {"used": "last"}
            if validator is None:
                networks.save(space.folder / CONTROLNET)
            else:
                facts = validator.save_result()
            del trainer, validator, networks  # with the state of the optimiser
            few = distil(config, examples.conditions, space.folder, runtime, progress)
            start, records = config.finetune.start_weights, index.part("train")
            started = [] if start is None else read_seen(resolve(start, "control"))
            before = started if pool is None else pool.seen
            seen = {image.sha256: image for image in (*before, *images_of(records))}
            for place in (space.folder, space.folder / CONTROLNET, *few):  # may be copied, or be starts
                write_seen(place, list(seen.values()))
            images = sorted(record.image_sha256 for record in records)
            shutil.rmtree(space.folder / _LATENTS, ignore_errors=True)
            steps = config.finetune.first_steps + config.finetune.steps
            space.finish(CHECKPOINT, *SCRATCH, steps=steps, images=images, **facts)
        processes.wait()
    artifact = read_artifact(out)
    assert artifact is not None  # the leader has just written it
    return artifact


def _encode(
    config: Config,
    index: DatasetIndex,
    dataset: Artifact,
    depth: Artifact,
    more: Arrays | None,
    digests: Mapping[str, str],
    runtime: Runtime,
    leads: bool,
    progress: Progress,
    out: Path,
) -> tuple[Networks, TrainingSet, TrainingSet | None, HeldOut | None]:
    """All that training works with; autoencoder and text encoder have left memory afterwards.

    Args:
        more: unlabelled images with pseudo-masks, which training begins with.
        digests: of all images, by id.
    """
    size, cache = config.data.size, cache_of(dataset.folder)
    folder = resolve(config.generator.base, "pipeline")
    base, looks = load_base(folder).to(runtime.device), Looks.read(folder)
    sets: list[TrainingSet] = []
    for arrays in (load_arrays(index.part("train"), size, cache), more):
        if arrays is not None:
            words = [looks.words(digests[name]) for name in arrays.ids] if looks else []
            if config.finetune.condition == "mask":  # unlabelled images have no depth maps then
                depths: Depths = np.broadcast_to(np.float32(0), arrays.masks.shape)
            else:
                depths = DepthMaps(depth.folder, arrays.ids)
            kept = out / _LATENTS / f"{len(sets)}.f32" if leads else None
            sets.append(prepare(base, arrays, depths, config, words, progress, kept))
    examples, first = sets[0], sets[1] if more is not None else None
    networks = build_networks(base, config.finetune, runtime)
    held_out = None
    if leads and (chosen := validation_records(index, config)):
        held = load_arrays(index.part("validation"), size, cache)
        arrays = held.take([record.id for record in chosen])
        depths = read_depths(depth.folder, arrays.ids)
        held_out = HeldOut.encode(arrays, depths, base.vae, config.data.labels)
    del base
    gc.collect()  # parts of a network may form reference cycles
    torch.cuda.empty_cache()  # nothing without CUDA
    return networks, examples, first, held_out


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
