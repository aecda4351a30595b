"""DiffuseMix (Islam et al., CVPR 2024) for masks: half original, half edited, under a thin fractal."""

from typing import ClassVar, final

import torch
from torch import Tensor

from mcpmix.core.seeds import numpy_stream
from mcpmix.data.augment import normalise
from mcpmix.mixing.pictures import fractal_picture
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require


@final
class DiffuseMix(FixedStrategy):
    """One half of the image, the other half of its edited version, and a fractal over both; the mask stays.

    The edited version is the batch's synthetic counterpart, generated under the same mask; the paper's editor
    is InstructPix2Pix, which does not see masks. Each sample draws whether its halves lie side by side or one
    above the other, and its fractal. The original is always on the left or on top, and a linear ramp joins
    the halves, as published. Code generates the fractals (iterated function systems); they are not the
    authors' download.

    Training uses the mixed images in addition to the real ones, as published: both in equal numbers.

    Cost: two images for each one; the edit is made beforehand.

    Args:
        fractal: Weight of the fractal, in [0, 1]; the paper has 0.2.
        ramp: Width of the passage between the halves, in sides of the image, in [0, 1]; the paper has 20 of
            256 pixels.
        pictures: Number of fractals, 1 or more.
        seed: Names the set of fractals.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"fractal": (0.1, 0.2, 0.3)}

    def __init__(
        self, fractal: float = 0.2, ramp: float = 20 / 256, pictures: int = 256, seed: int = 0
    ) -> None:
        super().__init__()
        checks = {
            f"fractal is {fractal}; expected a weight in [0, 1]": 0 <= fractal <= 1,
            f"ramp is {ramp}; expected a share of the side in [0, 1]": 0 <= ramp <= 1,
            f"pictures is {pictures}; expected 1 or more": pictures >= 1,
        }
        require("DiffuseMix", checks)
        self.fractal, self.ramp, self.pictures, self.seed = fractal, ramp, pictures, seed

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real and the mixed images, each with half of the weight, under the same hard masks."""
        draws = numpy_stream(rng)
        edited = batch.pairs()
        count, _, height, width = batch.images.shape
        across = half_share(width, self.ramp).expand(height, width)
        down = half_share(height, self.ramp)[:, None].expand(height, width)
        share = torch.stack([across if draws.random() < 0.5 else down for _ in range(count)])[:, None]
        mixed = torch.lerp(batch.images, edited, share.to(edited))
        if self.fractal > 0:
            chosen = draws.integers(self.pictures, size=count)
            fractals = torch.stack([fractal_picture(self.seed, int(i), height, width) for i in chosen])
            # Normalising is affine, so blending normalised images is blending pixels.
            mixed = torch.lerp(mixed, normalise(fractals.to(mixed) / 255), self.fractal)
        return [
            Term(batch.images, batch.masks, 0.5, "real"),
            Term(mixed, batch.masks, 0.5, "mixed"),
        ]


def half_share(length: int, ramp: float) -> Tensor:
    """0 on the first half of an axis, 1 on the second, (length,); a ramp of this share of it joins them."""
    centres = (torch.arange(length) + 0.5) / length - 0.5
    return (centres > 0).float() if ramp == 0 else (centres / ramp + 0.5).clamp(0, 1)
