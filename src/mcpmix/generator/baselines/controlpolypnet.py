"""ControlPolypNet: a ControlNet fills a region that was painted white, in real surroundings.

As published: the condition is the image with its mask painted white, the target the image itself, the decoder
of the base learns too, and what a detector does not confirm is dropped. Adapted: the run's base, steps and
sampling in place of Stable Diffusion 1.5 for 55 epochs and 50 steps at guidance 9; the run's judge in place
of YOLOv8; and where lesion-free images are fewer than training images, the latter serve as surroundings too.
Their own lesion is then painted over as well: another outline is put on its place, and both together are the
label.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.pixels import Pixels, as_images, as_pixels
from mcpmix.core.processes import Processes
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.core.stage_folder import Artifact, StageKey
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator.adapt import Pool
from mcpmix.generator.baselines.labelled_set import (
    CANDIDATES,
    Draw,
    Drawn,
    Real,
    Sources,
    make_set,
    sampling_of,
    set_key,
    steps_of,
)
from mcpmix.generator.counterparts import CONTROLNET
from mcpmix.generator.finetune_trainer import Trainer, build_networks, prepare, train, turn
from mcpmix.generator.judge import load_judge
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import load_generator
from mcpmix.networks.weight_files import resolve

METHOD = "controlpolypnet"
_LEARNING = {
    *("batch_size", "accumulation", "processes", "learning_rate", "decoder_learning_rate", "warmup_steps"),
    *("ema_decay", "prompt_dropout", "min_snr_gamma", "augment", "optimiser"),
}
_COLOURS = 3
_JUDGED = 64  # unlabelled images that the judge sees at once


def key(config: Config, sources: Sources) -> StageKey:
    """What the set depends on."""
    return set_key(METHOD, config, _read(config, sources), _LEARNING)


def run(
    config: Config, sources: Sources, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Train the ControlNet and paint lesions with it."""
    inputs = config, _read(config, sources), train_painter
    return make_set(key(config, sources), *inputs, out, runtime, progress, in_real=True)


def _read(config: Config, sources: Sources) -> Sources:
    """What of the sources is read: unlabelled images only where a judge can say which are lesion-free."""
    unlabelled = sources.unlabelled if sources.judge is not None else None
    judged = config.synthesis.admission.enabled or unlabelled is not None
    return Sources(sources.dataset, unlabelled, sources.judge if judged else None)


@dataclass(frozen=True)
class Surroundings:
    """Real images that lesions are painted into: some of the training images, then some unlabelled ones."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]  # empty where an image is not of the training part
    images: Pool  # N,S,S,3
    rows: tuple[int, ...]  # those of the N images that are used


def paint(images: Tensor, masks: Tensor) -> Tensor:
    """Images B,3,H,W in [0, 1] whose pixels under the masks B,H,W are white."""
    return torch.where(masks[:, None] > 0, torch.ones_like(images), images)


def train_painter(
    config: Config, sources: Sources, real: Real, folder: Path, runtime: Runtime, progress: Progress
) -> Draw:
    """Train on painted training images; the result paints lesions into surroundings."""
    # Colours stay as they are: the condition shows them. Surroundings are to be copied, so no place of an
    # image counts more than another.
    settings = config.finetune.model_copy(
        update={
            "start": None,
            "steps": steps_of(config),
            "accumulation": config.finetune.accumulation * config.finetune.processes,
            "unlock_decoder": True,
            "colour": 0.0,
            "lesion_weight": 1.0,
        }
    )
    tuned = config.model_copy(update={"finetune": settings})
    base, arrays = resolve(config.generator.base, "pipeline"), real.arrays
    loaded = load_base(base).to(runtime.device)
    depths = np.broadcast_to(np.float32(0), arrays.masks.shape)
    examples = prepare(loaded, arrays, depths, tuned, progress=progress)
    painted = paint(as_images(arrays.images), torch.from_numpy(np.array(arrays.masks)))
    examples = replace(examples, conditions=painted, dropout=(0.0,) * _COLOURS)
    networks = build_networks(loaded, settings, runtime, conditions=_COLOURS)
    train(Trainer(networks, examples, tuned, runtime, Processes()), folder, progress, title=METHOD)
    networks.save(folder / CONTROLNET)
    generator = load_generator(load_base(base).to(runtime.device), folder / CONTROLNET)
    places, how = find_surroundings(sources, real, runtime, progress), sampling_of(config)

    def draw(seeds: Sequence[int], prompts: Sequence[str]) -> Drawn:
        chosen = [place_lesion(real, places, seed) for seed in seeds]
        rows, masks, origins = zip(*chosen, strict=True)
        labels = np.stack(masks)
        shown = paint(as_images(places.images[np.array(rows)]), torch.from_numpy(labels))
        images = as_pixels(generator.sample(shown, prompts, seeds, how))
        return Drawn(images, labels, origins, [places.groups[row] for row in rows])

    return draw


def find_surroundings(sources: Sources, real: Real, runtime: Runtime, progress: Progress) -> Surroundings:
    """Lesion-free images: of the training part, and unlabelled ones in which the judge finds nothing.

    Where they are fewer than the training images, all training images are surroundings too.
    """
    arrays, records = real.arrays, real.records
    ids, groups, images = arrays.ids, tuple(record.group for record in records), Pool(arrays.images)
    free = [row for row, mask in enumerate(arrays.masks) if not mask.any()]
    more: list[int] = []
    if sources.unlabelled is not None and sources.judge is not None:
        pool, judge = Unlabelled.read(sources.unlabelled), load_judge(sources.judge.folder, runtime.device)
        for start in range(0, len(pool.ids), _JUDGED):
            found = judge.answers(pool.images[start : start + _JUDGED]).max(axis=(0, 2, 3)) > 0.5
            more += [len(arrays) + start + place for place, lesion in enumerate(found) if not lesion]
        ids, groups = (*ids, *pool.ids), (*groups, *[""] * len(pool.ids))
        images = Pool(arrays.images, pool.images)
    enough = len(free) + len(more) >= len(arrays)
    kept = free if enough else list(range(len(arrays)))
    progress.say(
        f"{METHOD}: surroundings are {len(free)} training images and {len(more)} unlabelled ones without a "
        f"lesion, and {len(kept) - len(free)} training images whose lesion is painted over"
    )
    return Surroundings(ids, groups, images, (*kept, *more))


def place_lesion(real: Real, places: Surroundings, seed: int) -> tuple[int, Pixels, dict[str, str]]:
    """Surroundings, the mask S,S that is painted into them, and where both come from.

    The outline is that of another training image, turned or mirrored. On surroundings with a lesion of their
    own it is moved there, and both are painted.
    """
    from scipy import ndimage

    rng, arrays = numpy_rng("place", seed), real.arrays
    row = int(rng.choice(places.rows))
    own = arrays.masks[row] if row < len(arrays) else np.zeros(arrays.masks.shape[1:], np.uint8)
    lesions = [place for place, mask in enumerate(arrays.masks) if mask.any()]
    others = [place for place in lesions if place != row] or lesions
    for _ in range(CANDIDATES):
        other, view = int(rng.choice(others)), int(rng.integers(8))
        mask = turn(torch.from_numpy(np.array(arrays.masks[other])), view).numpy()
        if own.any():
            move = np.subtract(ndimage.center_of_mass(own), ndimage.center_of_mass(mask))
            mask = np.maximum(own, ndimage.shift(mask, np.round(move), order=0))
        if not real.degenerate(mask):
            break
    return row, mask, {"mask": f"{arrays.ids[other]}, view {view}", "surroundings": places.ids[row]}
