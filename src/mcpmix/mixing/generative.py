"""Generative rivals: synthetic images that come with masks of their own are appended to the real ones.

The images are made before training, by the stages of `mcpmix.generator.baselines`.
"""

from typing import ClassVar, final

import torch

from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, appended, require


class AppendSet(FixedStrategy):
    """Base of strategies that append synthetic images with masks of their own, as `append` does.

    Args:
        ratio: Synthetic images per real one, in [0, 1].
    """

    needs_pairs: ClassVar[bool] = False
    needs_set: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": (0.25, 0.5, 1.0)}

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        require("A labelled set", {f"ratio is {ratio}; expected a value in [0, 1]": 0.0 <= ratio <= 1.0})
        self.ratio = ratio

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the real images, then some of the set, each with its own mask."""
        return [appended(batch, *batch.with_own_masks(), self.ratio, rng)]


@final
class ControlPolypNet(AppendSet):
    """Lesions painted into real surroundings: a ControlNet fills a region that was painted white.

    The painted region is the label. After Sharma et al. (CVPR workshops 2024); what is adapted:
    [Generative baselines](generative-baselines.md).

    Cost: (1 + ratio) times the forward and backward pass; the set is made beforehand.

    Args:
        ratio: Synthetic images per real one, in [0, 1].
    """


@final
class GenSRRFI(AppendSet):
    """First a mask from a small diffusion model of masks, then an image under it.

    After Go et al. (CVPR workshops 2024; the name is the initials of the title); what is adapted:
    [Generative baselines](generative-baselines.md).

    Cost: (1 + ratio) times the forward and backward pass; the set is made beforehand.

    Args:
        ratio: Synthetic images per real one, in [0, 1].
    """


@final
class SatSynth(AppendSet):
    """Image and mask from one joint diffusion model.

    After Toker et al. (CVPR 2024); what is adapted: [Generative baselines](generative-baselines.md).

    Cost: (1 + ratio) times the forward and backward pass; the set is made beforehand.

    Args:
        ratio: Synthetic images per real one, in [0, 1].
    """
