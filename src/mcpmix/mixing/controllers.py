"""Where the two gate logits of RLA come from: two plain scalars, or a small network over training signals."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng

_GATE_TRAVEL = 3.5  # logits in a run, at the automatic learning rate: enough to anneal, not to collapse

SIGNALS = 5
"""Inputs of a controller, each in [-1, 1]: progress t/T, L_real, L_mix, D_t and tau_t."""


class Controller(nn.Module, ABC):
    """Computes the logits `(psi, zeta)`, both exactly 0 before the first optimiser step."""

    travel: ClassVar[float]
    """About how many logits N Adam steps at learning rate 1/N move under gradients of constant sign."""

    def learning_rate(self, steps: int) -> float:
        """For Adam or AdamW: about 3.5 logits in so many steps, for a gradient that never changes sign.

        With less, a short run does not anneal; with more, rho falls to nothing by mid-training.
        """
        if steps < 1:
            raise ConfigError(
                f"RLA.gate_learning_rate: steps is {steps}; expected the length of the run, >= 1."
            )
        return _GATE_TRAVEL / (self.travel * steps)

    @abstractmethod
    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """The logits `(psi, zeta)`, two 0-d tensors, for the signals, shape (5,)."""


class ScalarController(Controller):
    """The gates of the paper's Algorithm 1: two learnable numbers."""

    travel: ClassVar[float] = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.psi = nn.Parameter(torch.zeros(()))
        self.zeta = nn.Parameter(torch.zeros(()))

    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 (one interface for both)
        """The two numbers, whatever the signals."""
        return self.psi, self.zeta


class NetworkController(Controller):
    """The paper's lightweight auxiliary network: one hidden layer, two outputs, last layer zero at the start.

    The hidden activation is a softmax, so each output is a weighted mean of its last-layer weights, and the
    hidden units share the states of training among them. Under gradients of one sign these weights move
    together, and the logits travel about as far as plain scalars would, however the signals change; under
    gradients whose sign depends on the signals they part.

    Its initial weights come from their own stream. They are the same in every run, and building it leaves the
    global stream alone, so that arms with and without RLA start from the same segmenter.
    """

    HIDDEN: ClassVar[int] = 8
    # Measured for falling, flat and rising losses: 1.0 (10 steps) to 1.46 (1,000 steps) times the travel of a
    # scalar at the same rate. With 1.35, runs of 10 to 4,000 steps travel 2.6 to 4.0 logits.
    travel: ClassVar[float] = 1.35

    def __init__(self) -> None:
        super().__init__()
        # On the meta device the default initialisation draws nothing from the global stream.
        self.hidden = nn.Linear(SIGNALS, self.HIDDEN, device="meta").to_empty(device="cpu")
        self.output = nn.Linear(self.HIDDEN, 2, bias=False, device="meta").to_empty(device="cpu")
        generator = torch_rng("mcpmix.mixing", "rla controller")
        bound = 1.0 / math.sqrt(SIGNALS)
        nn.init.uniform_(self.hidden.weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.hidden.bias, -bound, bound, generator=generator)
        nn.init.zeros_(self.output.weight)

    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """The two outputs of the network for these signals."""
        psi, zeta = self.output(torch.softmax(self.hidden(signals), dim=-1))
        return psi, zeta


def newest_weight(count: Tensor, momentum: float) -> Tensor:
    """Weight of the newest of `count` values in a running mean, where each keeps `momentum` of its weight.

    A plain mean of the first values, then an exponential one: no bias towards a starting value.
    """
    return torch.clamp(1.0 / count.clamp(min=1.0), min=1.0 - momentum)


class RunningMean(nn.Module):
    """Running mean of a number, kept in buffers, so that a resumed run continues exactly.

    Args:
        momentum: Share of its weight that a value keeps when the next one comes, in [0, 1); 0: the last one.
    """

    value: Tensor
    count: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.tensor(math.nan))
        self.register_buffer("count", torch.tensor(0.0))

    @torch.no_grad()
    def forward(self, new: Tensor) -> Tensor:
        """The mean with this value, both 0-d; stored in training mode only."""
        new = new.to(self.value)
        mean = torch.lerp(self.value, new, newest_weight(self.count + 1, self.momentum))
        mean = torch.where(self.value.isnan(), new, mean)
        if self.training:
            self.value.copy_(mean)
            self.count += 1
        return mean


CONTROLLERS: dict[str, type[Controller]] = {"network": NetworkController, "scalar": ScalarController}


class Statistics(nn.Module):
    """Running means of what a controller sees, free of units: losses over the first L_real, D over tau_0.

    Kept as buffers, so that a resumed run continues exactly.
    """

    MOMENTUM: ClassVar[float] = 0.98

    running: Tensor
    counts: Tensor
    first_loss: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.ones(3))
        self.register_buffer("counts", torch.zeros(3))
        self.register_buffer("first_loss", torch.ones(()))

    @torch.no_grad()
    def update(self, loss_real: Tensor, loss_mix: Tensor, discrepancy: Tensor | None, tau0: Tensor) -> None:
        """Take in one step; a discrepancy of None (not measured) leaves its mean as it is. 0-d tensors."""
        real, mixed = loss_real.detach().to(self.running), loss_mix.detach().to(self.running)
        size = torch.where(real != 0, real.abs(), torch.ones_like(real))
        self.first_loss.copy_(torch.where(self.counts[0] == 0, size, self.first_loss))
        # tau_0 is 0 if the margin was switched off and nan if it was never needed: D then counts as it is.
        scale = torch.where(tau0 > 0, tau0, torch.ones_like(tau0))
        measured = discrepancy is not None
        ratio = self.running[2] if discrepancy is None else discrepancy.detach().to(self.running) / scale
        values = torch.stack([real / self.first_loss, mixed / self.first_loss, ratio])
        self.counts += torch.tensor([1.0, 1.0, float(measured)]).to(self.counts)
        self.running.copy_(torch.lerp(self.running, values, newest_weight(self.counts, self.MOMENTUM)))

    def signals(self, progress: Tensor, decay: Tensor) -> Tensor:
        """The inputs of a controller, (5,), each in [-1, 1] for losses that are not negative.

        Args:
            progress: t/T, a 0-d tensor in [0, 1].
            decay: tau_t / tau_0, a 0-d tensor in [0, 1].
        """
        # r / (1 + |r|) is 1/2 at the starting level, and stays bounded if a loss explodes.
        bounded = self.running / (1.0 + self.running.abs())
        return 2.0 * torch.cat([progress[None], bounded, decay[None]]) - 1.0
