"""+MCPMix+RLA: paired mixing whose share and weight are learnt."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.rla import RLA, RLALoss
from mcpmix.mixing.strategy import Batch, ParameterGroup, Strategy, Term, paired_terms


@final
class RLAMix(Strategy):
    """The full method: real and mixed images, whose share s and loss weight rho are learnt (`RLA`).

    Cost: two images for each one, and a pass of phi with its gradient where the discrepancy is evaluated.

    Args:
        rla: The gates and their objective.
        gate_lr: Learning rate of the gates, above 0; "auto": see `RLA.gate_learning_rate`.
        spread: Half-width of the uniform distribution of a sample's share around s, relative to s, in [0, 1].
            0: all samples take s, as in the paper. 1: from U[0, 2s], at first the distribution of "mcpmix",
            whose scale is then learnt. What was measured with it is in docs/rla.md.
    """

    needs_pairs: ClassVar[bool] = True

    def __init__(self, rla: RLA, gate_lr: float | Literal["auto"] = "auto", spread: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= spread <= 1.0:
            raise ConfigError(f"spread is {spread}; expected a value in [0, 1].")
        if gate_lr != "auto" and not gate_lr > 0:
            raise ConfigError(f"gate_lr is {gate_lr}; expected a learning rate above 0, or 'auto'.")
        self.rla = rla
        self.spread = spread
        self.gate_lr: float | Literal["auto"] = gate_lr
        self._last: RLALoss | None = None

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Measure the margin on these batches, if it is "auto" and still unknown."""
        if self.rla.needs_calibration:
            self.rla.calibrate((batch.images, batch.pairs()) for batch in batches)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, from 1 to the end of the tail."""
        self.rla.set_epoch(epoch)

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real and the mixed images, with their learnt weights."""
        relative = None
        if self.spread > 0:
            relative = 1 + self.spread * (2 * torch.rand(len(batch.images), generator=rng) - 1)
        return paired_terms(batch, self.rla.mix(batch.images, batch.pairs(), relative), self.rla.rho)

    def combine(self, losses: Sequence[Tensor], batch: Batch, terms: Sequence[Term]) -> Tensor:
        """The objective of RLA: the weighted losses, the distribution term and the priors, 0-d."""
        loss_real, loss_mix = losses
        result = self.rla.loss(loss_real, loss_mix, batch.images, terms[1].images)
        self._last = RLALoss(*(part.detach() for part in result))
        return result.total

    def parameter_groups(self, steps: int) -> list[ParameterGroup]:
        """One group: the gates, without weight decay."""
        return [
            {
                "name": "gates",
                "params": self.rla.gate_parameters(),
                "lr": self.rla.gate_learning_rate(steps, self.gate_lr),
                "weight_decay": 0.0,
            }
        ]

    def log(self) -> dict[str, float]:
        """Gates, margin, priors and the latest parts of the objective."""
        rla = self.rla
        values = {
            "s": rla.s,
            "rho": rla.rho,
            "s_prior": rla.s_prior,
            "rho_prior": rla.rho_prior,
            "tau": rla.tau,
        }
        if self._last is not None:
            last = self._last._asdict()
            values |= {name: last[name] for name in ("discrepancy", "distribution", "prior")}
        return {name: float(value.detach()) for name, value in values.items()}

    def warnings(self) -> list[str]:
        """A collapsed rho, if there is one."""
        if not self.rla.collapsed:
            return []
        return [
            f"rho has collapsed to {float(self.rla.rho.detach()):.4f} (bound {self.rla.rho_max}) by epoch "
            f"{int(self.rla.epoch)} of {self.rla.epochs}: the mixed images no longer teach anything. Lower "
            "gate_lr, or look at the pairs: L_mix stays far above L_real."
        ]
