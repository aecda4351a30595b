"""GenSRRFI: first a mask from a small diffusion model of masks, then an image under it.

As published: a diffusion model without condition draws masks, a second one draws an image under each; the
drawn mask is the label. Adapted: masks of lesions in place of vessels, degenerate ones are dropped; images
come from the run's own ControlNet, with an empty depth channel, for a drawn mask has no depth map; the third
model of the paper, which enlarges images, is left out, since the run's base works at full size.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError
from mcpmix.core.pixels import Pixels, as_pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, seed_for, torch_rng
from mcpmix.core.stage_folder import Artifact, StageKey
from mcpmix.core.training import fit, plateau
from mcpmix.generator.baselines.labelled_set import (
    CANDIDATES,
    Draw,
    Drawn,
    Real,
    Sources,
    batch_of,
    make_set,
    sampling_of,
    set_key,
    steps_of,
)
from mcpmix.generator.conditions import condition
from mcpmix.generator.counterparts import CONTROLNET
from mcpmix.generator.finetune_trainer import turn
from mcpmix.networks.diffusion import load_base, noise_schedule
from mcpmix.networks.generator import load_generator
from mcpmix.networks.mask_diffusion import draw_masks, enlarged, mask_scheduler, new_mask_unet
from mcpmix.networks.weight_files import resolve

METHOD = "gensrrfi"
_LEARNING = {"batch_size", "accumulation", "processes", "ema_decay"}
_LARGEST_SIDE, _SHRINK = 64, 4  # of the masks that are learnt; they are enlarged smoothly
_RATE = 1e-3  # of a network of a million parameters from scratch, whatever the base's rate is
_STEPS = 25  # in which a mask is drawn


def key(config: Config, sources: Sources) -> StageKey:
    """What the set depends on."""
    return set_key(METHOD, config, _read(config, sources), _LEARNING)


def run(
    config: Config, sources: Sources, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Train the model of masks, draw masks, and images under them with the run's generator.

    Raises:
        ConfigError: the run's generator does not see masks.
    """
    if config.finetune.condition == "depth":
        raise ConfigError(
            "train.arms: gensrrfi draws images under masks, which the generator does not see with "
            "finetune.condition: depth. Set it to mask or both, or leave this arm out."
        )
    inputs = config, _read(config, sources), train_masks_first
    return make_set(key(config, sources), *inputs, out, runtime, progress)


def _read(config: Config, sources: Sources) -> Sources:
    judge = sources.judge if config.synthesis.admission.enabled else None
    return Sources(sources.dataset, judge=judge, generator=sources.generator)


def train_masks_first(
    config: Config, sources: Sources, real: Real, folder: Path, runtime: Runtime, progress: Progress
) -> Draw:
    """Train on the masks; the result draws masks, and images under them."""
    assert sources.generator is not None  # the run makes it for this arm
    unet = train_masks(config, real.arrays.masks, folder / f"{METHOD} masks.checkpoint", runtime, progress)
    base = load_base(resolve(config.generator.base, "pipeline")).to(runtime.device)
    generator = load_generator(base, sources.generator / CONTROLNET)
    how = sampling_of(config, config.synthesis.mask_guidance)
    size, tuned = config.data.size, config.finetune

    def masks_of(seeds: Sequence[int]) -> Pixels:
        masks = np.zeros((len(seeds), size, size), np.uint8)
        for number in range(CANDIDATES):
            todo = [place for place, mask in enumerate(masks) if real.degenerate(mask)]
            if todo:  # always the whole batch: a mask must not depend on how many are drawn with it
                maps = draw_masks(unet, [seed_for("mask", seed, number) for seed in seeds], _STEPS)
                masks[todo] = enlarged(maps, size).numpy()[todo]
        return masks

    def draw(seeds: Sequence[int], prompts: Sequence[str]) -> Drawn:
        masks = masks_of(seeds)
        labels = torch.from_numpy(masks).float()
        shown = condition(labels, torch.zeros_like(labels), tuned.condition, tuned.depth_under_mask)
        images = as_pixels(generator.sample(shown, prompts, seeds, how))
        return Drawn(images, masks, [{"mask": "drawn"}] * len(seeds), [""] * len(seeds))

    return draw


def train_masks(
    config: Config, masks: Pixels, checkpoint: Path, runtime: Runtime, progress: Progress
) -> torch.nn.Module:
    """A denoiser of masks N,S,S, in all symmetries of the square; its averaged weights."""
    side, size = min(_LARGEST_SIDE, config.data.size // _SHRINK), batch_of(config)
    small = 2 * F.adaptive_avg_pool2d(torch.from_numpy(np.array(masks))[:, None].float(), side) - 1
    unet = new_mask_unet(side, seed_for(METHOD, config.seed) % 2**32).to(runtime.device)
    average = AveragedModel(unet, multi_avg_fn=get_ema_multi_avg_fn(config.finetune.ema_decay))
    schedule = noise_schedule(mask_scheduler())

    def loss(index: int) -> Tensor:
        rng = numpy_rng("mask batch", config.seed, index)
        clean = turn(small[rng.integers(len(small), size=size)], int(rng.integers(8)))
        noise = torch.randn(clean.shape, generator=torch_rng("mask noise", config.seed, index))
        t = torch.from_numpy(rng.integers(schedule.timesteps, size=size))
        clean, noise, t = (x.to(runtime.device) for x in (clean, noise, t))
        with runtime.autocast():
            prediction = unet(schedule.add_noise(clean, noise, t), t).sample
        return (prediction.float() - schedule.target(clean, noise, t)).square().mean()

    optimiser = torch.optim.AdamW(unet.parameters(), _RATE, fused=True)
    fit(
        loss,
        unet,
        optimiser,
        plateau,
        steps_of(config),
        checkpoint,
        average=average,
        save_every=config.finetune.save_every,
        progress=progress,
    )
    return average.module.eval().requires_grad_(False)
