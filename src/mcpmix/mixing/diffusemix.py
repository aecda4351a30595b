"""DiffuseMix (Islam et al., CVPR 2024) for masks: half original, half edited, under a thin fractal."""

from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.core.errors import DataError
from mcpmix.core.seeds import numpy_rng, numpy_stream
from mcpmix.mixing.photometric import Pixels
from mcpmix.mixing.pictures import attractor, random_maps
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require

Editor = Callable[[Batch, torch.Generator], Tensor]
"""From a batch to edited versions of its images, like them; lesions must stay where their masks are."""


@final
class DiffuseMix(FixedStrategy):
    """One half of the image, the other half of its edited version, and a fractal over both; the mask stays.

    The edited version is the batch's synthetic counterpart, made under the same mask; the paper's editor is
    InstructPix2Pix, which knows nothing of masks. Each sample draws whether its halves lie side by side or
    one above the other, and its fractal. The original is always left or above, and a linear ramp joins the
    halves, as published. Fractals are made by code (iterated function systems), not the authors' download.

    The mixed images are trained on besides the real ones, as published: both in equal numbers.

    Search range: fractal in {0.1, 0.2, 0.3}. Cost: two images for each one; the edit is made beforehand.

    Args:
        fractal: Weight of the fractal, in [0, 1]; the paper has 0.2.
        ramp: Width of the passage between the halves, in sides of the image, in [0, 1]; the paper has 20 of
            256 pixels.
        pictures: Number of fractals, 1 or more.
        seed: Names the set of fractals.
        editor: Makes the edited images; None: the synthetic counterparts.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"fractal": (0.1, 0.2, 0.3)}

    def __init__(
        self,
        fractal: float = 0.2,
        ramp: float = 20 / 256,
        pictures: int = 256,
        seed: int = 0,
        editor: Editor | None = None,
    ) -> None:
        super().__init__()
        checks = {
            f"fractal is {fractal}; expected a weight in [0, 1]": 0 <= fractal <= 1,
            f"ramp is {ramp}; expected a share of the side in [0, 1]": 0 <= ramp <= 1,
            f"pictures is {pictures}; expected 1 or more": pictures >= 1,
        }
        require("DiffuseMix", checks)
        self.fractal, self.ramp, self.pictures, self.seed = fractal, ramp, pictures, seed
        self.pixels = Pixels()
        self._editor = editor

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real and the mixed images, each with half of the weight, under the same hard masks."""
        draws = numpy_stream(rng)
        edited = self._edited(batch, rng)
        count, _, height, width = batch.images.shape
        share = torch.stack([self._share(height, width, draws) for _ in range(count)])[:, None]
        hybrid = torch.lerp(batch.images, edited, share.to(edited))
        mixed = hybrid if self.fractal == 0 else self._under_fractals(hybrid, draws)
        return [
            Term(batch.images, batch.masks, 0.5, "real"),
            Term(mixed, batch.masks, 0.5, "mixed"),
        ]

    def _edited(self, batch: Batch, rng: torch.Generator) -> Tensor:
        if self._editor is None:
            return batch.pairs()
        edited = self._editor(batch, rng)
        if edited.shape != batch.images.shape:
            raise DataError(
                f"The editor of DiffuseMix returned {tuple(edited.shape)} for images "
                f"{tuple(batch.images.shape)}; expected the same shape."
            )
        return edited

    def _share(self, height: int, width: int, draws: np.random.Generator) -> Tensor:
        """Weight of the edited image, (height, width): side by side or one above the other."""
        if draws.random() < 0.5:
            return half_share(width, self.ramp).expand(height, width)
        return half_share(height, self.ramp)[:, None].expand(height, width)

    def _under_fractals(self, images: Tensor, draws: np.random.Generator) -> Tensor:
        chosen = draws.integers(self.pictures, size=len(images))
        pictures = torch.stack([fractal_picture(self.seed, int(i), *images.shape[2:]) for i in chosen])
        # Normalising is affine, so blending normalised images is blending pixels.
        return torch.lerp(images, self.pixels.normalise(pictures.to(images) / 255), self.fractal)


def half_share(length: int, ramp: float) -> Tensor:
    """0 on the first half of an axis, 1 on the second, with a linear ramp at the middle, (length,).

    Args:
        length: In pixels.
        ramp: Width of the ramp as a share of the length.
    """
    centres = (torch.arange(length) + 0.5) / length - 0.5
    return (centres > 0).float() if ramp == 0 else (centres / ramp + 0.5).clamp(0, 1)


@lru_cache(maxsize=1024)
def fractal_picture(seed: int, index: int, height: int, width: int) -> Tensor:
    """The fractal of this seed and index: the attractor of a random iterated function system.

    Returns:
        (3, height, width), uint8: black ground, brighter in one colour where points are denser. Shared
        between callers: not to be changed.
    """
    draws = numpy_rng("diffusemix-fractal", seed, index)
    points = attractor(random_maps(draws), draws)
    low, high = np.quantile(points, [0.01, 0.99], axis=0)
    places = (points - low) / np.maximum(high - low, 1e-9)
    places = places[((places >= 0) & (places < 1)).all(1)]
    columns, rows = (places * [width, height]).astype(int).T
    counts = np.bincount(rows * width + columns, minlength=height * width).reshape(height, width)
    density = np.log1p(counts) / np.log1p(max(int(counts.max()), 1))
    colour = draws.uniform(0.3, 1.0, 3)
    return torch.from_numpy(np.rint(255 * colour[:, None, None] * density).astype(np.uint8))
