"""Generates counterparts: images under the masks of real ones, each seeded by its identity."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.pixels import as_images, as_pixels
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.data.cache import Arrays
from mcpmix.generator.conditions import condition
from mcpmix.generator.workers import Request
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator, SamplingSettings, load_generator
from mcpmix.networks.weight_files import resolve

CONTROLNET = "controlnet"
"""Folder of the weights to use, inside the generator's."""


class CounterpartMaker:
    """A generator with the conditions of training samples.

    Attributes:
        conditions: N,2,S,S, as the ControlNet was trained with them.
        settings: how images are drawn.
    """

    def __init__(self, generator: Generator, arrays: Arrays, depths: np.ndarray, config: Config) -> None:
        self.generator, self.arrays, self.run_seed = generator, arrays, config.seed
        self.prompt, self.appearance = config.generator.prompt.text, config.synthesis.appearance
        tuned, drawn = config.finetune, config.synthesis
        self.settings = SamplingSettings(drawn.steps, drawn.guidance, drawn.mask_guidance, drawn.strength)
        masks = torch.from_numpy(arrays.masks).float()
        self.conditions = condition(masks, torch.from_numpy(depths), tuned.condition, tuned.depth_under_mask)

    def seed(self, request: Request) -> int:
        """The seed of a counterpart: a hash of run, sample id and replica."""
        return seed_for(self.run_seed, self.arrays.ids[request.index], request.replica)

    def text(self, request: Request) -> str:
        """The prompt of a counterpart; its appearance is drawn by identity too."""
        if not self.appearance:
            return self.prompt
        rng = numpy_rng("appearance", self.seed(request))
        return f"{self.prompt} {self.appearance[int(rng.integers(len(self.appearance)))]}"

    def make(self, requests: Sequence[Request]) -> np.ndarray:
        """B,S,S,3 uint8 images, made as one batch."""
        chosen = [request.index for request in requests]
        images = self.generator.sample(
            self.conditions[chosen],
            [self.text(request) for request in requests],
            [self.seed(request) for request in requests],
            self.settings,
            sources=as_images(self.arrays.images[chosen]),
        )
        return as_pixels(images)


def build_maker(
    config: Config, generator: Path, arrays: Arrays, depths: np.ndarray, device: torch.device
) -> CounterpartMaker:
    """Load the base and, from the generator's folder, the ControlNet."""
    base = load_base(resolve(config.generator.base, "pipeline")).to(device)
    return CounterpartMaker(load_generator(base, generator / CONTROLNET), arrays, depths, config)
