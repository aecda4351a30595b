"""The loop that all embedded networks are trained in."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mcpmix.core.checkpoint import Stateful, run_steps
from mcpmix.core.progress import SILENT, Progress

_WARMUP_STEPS = 100
_DECAY_SHARE = 0.2  # of the steps, in which the rate falls


class Descent:
    """An optimiser and the course of its learning rate, which belong together."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
        course: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
        weight_decay: float = 1e-2,
        largest_gradient: float = 1.0,
    ) -> None:
        self.parameters = list(parameters)
        self.optimiser = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=weight_decay)
        self.rates = course(self.optimiser)
        self.largest_gradient = largest_gradient

    def step(self, loss: Tensor) -> None:
        """Follow the gradient of `loss` once."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if math.isfinite(self.largest_gradient):
            nn.utils.clip_grad_norm_(self.parameters, self.largest_gradient)
        self.optimiser.step()
        self.rates.step()


def one_cycle(
    parameters: Iterable[nn.Parameter],
    rate: float,
    steps: int,
    *,
    weight_decay: float = 1e-2,
    largest_gradient: float = 1.0,
) -> Descent:
    """AdamW whose rate rises to `rate` in the first twentieth of the steps and then falls to nearly 0.

    Args:
        parameters: what is trained.
        rate: the highest learning rate.
        steps: of the whole training.
        weight_decay: of AdamW.
        largest_gradient: norm over all parameters that a gradient is cut to; infinity: never.
    """

    def course(optimiser: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.05)

    return Descent(parameters, rate, course, weight_decay, largest_gradient)


def plateau(parameters: Iterable[nn.Parameter], rate: float, steps: int) -> Descent:
    """AdamW whose rate stays at `rate` between a short rise and a linear fall over the last fifth."""

    def share(step: int) -> float:
        return min(1.0, (step + 1) / _WARMUP_STEPS) * min(1.0, (steps - step) / (_DECAY_SHARE * steps))

    return Descent(parameters, rate, lambda optimiser: torch.optim.lr_scheduler.LambdaLR(optimiser, share))


def fit(
    loss: Callable[[int], Tensor],
    model: nn.Module,
    descent: Descent,
    *,
    steps: int,
    checkpoint: Path,
    title: str,
    average: AveragedModel | None = None,
    save_every: int = 100,
    after_save: Callable[[int], None] | None = None,
    progress: Progress = SILENT,
) -> None:
    """Train `model` in place; a killed training goes on from its checkpoint.

    Args:
        loss: the loss of step n, a 0-d tensor; its data must depend on n alone.
        model: all that is trained.
        descent: made for the parameters of `model`.
        steps: optimiser steps.
        checkpoint: file of the state.
        title: what the progress bar says.
        average: moving average of `model`, kept up to date.
        save_every: steps between two checkpoints.
        after_save: called with the number of finished steps after each.
        progress: where to report.
    """
    state: dict[str, Stateful] = {"model": model, "optimiser": descent.optimiser, "rates": descent.rates}
    if average is not None:
        state["average"] = average

    def step(index: int) -> float:
        value = loss(index)
        descent.step(value)
        if average is not None:
            average.update_parameters(model)
        return value.item()

    run_steps(
        step,
        steps=steps,
        state=state,
        checkpoint=checkpoint,
        save_every=save_every,
        title=title,
        progress=progress,
        after_save=after_save,
    )
