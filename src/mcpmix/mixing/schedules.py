"""Schedules over epochs t = 0 ... T. Later epochs count as T, so that nothing rises again in a tail."""

import math

_STEPS = 8  # the paper's 50 of 400 epochs
_HELD = 2  # the paper's first 100 epochs


def cosine_decay(epoch: int, epochs: int) -> float:
    """`(1 + cos(pi t / T)) / 2`: 1 at epoch `t = 0`, 1/2 at `T / 2`, exactly 0 from `T` on."""
    return (1.0 + math.cos(math.pi * min(epoch, epochs) / epochs)) / 2.0


def cosine_share(epoch: int, epochs: int) -> float:
    """Largest synthetic share of the paper's cosine schedule, `0.25 (1 + cos(pi t / T))`, in [0, 0.5]."""
    return 0.5 * cosine_decay(epoch, epochs)


def stepwise_share(epoch: int, epochs: int) -> float:
    """Largest synthetic share of the paper's stepwise decay, in [0, 1].

    For `T = 400`: 1 up to epoch 149, then reduced at 150, 200, ..., 400, where it is 0. The paper does not
    say by how much; six equal reductions reach 0 at 400 without a jump. The steps scale with `T`.
    """
    # Whole-number arithmetic: rounding must not miss an epoch that is a step.
    reductions = (_STEPS * min(epoch, epochs) - _HELD * epochs) // epochs
    return 1.0 - max(reductions, 0) / (_STEPS - _HELD)
