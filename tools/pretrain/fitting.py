"""The loop that all networks are trained in, a course of learning rates, and the copies that are trained."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from diffusers import AutoencoderKL, AutoencoderTiny, UNet2DConditionModel
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.optim.swa_utils import AveragedModel
from transformers import CLIPTextModel

from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.training import Stateful, run_steps

Network = TypeVar("Network", UNet2DConditionModel, AutoencoderTiny, AutoencoderKL, CLIPTextModel)


def plateau(
    optimiser: Optimizer, steps: int, warmup_steps: int = 100, decay_share: float = 0.2
) -> LRScheduler:
    """Constant between a linear rise and a linear fall to 0 over the last `decay_share` of the steps."""

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / warmup_steps, (steps - step) / (decay_share * steps))

    return LambdaLR(optimiser, factor)


def fit(
    loss: Callable[[int], Tensor],
    model: nn.Module,
    optimiser: Optimizer,
    course: Callable[[Optimizer, int], LRScheduler],
    steps: int,
    checkpoint: Path,
    *,
    average: AveragedModel | None = None,
    largest_gradient: float = 1.0,
    save_every: int = 100,
    after_save: Callable[[int], None] | None = None,
    progress: Progress = SILENT,
) -> None:
    """Train `model` in place; a killed training resumes from its checkpoint.

    Args:
        loss: the loss of step n, a 0-d tensor; its data must depend on n alone.
        course: makes the course of learning rates from the optimiser and the number of steps.
        checkpoint: its stem is what the progress bar says.
        average: moving average of `model`, kept up to date.
        largest_gradient: norm that a gradient is clipped to; infinity: never.
        save_every: steps between two checkpoints.
        after_save: called with the number of finished steps after each.
    """
    rates = course(optimiser, steps)
    state: dict[str, Stateful] = {"model": model, "optimiser": optimiser, "rates": rates}
    if average is not None:
        state["average"] = average

    def step(index: int) -> float:
        value = loss(index)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        if math.isfinite(largest_gradient):
            nn.utils.clip_grad_norm_(model.parameters(), largest_gradient)
        optimiser.step()
        rates.step()
        if average is not None:
            average.update_parameters(model)
        return value.item()

    run_steps(
        step,
        steps=steps,
        state=state,
        checkpoint=checkpoint,
        save_every=save_every,
        title=checkpoint.stem,
        progress=progress,
        after_save=after_save,
    )


def trainable_copy(network: Network) -> Network:
    """A copy to train, which does not know from which folder its weights came."""
    copied = copy.deepcopy(network).train().requires_grad_(True)
    if isinstance(copied, CLIPTextModel):
        copied.config._name_or_path = ""
    else:
        copied.register_to_config(_name_or_path="")
    return copied
