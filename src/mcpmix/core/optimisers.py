"""Optimisers by name, and the courses of their learning rates."""

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from mcpmix.core.errors import DependencyError


def build_adamw(groups: list[dict[str, Any]], weight_decay: float, name: str) -> Optimizer:
    """AdamW over parameter groups, each with "params" and "lr".

    Args:
        name: "adamw", or "adamw-8bit": moments in 8 bits, a quarter of the memory.

    Raises:
        DependencyError: the 8-bit version is not installed.
    """
    require_optimiser(name)
    if name == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    optimiser: Optimizer = import_module("bitsandbytes.optim").AdamW8bit(groups, weight_decay=weight_decay)
    return optimiser


def require_optimiser(name: str) -> None:
    """Raise a DependencyError if the package of an optimiser is not installed."""
    if name == "adamw-8bit" and find_spec("bitsandbytes") is None:
        raise DependencyError(
            "finetune.optimiser: adamw-8bit needs the package bitsandbytes, which is not installed. Get it "
            "with `pip install 'mcpmix[8bit]'`, or set finetune.optimiser=adamw, which takes six more bytes "
            "per trained weight."
        )


# --- courses of learning rates: the rate that an optimiser has when it is passed in is the full one ---------


def warm_up(optimiser: Optimizer, step: int, warmup_steps: int) -> None:
    """Set the rates of a step, from 0: a linear rise over `warmup_steps` to each group's own rate.

    The rates depend on the step and not on earlier calls, so there is nothing to save.
    """
    factor = min(1.0, (step + 1) / (warmup_steps + 1))
    for group in optimiser.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def cosine(optimiser: Optimizer, steps: int) -> LRScheduler:
    """For the first group: a linear rise over a twentieth of the steps, then half a cosine down to 0.

    All other groups keep their rates.
    """
    rise = max(1, round(0.05 * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    constant = [lambda _: 1.0] * (len(optimiser.param_groups) - 1)
    return LambdaLR(optimiser, [factor, *constant])


def plateau(
    optimiser: Optimizer, steps: int, warmup_steps: int = 100, decay_share: float = 0.2
) -> LRScheduler:
    """Constant between a linear rise and a linear fall to 0 over the last `decay_share` of the steps."""

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / warmup_steps, (steps - step) / (decay_share * steps))

    return LambdaLR(optimiser, factor)


def one_cycle(optimiser: Optimizer, steps: int, warmup_share: float = 0.05) -> LRScheduler:
    """A rise over the first `warmup_share` of the steps, then a fall to nearly 0; momentum runs opposite."""
    full = [group["lr"] for group in optimiser.param_groups]
    return OneCycleLR(optimiser, full, total_steps=steps, pct_start=warmup_share)
