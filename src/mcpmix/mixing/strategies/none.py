"""Full-Sup: the real images alone."""

from typing import ClassVar, final

import torch

from mcpmix.mixing.strategy import Batch, FixedStrategy, Term


@final
class FullSup(FixedStrategy):
    """The baseline of the ablation: supervised training without synthetic images.

    Cost: that of a training step, to which the others compare.
    """

    needs_pairs: ClassVar[bool] = False

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:  # noqa: ARG002
        """One term: the real images."""
        return [Term(batch.images, batch.masks, 1.0, "real")]
