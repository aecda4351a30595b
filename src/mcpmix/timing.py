"""How long a run will take: a few steps of each stage on this machine."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from mcpmix.config import PSEUDO, Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import McpmixError
from mcpmix.core.pixels import as_images
from mcpmix.core.processes import Processes
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.augment import draw_augmentation, normalise
from mcpmix.data.index import Arrays
from mcpmix.estimates import LARGE, makes_pairs
from mcpmix.generator.adapt import lora_rank
from mcpmix.generator.autoencoder import sharpen_decoder, train_autoencoder
from mcpmix.generator.base import BaseSettings, train_base
from mcpmix.generator.base import view_count as base_views
from mcpmix.generator.conditions import condition
from mcpmix.generator.few_steps import sampling_settings
from mcpmix.generator.finetune_trainer import Trainer, TrainingSet, build_networks, encode_all, view_counts
from mcpmix.generator.judge import train_judge
from mcpmix.metrics import score_with_counts
from mcpmix.networks.depth import DepthNetwork
from mcpmix.networks.diffusion import DiffusionBase, embed_prompts, load_autoencoder, load_base, new_unet
from mcpmix.networks.features import load_features
from mcpmix.networks.generator import Generator, SamplingSettings, control_from_base
from mcpmix.networks.memory import build_meta, parameter_count, pipeline_configs
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.weight_files import resolve
from mcpmix.segmenter.arms import (
    needs_base,
    needs_judge,
    needs_pairs,
    needs_pseudo,
    needs_set,
    share_machine,
    takes_edits,
    takes_pairs,
)

_FEW_STEPS = 1000  # optimiser steps of a run, below which timing some would take longer than it is worth
_ENOUGH, _MOST_TIMED = 0.3, 3  # seconds, and repetitions, of a step that is timed


def seconds_left(
    config: Config, images: Mapping[str, int], runtime: Runtime, *, reuses: bool = True
) -> dict[str, float]:
    """Seconds of the stages that are not finished, by name in their order, from a few steps of each here.

    Rough: reading and writing files is left out, and of the further tries of admission half are counted. A
    stage that cannot be timed here has nan: a base too large for a CPU, sets of the generative baselines,
    edits. Empty for a run of few steps.

    Args:
        images: number of images of each part.
        reuses: whether finished stages are those of this configuration. Otherwise none of them counts as
            finished, and the time is the most that a run can take.
    """
    train, arms, judge = config.train, config.train.arms, config.synthesis.admission.judge
    generated, based = makes_pairs(config), any(needs_base(config, arm) for arm in arms)
    marked = any(map(needs_pseudo, arms)) or (generated and config.finetune.start == PSEUDO)
    judging = marked or (based and config.synthesis.admission.enabled)
    judging = judging or any(needs_judge(config, arm) for arm in arms)
    made = {  # in the order of a run
        "depth": generated,
        "base": based and config.adapt.steps > 0,
        "judge": judging,
        "generator": generated,
        "pairs": config.synthesis.source == "bank" and any(takes_pairs(config, arm) for arm in arms),
        "edits": any(takes_edits(config, arm) for arm in arms),
        **{f"synthetic/{arm}": True for arm in filter(needs_set, arms)},
    }

    def is_open(name: str) -> bool:
        return not (reuses and read_artifact(config.folder / name))

    open_stages = [name for name, on in made.items() if on and is_open(name)]
    cells = [(arm, seed) for arm in arms for seed in train.seeds]
    open_cells = {
        stage: [arm for arm, seed in cells if is_open(f"{stage}/{arm}/seed-{seed}")]
        for stage in ("segmenter", "evaluation")
    }
    steps = math.ceil(images["train"] / train.batch_size) * (train.epochs + train.tail_epochs)
    in_all = steps * len(open_cells["segmenter"])
    for name, count in (
        ("base", config.adapt.steps),
        ("judge", judge.folds * judge.steps),
        ("generator", config.finetune.first_steps + config.finetune.steps),
    ):
        in_all += count if name in open_stages else 0
    if in_all < _FEW_STEPS:
        return {}
    stopwatch = _Stopwatch(config, images, runtime)
    found: dict[str, float] = {}
    # What is built here must not move the random numbers of the run.
    with torch.random.fork_rng(), suppress(McpmixError):
        for name in open_stages:
            measure = getattr(stopwatch, name, None)
            found[name] = math.nan if measure is None else measure()
        workers, threads = share_machine(config, runtime, len(cells))
        for name, open_arms in open_cells.items():
            if open_arms:
                before = torch.get_num_threads()
                torch.set_num_threads(threads)
                seconds: float = getattr(stopwatch, name)(open_arms, steps)
                torch.set_num_threads(before)
                found[name] = seconds / min(workers, len(open_arms))
    return found


def time_text(seconds: Mapping[str, float]) -> str:
    """Seconds of stages in words: `about 25 min in all (generator 5 min, pairs 2 min, segmenter 18 min)`."""
    known = {name: value for name, value in seconds.items() if not math.isnan(value)}
    parts = ", ".join(f"{name} {_minutes(value)}" for name, value in known.items())
    more = ", ".join(name for name in seconds if name not in known)
    without = f", and {more}, which cannot be timed here" if more else ""
    total = _minutes(sum(known.values()))
    return f"about {total} in all ({parts}){without}, by a few steps of each on this machine"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _pace(step: Callable[[], object]) -> float:
    """Seconds of one step: the fastest of some after one that warms up, in about half a second."""
    step()
    taken: list[float] = []
    while not taken or (sum(taken) < _ENOUGH and len(taken) < _MOST_TIMED):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _pace_of_training(run: Callable[[int, Path], object]) -> float:
    """Seconds of one step of a whole training: what two steps more take.

    Args:
        run: trains for a number of steps, in a folder of its own.
    """
    taken = []
    with TemporaryDirectory() as folder:
        for steps in (1, 3):
            (place := Path(folder) / str(steps)).mkdir()
            start = time.perf_counter()
            run(steps, place)
            taken.append(time.perf_counter() - start)
    return _per_step(*taken)


def _per_step(one: float, three: float) -> float:
    """Seconds of a step, from those of one and of three; a busy machine may slow down the one alone."""
    return (three - one) / 2 if three > one else three / 3


class _Stopwatch:
    """Times the stages of a run on made-up images; each method gives the seconds of the stage of its name."""

    def __init__(self, config: Config, images: Mapping[str, int], runtime: Runtime) -> None:
        self.config, self.images, self.runtime = config, images, runtime
        # Of a step without a batch size of its own: a CPU is not faster with more, a GPU is.
        self.batch = 4 if runtime.device.type == "cpu" else 16
        size = config.data.size
        self.pictures = np.random.default_rng(0).integers(0, 256, (self.batch, size, size, 3), np.uint8)
        self.masks = np.zeros((self.batch, size, size), np.uint8)
        self.masks[:, size // 3 : -size // 3, size // 3 : -size // 3] = 1

    def depth(self) -> float:
        """All training images, and those that validate the generator."""
        settings, tuning = self.config.depth, self.config.finetune.validation
        network = DepthNetwork(resolve(settings.model, "depth"), settings.near, self.runtime.device)
        validated = min(tuning.images, self.images.get("validation", 0)) if tuning.every else 0
        return (self.images["train"] + validated) * _pace(lambda: network(self.pictures)) / self.batch

    @cached_property
    def _base(self) -> DiffusionBase:
        """The base that draws, with the autoencoder and the denoiser that `adapt` gives it."""
        config, adapt = self.config, self.config.adapt
        base = load_base(resolve(config.generator.base, "pipeline"))
        if adapt.steps and adapt.autoencoder is not None:
            base.vae = load_autoencoder(resolve(adapt.autoencoder, "pipeline"))
        if adapt.steps and adapt.unet is not None:
            base.unet = new_unet(
                adapt.unet,
                latent_channels=base.vae.config.latent_channels,
                text_width=base.text_encoder.config.hidden_size,
                latent_side=config.data.size // base.latent_factor,
            )
        return base.to(self.runtime.device)

    @cached_property
    def _too_large(self) -> bool:
        unet = build_meta(pipeline_configs(self.config.generator.base)).unet
        return self.runtime.device.type == "cpu" and parameter_count(unet) > LARGE

    @cached_property
    def _encoding(self) -> float:
        """Seconds of encoding one image."""
        return _pace(lambda: encode_all(self._base.vae, as_images(self.pictures))) / self.batch

    def base(self) -> float:
        """Further training of autoencoder and denoiser, and the latents of the training images."""
        if self._too_large:
            return math.nan
        settings, base, prompt = self.config.adapt, self._base, self.config.generator.prompt.text
        latents = np.array(encode_all(base.vae, as_images(self.pictures)).cpu())[None].astype(np.float16)
        recipe = BaseSettings(0, settings.learning_rate, settings.batch_size, settings.ema_decay)
        rank = lora_rank(self.config, base)
        fake, device = self.pictures, self.runtime.device

        def denoiser(steps: int, folder: Path) -> object:
            told, text = replace(recipe, steps=steps, lora_rank=rank), [[prompt] * self.batch]
            return train_base(latents, text, base, told, folder / "checkpoint", self.runtime)

        def autoencoder(steps: int, folder: Path) -> object:
            return train_autoencoder(fake, base.vae, folder, steps=steps, device=device)

        def decoder(steps: int, folder: Path) -> None:
            sharpen_decoder(fake, base.vae, folder, steps=steps, device=device)

        asked = (settings.steps, settings.autoencoder_steps, settings.decoder_steps)
        learnt = zip(asked, (denoiser, autoencoder, decoder), strict=True)
        seconds = sum(count * _pace_of_training(run) for count, run in learnt if count)
        images = self.images["train"]
        return seconds + images * base_views(images) * self._encoding

    def judge(self) -> float:
        """The networks of all folds."""
        settings = self.config.synthesis.admission.judge
        arrays = Arrays(tuple(map(str, range(self.batch))), self.pictures, self.masks)
        pace = _pace_of_training(
            lambda steps, folder: train_judge(
                arrays,
                arrays.ids,
                settings.model_copy(update={"steps": steps, "folds": 2}),
                seed=0,
                device=self.runtime.device,
                folder=folder,
            )
        )
        return settings.folds * settings.steps * pace / 2

    def generator(self) -> float:
        """Fine-tuning, with the encoding of all views before it."""
        if self._too_large:
            return math.nan
        tuning, base, count = self.config.finetune, self._base, self.images["train"]
        masks = torch.from_numpy(self.masks).float()
        text = embed_prompts(base, ["", self.config.generator.prompt.text])
        latents = encode_all(base.vae, as_images(self.pictures)).numpy()[None, None]
        dropout = (tuning.mask_dropout, tuning.depth_dropout)
        shown = condition(masks, masks, tuning.condition, "keep")
        data = TrainingSet(latents, shown, self.masks, text, np.ones(self.batch, np.int64), dropout)
        trainer = Trainer(
            build_networks(base, tuning, self.runtime), data, self.config, self.runtime, Processes()
        )
        steps = tuning.first_steps + tuning.steps
        views = math.prod(view_counts(tuning, count))
        walked = 0.0
        if (few := self.config.few_steps).distils:
            plain = self.config.model_copy(update={"few_steps": few.model_copy(update={"steps": 0})})
            walked, steps = few.paths * self._drawing(sampling_settings(plain)), steps + few.distil_steps
        return steps * _pace(lambda: trainer.step(0)) + count * views * self._encoding + walked

    def _drawing(self, settings: SamplingSettings) -> float:
        """Seconds of one image: denoising steps are timed apart from what comes before and after."""
        base = self._base
        sampler = Generator(base, control_from_base(base).to(self.runtime.device))
        masks = torch.from_numpy(self.masks).float()
        shown = condition(masks, masks, self.config.finetune.condition, "keep")
        prompts, seeds = [self.config.generator.prompt.text] * self.batch, list(range(self.batch))

        def draw(steps: int) -> object:
            asked = replace(settings, steps=steps, strength=1.0, learnt_steps=None)  # may be fewer than three
            return sampler.sample(shown, prompts, seeds, asked)

        one, three = (_pace(partial(draw, steps)) for steps in (1, 3))
        return (one + (settings.steps - 1) * _per_step(one, three)) / self.batch

    def pairs(self) -> float:
        """The bank of counterparts."""
        if self._too_large:
            return math.nan
        settings = self.config.synthesis
        tries = (1 + settings.admission.tries) / 2 if settings.admission.enabled else 1
        pace = self._drawing(sampling_settings(self.config))
        return self.images["train"] * settings.replicas * tries * pace

    @cached_property
    def _segmenter(self) -> nn.Module:
        wanted = self.config.segmenter
        network = build_segmenter(
            wanted.name, wanted.variant, options=wanted.options, channels=self.config.data.channels
        )
        return network.to(self.runtime.device).to(memory_format=torch.channels_last)

    def segmenter(self, arms: Sequence[str], steps: int) -> float:
        """Trainings with these arms, of so many steps each, one after the other; validation included."""
        config, train, device = self.config, self.config.train, self.runtime.device
        count, network = train.batch_size, self._segmenter
        images = as_images(np.resize(self.pictures, (count, *self.pictures.shape[1:])), device)
        optimiser, rng = torch.optim.AdamW(network.parameters()), torch.Generator().manual_seed(0)
        varied = train.model_dump(include={"rotate", "scale", "flip", "colour", "crop", "blur"})

        def step(pictures: Tensor) -> None:
            network.train()
            with self.runtime.autocast():
                loss: Tensor = network(pictures).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()  # waits for a GPU

        def load() -> Tensor:
            return normalise(draw_augmentation(count, rng, **varied).images(images))

        def compare() -> None:
            compared = images.clone().requires_grad_()
            with torch.no_grad():
                phi(images)
            phi(compared).sum().backward()

        passing, loading = _pace(lambda: step(images)), _pace(load)
        paired = sum(map(needs_pairs, arms))
        seconds = steps * (len(arms) + paired) * (passing + loading)
        if learning := arms.count("mcpmix-rla"):
            phi = load_features(config.rla.features).to(device)
            seconds += learning * steps / config.rla.mmd_every * _pace(compare)
        if config.synthesis.makes_in_training and paired and not self._too_large:
            fresh = 1.0 if config.synthesis.source == "on-the-fly" else config.synthesis.refresh
            seconds += paired * fresh * steps * count * self._drawing(sampling_settings(self.config))
        looks = len(arms) * (train.epochs + train.tail_epochs) // train.validate_every
        return seconds + looks * self.images.get("validation", 0) * self._looking

    @cached_property
    def _looking(self) -> float:
        """Seconds in which the segmenter marks one image."""
        image, network = as_images(self.pictures[:1], self.runtime.device), self._segmenter.eval()

        @torch.inference_mode()
        def look() -> object:
            return network(image).sum().item()

        return _pace(look)

    def evaluation(self, arms: Sequence[str], _steps: int) -> float:
        """All test images by the segmenters of these arms, with their scores."""
        settings, mask = self.config.evaluation, self.masks[0].astype(bool)
        tested = self.images.get("test", 0) + self.images.get("known", 0)
        scoring = _pace(lambda: score_with_counts(mask, mask, settings.tolerances, settings.band))
        return len(arms) * tested * (self._looking + scoring)
