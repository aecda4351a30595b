"""MCPMix: mixing a real image with its synthetic counterpart under one hard mask."""

import torch
from torch import Tensor

from mcpmix.core.errors import DataError, bullet_list


def mix(real: Tensor, synthetic: Tensor, s: float | Tensor) -> Tensor:
    """Mix in appearance only: `(1 - s) * real + s * synthetic`. The target stays the mask of `real`.

    Linear, so mixing before or after a per-channel normalisation is the same thing.

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
    problems = _problems(real, synthetic, s)
    if problems:
        raise DataError(bullet_list("mix(real, synthetic, s) cannot pair its arguments:", problems))
    if isinstance(s, Tensor):
        share = s.to(device=real.device, dtype=real.dtype)
        return torch.lerp(real, synthetic, share.reshape(-1, *([1] * (real.ndim - 1))) if s.ndim else share)
    return torch.lerp(real, synthetic, float(s))


def _problems(real: Tensor, synthetic: Tensor, s: float | Tensor) -> list[str]:
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
        if s.ndim > 1 or (s.ndim == 1 and s.shape[0] != real.shape[0]):
            problems.append(
                f"s has shape {tuple(s.shape)}; expected a float, a 0-d tensor or one share per sample, "
                f"shape ({real.shape[0] if real.ndim else 'B'},)"
            )
    elif not 0.0 <= s <= 1.0:
        problems.append(f"s is {s}; expected a share in [0, 1]")
    return problems
