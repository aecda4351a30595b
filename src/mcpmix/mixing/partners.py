"""Mixing each image of a batch with another one: what Mixup, CutMix, GridMix and SmoothMix have in common.

All of them are a weight map M of the own image: `M * own + (1 - M) * partner`, and the mask is mixed by the
same map. The share of an image-level label, which the papers on classification need, is never used.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.draws import numpy_stream
from mcpmix.mixing.settings import require
from mcpmix.mixing.strategy import Batch, FixedStrategy, Term


def require_partners(batch: Batch, method: str) -> None:
    """Refuse a batch in which an image could meet only itself.

    Raises:
        ConfigError: If the batch holds fewer than two different samples.
    """
    if len(set(batch.ids)) < 2:
        raise ConfigError(
            f"{method} mixes each image with another one of its batch, and this batch holds one sample only "
            f"({batch.ids[0] if batch.ids else 'none'}). Set train.batch_size to 2 or more, with at least "
            "two training images."
        )


def blend(own: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """`weight * own + (1 - weight) * partner`; bitwise `own` where the weight is 1, `partner` where it is 0.

    Args:
        own: (B, C, H, W), floating point.
        partner: Like `own`.
        weight: Weight of `own` in [0, 1], of a shape that broadcasts to (B, 1, H, W); moved to the device
            and dtype of `own`.
    """
    return torch.lerp(partner, own, weight.to(own))


class PartnerMix(FixedStrategy):
    """Base of strategies that mix each image of a batch, and its mask, with a partner from the same batch.

    The partners are a random permutation of the batch, the same for images and masks. As in the published
    methods a sample may be its own partner, with probability 1/B. The mixed images replace the real ones.

    Args:
        method: Name of the method, for messages.
        probability: How often a batch is mixed at all, in [0, 1]; otherwise it stays as it is.
        problems: What is wrong with the settings of the subclass.
    """

    needs_pairs: ClassVar[bool] = False

    def __init__(self, method: str, probability: float, problems: Sequence[str] = ()) -> None:
        super().__init__()
        text = f"probability is {probability}; expected a value in [0, 1]"
        require(method, {text: 0.0 <= probability <= 1.0}, problems)
        self.method, self.probability = method, probability

    @abstractmethod
    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:
        """The weight of the own image in [0, 1] for a batch of `count` images.

        Returns:
            CPU tensor of a shape that broadcasts to (count, 1, height, width).
        """

    @final
    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term of B images and masks, both mixed by one map; its mean is noted as "own_share"."""
        require_partners(batch, self.method)
        draws = numpy_stream(rng)
        images, masks = batch.images, batch.masks
        share = 1.0
        if draws.random() < self.probability:
            count, _, height, width = images.shape
            partners = torch.from_numpy(draws.permutation(count)).to(images.device)
            weight = self.weight_map(count, height, width, draws)
            share = float(weight.mean())
            images, masks = (blend(values, values[partners], weight) for values in (images, masks))
        self.note(own_share=share)
        # One name for mixed and unmixed batches, so that the log of an epoch averages over all its steps.
        return [Term(images, masks, 1.0, "mixed")]
