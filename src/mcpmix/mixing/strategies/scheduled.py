"""MCPMix under the two handcrafted schedules that the paper compares RLA with."""

from abc import abstractmethod
from typing import ClassVar, final

import torch

from mcpmix.core.errors import ConfigError, bullet_list
from mcpmix.mixing.paired import mix
from mcpmix.mixing.schedules import cosine_share, stepwise_share
from mcpmix.mixing.strategy import Batch, FixedStrategy, Term, paired_terms


class ScheduledMix(FixedStrategy):
    """Paired mixing where each sample's share is a draw r from U[0, 1] times a ceiling that falls to 0 at T.

    Args:
        epochs: T, the length of the schedule; later epochs count as T.
        rho: Weight of the mixed loss, in [0, 1]; as for `PairedUniform`.
    """

    needs_pairs: ClassVar[bool] = True

    def __init__(self, epochs: int, rho: float = 0.5) -> None:
        super().__init__()
        problems = []
        if epochs < 1:
            problems.append(f"epochs is {epochs}; expected 1 or more")
        if not 0.0 <= rho <= 1.0:
            problems.append(f"rho is {rho}; expected a value in [0, 1]")
        if problems:
            raise ConfigError(bullet_list("A mixing schedule cannot be built with these settings:", problems))
        self.epochs, self.rho = epochs, rho

    @abstractmethod
    def ceiling(self, epoch: int) -> float:
        """The largest share of this epoch, in [0, 1]."""

    @final
    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real images, and the images mixed with one scheduled random share per sample."""
        share = self.ceiling(self.epoch) * torch.rand(len(batch.images), generator=rng)
        self.note(s=float(share.mean()), rho=self.rho)
        return paired_terms(batch, mix(batch.images, batch.pairs(), share), self.rho)


@final
class StepwiseMix(ScheduledMix):
    """Stepwise decay: shares from [0, 1], reduced every 50 epochs after epoch 100, 0 at 400, scaled to T.

    Cost: two images for each one.
    """

    def ceiling(self, epoch: int) -> float:
        """See `stepwise_share`."""
        return stepwise_share(epoch, self.epochs)


@final
class CosineMix(ScheduledMix):
    """Cosine annealing: share `r * 0.25 (1 + cos(pi t / T))`.

    Cost: two images for each one.
    """

    def ceiling(self, epoch: int) -> float:
        """See `cosine_share`."""
        return cosine_share(epoch, self.epochs)
