"""Synthetic images as common samples: the reference of what pairing and mixing add."""

from typing import ClassVar, final

import torch

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term


@final
class Append(FixedStrategy):
    """Real and synthetic images in one batch, each with its hard mask, nothing mixed.

    All images are alike to the network: one term, one mean loss, one set of batch statistics. With the
    default a step sees 2B images, as many as a step of MCPMix.

    Search range: ratio in {0.25, 0.5, 1.0}. Cost: (1 + ratio) times the forward and backward pass.

    Args:
        ratio: Synthetic images per real one, in [0, 1]; of a batch of B, `round(ratio * B)` counterparts are
            drawn without replacement. 0 is supervised training on the real images.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": (0.25, 0.5, 1.0)}

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        if not 0.0 <= ratio <= 1.0:
            raise ConfigError(f"Appending cannot be built: ratio is {ratio}; expected a value in [0, 1].")
        self.ratio = ratio

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the real images, then the chosen counterparts."""
        size = len(batch.images)
        count = round(self.ratio * size)
        chosen = torch.randperm(size, generator=rng)[:count].to(batch.images.device)
        images = torch.cat([batch.images, batch.pairs()[chosen]])
        return [Term(images, torch.cat([batch.masks, batch.masks[chosen]]), 1.0, "appended")]
