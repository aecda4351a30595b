"""Optimisers by name, and the warm-up of their learning rates."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from mcpmix.core.errors import DependencyError


def build_adamw(groups: list[dict[str, Any]], weight_decay: float, name: str) -> torch.optim.Optimizer:
    """AdamW over parameter groups.

    Args:
        groups: each with "params" and "lr".
        weight_decay: of all groups.
        name: "adamw", or "adamw-8bit": moments in 8 bits, a quarter of the memory.

    Raises:
        DependencyError: the 8-bit version is not installed.
    """
    require_optimiser(name)
    if name == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    optimisers = import_module("bitsandbytes.optim")
    optimiser: torch.optim.Optimizer = optimisers.AdamW8bit(groups, weight_decay=weight_decay)
    return optimiser


def require_optimiser(name: str) -> None:
    """See to it that an optimiser can be used.

    Raises:
        DependencyError: its package is not installed.
    """
    if name == "adamw-8bit" and find_spec("bitsandbytes") is None:
        raise DependencyError(
            "finetune.optimiser: adamw-8bit needs the package bitsandbytes, which is not installed. Get it "
            "with `pip install 'mcpmix[8bit]'`, or set finetune.optimiser=adamw, which takes six more bytes "
            "per trained weight."
        )


def warm_up(optimiser: torch.optim.Optimizer, step: int, warmup_steps: int) -> None:
    """Set the rates of a step: rising linearly over `warmup_steps` to each group's own rate, then constant.

    The rates belong to the step and not to how often this was called, so there is nothing to save.

    Args:
        optimiser: whose groups are set; their rates at the first call are the full ones.
        step: number of the step, from 0.
        warmup_steps: steps before the full rate.
    """
    factor = min(1.0, (step + 1) / (warmup_steps + 1))
    for group in optimiser.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
