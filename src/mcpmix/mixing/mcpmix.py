"""MCPMix: mixing a real image with its synthetic counterpart under one hard mask.

Schedules go over epochs t = 0 ... T. Later epochs count as T, so that nothing rises again in a tail.
"""

import math
from abc import abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require

_STEPS = 8  # of the stepwise decay: the paper's 50 of 400 epochs
_HELD = 2  # the paper's first 100 epochs


def mix(real: Tensor, synthetic: Tensor, s: float | Tensor) -> Tensor:
    """Mix in appearance only: `(1 - s) * real + s * synthetic`. The target stays the mask of `real`.

    Linear, so mixing before or after a per-channel normalisation is the same.

    Args:
        real: Real images, (B, ...), floating point.
        synthetic: Their synthetic counterparts under the same masks, shape and dtype of `real`.
        s: Synthetic share in [0, 1]: a float, a 0-d tensor (one share for the batch) or (B,) (one per
            sample). Gradients flow to it. The range is checked for floats only: reading a tensor would
            make the host wait for the accelerator.

    Returns:
        The mixed images, like `real`. Bitwise `real` for `s = 0`, and wherever both images agree.

    Raises:
        DataError: If shapes, dtypes or the share do not fit; the message lists every problem.
    """
    problems = []
    if real.ndim == 0:
        problems.append("expected a batch of images (B, ...), got a 0-d tensor")
    if real.shape != synthetic.shape:
        problems.append(
            f"real is {tuple(real.shape)} and synthetic is {tuple(synthetic.shape)}; both must come from the "
            "same crop and resize"
        )
    if real.dtype != synthetic.dtype or not real.is_floating_point():
        problems.append(
            f"real is {real.dtype} and synthetic is {synthetic.dtype}; expected one floating-point dtype"
        )
    if isinstance(s, Tensor):
        if s.ndim and s.shape != real.shape[:1]:
            problems.append(
                f"s has shape {tuple(s.shape)}; expected a float, a 0-d tensor or one share per sample, "
                f"shape ({real.shape[0] if real.ndim else 'B'},)"
            )
    elif not 0.0 <= s <= 1.0:
        problems.append(f"s is {s}; expected a share in [0, 1]")
    if problems:
        raise DataError(bullet_list("mix(real, synthetic, s) cannot pair its arguments:", problems))
    if isinstance(s, Tensor):
        share = s.to(device=real.device, dtype=real.dtype)
        return torch.lerp(real, synthetic, share.reshape(-1, *([1] * (real.ndim - 1))) if s.ndim else share)
    return torch.lerp(real, synthetic, float(s))


def cosine_decay(epoch: int, epochs: int) -> float:
    """`(1 + cos(pi t / T)) / 2`: 1 at epoch `t = 0`, 1/2 at `T / 2`, exactly 0 from `T` on."""
    return (1.0 + math.cos(math.pi * min(epoch, epochs) / epochs)) / 2.0


def paired_terms(batch: Batch, mixed: Tensor, rho: Tensor | float) -> list[Term]:
    """The two terms of MCPMix: `1 - rho` on the real images, `rho` on the mixed, one hard mask for both."""
    return [
        Term(batch.images, batch.masks, 1.0 - rho, "real"),
        Term(mixed, batch.masks, rho, "mixed"),
    ]


class PairedMix(FixedStrategy):
    """Base of paired mixing without learnt gates: a sample's share is a draw from U[0, 1] times a ceiling.

    Args:
        rho: Weight of the mixed loss, in [0, 1]; the real loss has `1 - rho`. The paper gives none for these
            arms; 0.25 is what RLA starts from.
        checks: Of the settings of the subclass, as for `require`.
    """

    needs_pairs: ClassVar[bool] = True

    def __init__(self, rho: float, checks: dict[str, bool]) -> None:
        super().__init__()
        require("MCPMix", {**checks, f"rho is {rho}; expected a value in [0, 1]": 0.0 <= rho <= 1.0})
        self.rho = rho

    @abstractmethod
    def ceiling(self) -> float:
        """The largest share of this epoch, in [0, 1]."""

    @final
    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real images, and the images mixed with one random share per sample."""
        share = self.ceiling() * torch.rand(len(batch.images), generator=rng)
        self.note(s=float(share.mean()), rho=self.rho)
        return paired_terms(batch, mix(batch.images, batch.pairs(), share), self.rho)


@final
class UniformMix(PairedMix):
    """MCPMix without RLA: each sample draws its share from U[0, s_max].

    Cost: two images for each one.

    Args:
        s_max: Largest synthetic share, in (0, 1].
        rho: Weight of the mixed loss, as for `PairedMix`.
    """

    search: ClassVar[Search] = {"s_max": (0.3, 0.5, 0.7), "rho": (0.25, 0.5)}

    def __init__(self, s_max: float = 0.7, rho: float = 0.25) -> None:
        super().__init__(rho, {f"s_max is {s_max}; expected a value in (0, 1]": 0.0 < s_max <= 1.0})
        self.s_max = s_max

    def ceiling(self) -> float:
        """`s_max`, in every epoch."""
        return self.s_max


class ScheduledMix(PairedMix):
    """Base of paired mixing whose ceiling falls to 0 at T.

    Args:
        epochs: T, the length of the schedule; later epochs count as T.
        rho: Weight of the mixed loss, as for `PairedMix`.
    """

    def __init__(self, epochs: int, rho: float = 0.25) -> None:
        super().__init__(rho, {f"epochs is {epochs}; expected 1 or more": epochs >= 1})
        self.epochs = epochs


@final
class StepwiseMix(ScheduledMix):
    """Stepwise decay: shares from [0, 1], reduced every 50 epochs after epoch 100, 0 at 400, scaled to T.

    Cost: two images for each one.
    """

    def ceiling(self) -> float:
        """For `T = 400`: 1 up to epoch 149, then reduced at 150, 200, ..., 400, where it is 0.

        The paper does not say by how much; six equal reductions reach 0 at 400 without a jump.
        """
        # Whole-number arithmetic: rounding must not miss an epoch that is a step.
        reductions = (_STEPS * min(self.epoch, self.epochs) - _HELD * self.epochs) // self.epochs
        return 1.0 - max(reductions, 0) / (_STEPS - _HELD)


@final
class CosineMix(ScheduledMix):
    """Cosine annealing: share `r * 0.25 (1 + cos(pi t / T))`, with r from U[0, 1] for each sample.

    Cost: two images for each one.
    """

    def ceiling(self) -> float:
        """`0.25 (1 + cos(pi t / T))`, in [0, 0.5]."""
        return 0.5 * cosine_decay(self.epoch, self.epochs)
