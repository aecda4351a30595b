"""Counterparts: images under the masks of real ones, by a condition (mask, depth) and a seed by identity."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.errors import ModelError
from mcpmix.core.files import read_json, write_json
from mcpmix.core.pixels import Pixels, as_images, as_pixels
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.data.index import Arrays
from mcpmix.generator.conditions import Conditions, Depths
from mcpmix.generator.few_steps import FEW_STEPS, lora_folder, sampling_settings
from mcpmix.generator.workers import Request
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator, load_generator
from mcpmix.networks.weight_files import resolve

CONTROLNET = "controlnet"
"""Folder of the weights to use, inside the generator's."""
_LOOKS = "looks.json"  # in the folder of an adapted base


@dataclass(frozen=True)
class Looks:
    """Groups of images that look alike, as an adapted base knows them by words in the prompt."""

    texts: tuple[str, ...]
    look_of: dict[str, int]  # by the digest of an image of the base's training
    shares: tuple[float, ...]  # of the images of the training part that have each look

    def draw(self, rng: np.random.Generator) -> str:
        """The words of a look, drawn as often as images of the training part have it.

        The pool may hold other kinds of images too, such as close-ups without lesions; a look that no image
        of the training part has is never drawn.
        """
        return self.texts[int(rng.choice(len(self.texts), p=self.shares))]

    def words(self, digest: str) -> str | None:
        """The words of an image's look; None if the base has not seen it."""
        return self.texts[self.look_of[digest]] if digest in self.look_of else None

    def write(self, base: Path) -> None:
        """Put them into the folder of a base."""
        write_json(base / _LOOKS, vars(self))

    @classmethod
    def read(cls, base: Path) -> "Looks | None":
        """Those of a base; None if it was not adapted with looks."""
        if not (base / _LOOKS).exists():
            return None
        try:
            found = read_json(base / _LOOKS)
            return cls(tuple(found["texts"]), dict(found["look_of"]), tuple(found["shares"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{base / _LOOKS} is damaged ({error!r}). Adapt the base again.") from error


class CounterpartMaker:
    """A generator and the conditions of training samples, as in fine-tuning.

    Args:
        looks: of the base; they take the place of the configured appearance.
    """

    def __init__(
        self,
        generator: Generator,
        arrays: Arrays,
        depths: Depths,
        config: Config,
        looks: Looks | None = None,
    ) -> None:
        self.generator, self.arrays, self.config, self.looks = generator, arrays, config, looks
        self.settings = sampling_settings(config)
        self.conditions = Conditions(arrays.masks, depths, config.finetune, config.data.labels)

    def seed(self, request: Request) -> int:
        """The seed of a counterpart: a hash of run, sample id and replica."""
        return seed_for(self.config.seed, self.arrays.ids[request.index], request.replica)

    def text(self, request: Request) -> str:
        """The prompt of a counterpart; its appearance is drawn by identity too."""
        return draw_text(self.config, self.looks, self.seed(request))

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


def make_filled(maker: CounterpartMaker, requests: Sequence[Request], batch_size: int) -> Pixels:
    """Make 1 to `batch_size` counterparts, B,S,S,3 uint8, always computed as a full batch.

    A short batch is padded with its last request. Networks round differently at different batch sizes, but
    at one size an image's bits do not depend on its place or its neighbours. So whatever is made here can be
    repeated alone, bit for bit.
    """
    filled = [*requests, *[requests[-1]] * (batch_size - len(requests))]
    return np.asarray(maker.make(filled)[: len(requests)], dtype=np.uint8)


def draw_text(config: Config, looks: Looks | None, seed: int) -> str:
    """The prompt of the image with this seed: with a look of the base, or an appearance as configured."""
    prompt, appearance = config.generator.prompt.text, config.synthesis.appearance
    rng = numpy_rng("appearance", seed)
    if looks is not None:
        return f"{prompt} {looks.draw(rng)}"
    if not appearance:
        return prompt
    return f"{prompt} {appearance[int(rng.integers(len(appearance)))]}"


def build_maker(
    config: Config, generator: Path, arrays: Arrays, depths: Depths, device: torch.device
) -> CounterpartMaker:
    """Load the base and, from the generator's folder, the ControlNet."""
    folder = resolve(config.generator.base, "pipeline")
    control = generator / (FEW_STEPS if config.few_steps.distils else CONTROLNET)
    network = load_generator(load_base(folder).to(device), control, lora_folder(config))
    return CounterpartMaker(network, arrays, depths, config, Looks.read(folder))
