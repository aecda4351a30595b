"""Which counterpart each sample has in each epoch, by replica number.

A plan is a function of seed, epoch and the gates logged so far, never of what happened to be made: a training
that was killed and continued meets the same counterparts.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from mcpmix.core.seeding import numpy_rng

Replicas = npt.NDArray[np.int64]

EFFORT_LAG = 2
"""Epochs between a gate and the effort that follows it: the images of the next epoch are made during this
one, whose gates are not known yet."""


def effort(epoch: int, gates: Sequence[float]) -> float:
    """How much of the full effort an epoch deserves, in [0, 1]: the budget rule.

    A counterpart enters the objective through `rho * L((1 - s) I_r + s I_s)`: where s or rho is near zero, a
    new image changes next to nothing. So the share of samples that get a new one is `s * rho` relative to the
    first epoch, as it was two epochs before; 1 in the first two.

    Args:
        epoch: from 1.
        gates: `s * rho` after epochs 1, 2, ... as far as known.
    """
    known = min(epoch - EFFORT_LAG, len(gates))
    if known < 1 or gates[0] <= 0:
        return 1.0
    return min(1.0, max(0.0, gates[known - 1] / gates[0]))


class Plan(ABC):
    """Replica numbers of N samples."""

    @abstractmethod
    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, K): the counterparts that each sample has in this epoch, of which it uses one."""

    @abstractmethod
    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): the counterpart that each sample uses in this epoch."""


@final
class FreshPlan(Plan):
    """New counterparts each epoch: replica `epoch - 1`, the numbers a bank with enough replicas would hold.

    Args:
        count: N.
        seed: of the draws.
        budget: give new ones to a share of the samples only (see `effort`); the others keep their last.
    """

    def __init__(self, count: int, seed: int, *, budget: bool = False) -> None:
        self.count, self.seed, self.budget = count, seed, budget

    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, 1): the one counterpart of each sample."""
        return self.used(epoch, gates)[:, None]

    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): number of the last epoch up to this one that gave the sample a new counterpart, from 0."""
        last = np.zeros(self.count, np.int64)
        if not self.budget:
            return last + epoch - 1
        for past in range(2, epoch + 1):
            share = effort(past, gates)
            drawn = numpy_rng("renewed", self.seed, past).random(self.count) < share
            last[drawn] = past - 1
        return last


@final
class BankPlan(Plan):
    """Stored counterparts, each epoch one drawn per sample; some may be replaced by new ones as it goes.

    In each epoch a mask is renewed with probability `refresh`: one of its counterparts, drawn at random,
    gives way to replica `first_new + epoch - 1`, which this epoch uses and which stays until it is replaced
    itself.

    Args:
        stored: for each of N samples the replica numbers in the bank, one at least.
        seed: of the draws.
        refresh: share of the masks renewed each epoch.
        budget: scale that share with `effort`.
        first_new: first replica number that the bank's maker did not use.
    """

    def __init__(
        self,
        stored: Sequence[Sequence[int]],
        seed: int,
        *,
        refresh: float = 0.0,
        budget: bool = False,
        first_new: int = 0,
    ) -> None:
        self.counts = np.array([len(numbers) for numbers in stored])
        width = int(self.counts.max())
        # A sample with fewer repeats its own in the places that are never drawn.
        self.stored: Replicas = np.array([np.resize(numbers, width) for numbers in stored], np.int64)
        self.seed, self.refresh, self.budget, self.first_new = seed, refresh, budget, first_new

    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, K): what the bank holds after the renewals up to this epoch."""
        result = self.stored.copy()
        for past in range(1, epoch + 1 if self.refresh > 0 else 1):
            chosen, places = self._renewed(past, gates)
            result[chosen, places[chosen]] = self.first_new + past - 1
        return result

    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): the renewed counterpart if there is one, otherwise one of the current ones at random."""
        places = numpy_rng("replica", self.seed, epoch).integers(self.counts)
        if self.refresh > 0:
            chosen, renewed = self._renewed(epoch, gates)
            places = np.where(chosen, renewed, places)
        drawn: Replicas = self.current(epoch, gates)[np.arange(len(places)), places]
        return drawn

    def _renewed(self, epoch: int, gates: Sequence[float]) -> tuple[npt.NDArray[np.bool_], Replicas]:
        """Which masks an epoch renews, and in which of their places."""
        rng = numpy_rng("renewed", self.seed, epoch)
        share = self.refresh * (effort(epoch, gates) if self.budget else 1.0)
        return rng.random(len(self.counts)) < share, rng.integers(self.counts)
