"""Synthetic images appended to the real ones: the counterparts, or the images of generative rivals.

Those of rivals come with masks of their own; the stages of `mcpmix.generator.baselines` make them.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require


@final
class Append(FixedStrategy):
    """Real and synthetic images in one batch, each with its hard mask, nothing mixed.

    The network treats all images alike: one term, one mean loss, one set of batch statistics. With the
    default a step sees 2B images, as many as a step of MCPMix.

    Cost: (1 + ratio) times the forward and backward pass.

    Args:
        ratio: Synthetic images per real one, in [0, 1]; of a batch of B, `round(ratio * B)` counterparts are
            drawn without replacement. 0 is supervised training on the real images.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": (0.25, 0.5, 1.0)}

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        require("Append", {f"ratio is {ratio}; expected a value in [0, 1]": 0.0 <= ratio <= 1.0})
        self.ratio = ratio

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the real images, then the chosen counterparts."""
        return [appended(batch, batch.pairs(), batch.masks, self.ratio, rng)]


def appended(batch: Batch, images: Tensor, masks: Tensor, ratio: float, rng: torch.Generator) -> Term:
    """The real images of a batch, then `round(ratio * B)` of B others with their masks, as one term."""
    size = len(batch.images)
    chosen = torch.randperm(size, generator=rng)[: round(ratio * size)].to(images.device)
    both = torch.cat([batch.images, images[chosen]])
    return Term(both, torch.cat([batch.masks, masks[chosen]]), 1.0, "appended")


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
