"""Counterparts: images under the masks of real ones, by a condition (mask, depth) and a seed by identity."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.config import Config
from mcpmix.core.errors import ModelError
from mcpmix.core.files import read_json, write_json
from mcpmix.core.pixels import Pixels, as_images, as_pixels
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.data.index import Arrays
from mcpmix.generator.few_steps import FEW_STEPS, lora_folder, sampling_settings
from mcpmix.generator.workers import Request
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator, load_generator
from mcpmix.networks.weight_files import resolve

CONTROLNET = "controlnet"
"""Folder of the weights to use, inside the generator's."""
_LOOKS = "looks.json"  # in the folder of an adapted base

_MARGIN = 0.025  # of the side: how far beyond the mask the depth of a lesion may reach
_NOTHING = 1e-6


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
    """A generator and the conditions of training samples, N,2,S,S, as in fine-tuning.

    Args:
        looks: of the base; they take the place of the configured appearance.
    """

    def __init__(
        self,
        generator: Generator,
        arrays: Arrays,
        depths: np.ndarray,
        config: Config,
        looks: Looks | None = None,
    ) -> None:
        self.generator, self.arrays, self.config, self.looks = generator, arrays, config, looks
        self.settings, tuned = sampling_settings(config), config.finetune
        masks = torch.from_numpy(arrays.masks).float()
        self.conditions = condition(masks, torch.from_numpy(depths), tuned.condition, tuned.depth_under_mask)

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
    config: Config, generator: Path, arrays: Arrays, depths: np.ndarray, device: torch.device
) -> CounterpartMaker:
    """Load the base and, from the generator's folder, the ControlNet."""
    folder = resolve(config.generator.base, "pipeline")
    control = generator / (FEW_STEPS if config.few_steps.distils else CONTROLNET)
    network = load_generator(load_base(folder).to(device), control, lora_folder(config))
    return CounterpartMaker(network, arrays, depths, config, Looks.read(folder))


def condition(masks: Tensor, depths: Tensor, use: str, under_mask: str) -> Tensor:
    """B,2,H,W condition image of a ControlNet: mask and depth.

    Args:
        masks: B,H,W in {0, 1}.
        depths: B,H,W in [0, 1].
        use: "both", "mask" or "depth"; the other channel is zero.
        under_mask: what depth shows under the mask: "keep", or "fill" for the continuation of what is around.
            Depth alone is always kept: what was filled would tell where the mask is.
    """
    if under_mask == "fill" and use != "depth":
        depths = fill_depth(depths, masks)
    if use == "mask":
        depths = torch.zeros_like(depths)
    elif use == "depth":
        masks = torch.zeros_like(masks)
    return torch.stack([masks, depths], dim=1)


def swapped_conditions(
    own: Tensor, other: Tensor, depths: Tensor, use: str, under_mask: str
) -> tuple[Tensor, Tensor]:
    """Conditions B,2,H,W of two sets of masks, with the same depth; arguments as for `condition`.

    Depth is filled under both masks. Filled under one mask each, depths would differ just where the masks do,
    and a generator that sees nothing but depth would seem to follow the mask.
    """
    if under_mask == "fill" and use != "depth":
        depths = fill_depth(depths, torch.maximum(own, other))
    return condition(own, depths, use, "keep"), condition(other, depths, use, "keep")


def fill_depth(depths: Tensor, masks: Tensor) -> Tensor:
    """Depths B,H,W whose values under the masks, and a little around, continue those of the surroundings.

    The depth of a real image shows its lesion. A generator that sees it there need not look at the mask, and
    paints the old lesion under a new mask.
    """
    margin = max(1, round(_MARGIN * depths.shape[-1]))
    hole = F.max_pool2d(masks[:, None].to(depths.dtype), 2 * margin + 1, stride=1, padding=margin)
    known = 1 - hole
    filled = _continued(depths[:, None] * known, known)
    return torch.where(hole > 0, filled, depths[:, None])[:, 0]


def _continued(values: Tensor, known: Tensor) -> Tensor:
    """Fill B,1,H,W from ever coarser means of what is known; `values` are 0 where nothing is.

    Down to one pixel in any case: an image must not depend on the others of its batch.
    """
    height, width = values.shape[-2:]
    if height == width == 1:
        return values / known.clamp(min=_NOTHING)
    odd = (0, width % 2, 0, height % 2)
    coarse = _continued(*(F.avg_pool2d(F.pad(part, odd), 2) for part in (values, known)))
    fine = F.interpolate(coarse, scale_factor=2, mode="bilinear")[..., :height, :width]
    return values + (1 - known) * fine
