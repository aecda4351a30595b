"""Schedules over epochs. All of them clamp at the last epoch, so that nothing rises again in a tail."""

import math

from mcpmix.core.errors import ConfigError

_STEPS_PER_RUN = 8  # the paper's 50 of 400 epochs
_STEPS_HELD = 2  # the paper's first 100 epochs
_REDUCTIONS = _STEPS_PER_RUN - _STEPS_HELD


def cosine_decay(epoch: int, epochs: int) -> float:
    """`(1 + cos(pi t / T)) / 2`: 1 at `t = 0`, 1/2 at `T / 2`, exactly 0 from `T` on.

    Args:
        epoch: The epoch t, 0 or more; values beyond `epochs` count as `epochs`.
        epochs: The length T of the schedule, 1 or more.
    """
    _check(epoch, epochs)
    return (1.0 + math.cos(math.pi * min(epoch, epochs) / epochs)) / 2.0


def cosine_share(epoch: int, epochs: int) -> float:
    """Largest synthetic share of the paper's cosine schedule, `0.25 (1 + cos(pi t / T))`, in [0, 0.5].

    A sample's share is this times its own draw `r` from [0, 1]. Arguments as in `cosine_decay`.
    """
    return 0.5 * cosine_decay(epoch, epochs)


def stepwise_share(epoch: int, epochs: int) -> float:
    """Largest synthetic share of the paper's stepwise decay, in [0, 1].

    For `T = 400`: 1 up to epoch 149, then reduced at 150, 200, ..., 400, where it is 0. The paper does not
    say by how much; six equal reductions reach 0 at 400 without a jump. The steps scale with `T`. A sample's
    share is this times its own draw from [0, 1]. Arguments as in `cosine_decay`.
    """
    _check(epoch, epochs)
    # Whole-number arithmetic: an epoch that is a step must not be missed by rounding.
    reductions = (_STEPS_PER_RUN * min(epoch, epochs) - _STEPS_HELD * epochs) // epochs
    return 1.0 - max(reductions, 0) / _REDUCTIONS


def _check(epoch: int, epochs: int) -> None:
    if epochs < 1 or epoch < 0:
        raise ConfigError(
            f"A schedule needs epochs >= 1 and an epoch >= 0, got epoch {epoch} of {epochs} epochs."
        )
