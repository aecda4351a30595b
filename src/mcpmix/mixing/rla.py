"""RLA: learning how much of the synthetic image to use, anchored at the real data; and MCPMix with it."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, DataError, TrainingError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.controllers import CONTROLLERS, RunningMean, Statistics
from mcpmix.mixing.mcpmix import cosine_decay, mix, paired_terms
from mcpmix.mixing.mmd import FeatureExtractor, FrozenFeatures, mmd
from mcpmix.mixing.strategy import Batch, Strategy, Term, require

_COLLAPSE = 0.05  # share of rho_max below which the mixed images teach nothing


class RLALoss(NamedTuple):
    """The objective of one step and its parts, 0-d tensors."""

    total: Tensor
    """`(1 - rho) L_real + rho L_mix + distribution + prior`."""
    discrepancy: Tensor
    """D_t of a batch, the latest one measured; nan before the first, or without features."""
    distribution: Tensor
    """`mu [mean D_t - tau_t]_+`, with the gradient of the batch's D_t; 0 on steps that do not measure it."""
    prior: Tensor
    """`lambda_rho (rho - rho_prior)^2 + lambda_s (s - s_prior)^2`."""


class RLA(nn.Module):
    """Real-anchored learnable annealing: learns the mixing share `s` and the loss weight `rho`.

    `s = s_max sigmoid(zeta)` and `rho = rho_max sigmoid(psi)` start at half of their bounds. Call
    `set_epoch` each epoch, `mix` and `loss` each step, and give `gate_parameters()` to the optimiser in a
    group of their own, with `gate_learning_rate` and without weight decay.

    The margin is compared with the running mean of D_t, since D_t of one small batch scatters by about its
    own size: in value the distribution term is `mu [mean D_t - tau_t]_+`, and its gradient is that of
    `mu D_t` of the batch while the mean is above the margin, 0 otherwise.

    Args:
        epochs: T, the epochs over which margin and priors anneal.
        features: The frozen phi: images (B, 3, H, W) to vectors (B, F). A module is frozen in place and stays
            out of `parameters()` and `state_dict()`. May be None only if `mu` is 0.
        s_max: Largest synthetic share, in (0, 1].
        rho_max: Largest weight of the mixed loss, in (0, 1].
        mu: Weight of the distribution term, 0 or more. With 0, D_t is measured for the log only.
        tau0: The margin at the start, in units of D_t; "auto": measured by `calibrate`.
        lambda_s: Weight of the prior on s, 0 or more.
        lambda_rho: Weight of the prior on rho, 0 or more.
        controller: "network" (a small network over training signals) or "scalar" (two numbers).
        tail_epochs: Epochs after T; all schedules stay at their values of T there.
        s_prior_max: The prior on s at the start, in [0, 1]. None: `s_max`.
        rho_prior_max: The prior on rho at the start, in [0, 1]. None: `rho_max`.
        mmd_every: Measure D_t on every k-th call only. On these the distribution term counts k times, so the
            mean gradient is the same at a k-th of the cost of phi.
        momentum: Of the running mean of D_t over the steps that measure it, in [0, 1). 0: the margin is
            compared with the D_t of each batch, as the paper writes it.
        root: D_t is MMD instead of its square.
        bandwidths: Multiples of the median bandwidth; the kernel is the mean over them.

    Raises:
        ConfigError: If a setting is out of range; the message lists every problem.
    """

    epoch: Tensor
    calls: Tensor
    tau0: Tensor
    progress: Tensor
    decay: Tensor
    discrepancy: Tensor

    def __init__(
        self,
        epochs: int,
        features: FeatureExtractor | None = None,
        *,
        s_max: float = 0.7,
        rho_max: float = 0.5,
        mu: float = 1.0,
        tau0: float | Literal["auto"] = "auto",
        lambda_s: float = 1e-3,
        lambda_rho: float = 1e-3,
        controller: Literal["network", "scalar"] = "network",
        tail_epochs: int = 0,
        s_prior_max: float | None = None,
        rho_prior_max: float | None = None,
        mmd_every: int = 1,
        momentum: float = 0.9,
        root: bool = False,
        bandwidths: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        self.epochs, self.tail_epochs, self.mmd_every = epochs, tail_epochs, mmd_every
        self.s_max, self.rho_max, self.mu = s_max, rho_max, mu
        self.lambda_s, self.lambda_rho = lambda_s, lambda_rho
        self.s_prior_max = s_max if s_prior_max is None else s_prior_max
        self.rho_prior_max = rho_max if rho_prior_max is None else rho_prior_max
        self.momentum, self.root, self.bandwidths = momentum, root, tuple(bandwidths)
        start = math.nan if tau0 == "auto" else tau0
        checks = {
            f"epochs is {epochs}; expected 1 or more": epochs >= 1,
            f"tail_epochs is {tail_epochs}; expected 0 or more": tail_epochs >= 0,
            f"mmd_every is {mmd_every}; expected 1 or more": mmd_every >= 1,
            f"momentum is {momentum}; expected a value in [0, 1)": 0 <= momentum < 1,
            f"tau0 is {tau0}; expected 0 or more, or 'auto'": not start < 0,
            "features is None; give a feature extractor, or set mu=0": features is not None or mu == 0,
            f"controller is {controller!r}; expected {' or '.join(CONTROLLERS)}": controller in CONTROLLERS,
        }
        for name in ("s_max", "rho_max", "s_prior_max", "rho_prior_max"):
            value, is_bound = getattr(self, name), not name.endswith("prior_max")
            fine = 0 < value <= 1 if is_bound else 0 <= value <= 1
            checks[f"{name} is {value}; expected a value in {'(' if is_bound else '['}0, 1]"] = fine
        for name in ("mu", "lambda_s", "lambda_rho"):
            value = getattr(self, name)
            checks[f"{name} is {value}; expected 0 or more"] = 0 <= value < math.inf
        require("RLA", checks)
        self.features = None if features is None else FrozenFeatures(features)
        self.controller = CONTROLLERS[controller]()
        self.statistics, self.mean_discrepancy = Statistics(), RunningMean(self.momentum)
        self.register_buffer("epoch", torch.tensor(0))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("tau0", torch.tensor(start))
        self.register_buffer("progress", torch.tensor(0.0))
        self.register_buffer("decay", torch.tensor(1.0))
        self.register_buffer("discrepancy", torch.tensor(math.nan))
        self._ready = False

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, t = 1 ... T + tail; in the tail the schedules stay at their values of T."""
        last = self.epochs + self.tail_epochs
        if not 1 <= epoch <= last:
            raise ConfigError(
                f"RLA.set_epoch({epoch}): expected an epoch from 1 to {last} (epochs={self.epochs}, "
                f"tail_epochs={self.tail_epochs}). Count from 1, and give RLA the length of the whole run."
            )
        self.epoch.fill_(epoch)
        self.progress.fill_(min(epoch / self.epochs, 1.0))
        self.decay.fill_(cosine_decay(epoch, self.epochs))

    def gates(self) -> tuple[Tensor, Tensor]:
        """The current logits `(psi, zeta)`, 0-d tensors with gradients."""
        psi, zeta = self.controller(self.statistics.signals(self.progress, self.decay))
        return psi, zeta

    @property
    def psi(self) -> Tensor:
        """The logit of rho, 0-d, with gradients."""
        return self.gates()[0]

    @property
    def zeta(self) -> Tensor:
        """The logit of s, 0-d, with gradients."""
        return self.gates()[1]

    @property
    def rho(self) -> Tensor:
        """The weight of the mixed loss, 0-d in [0, rho_max], with gradients."""
        return self.rho_max * torch.sigmoid(self.psi)

    @property
    def s(self) -> Tensor:
        """The synthetic share, 0-d in [0, s_max], with gradients."""
        return self.s_max * torch.sigmoid(self.zeta)

    @property
    def tau(self) -> Tensor:
        """The margin of this epoch, `tau0 (1 + cos(pi t / T)) / 2`, 0-d; nan before calibration."""
        return self.tau0 * self.decay

    @property
    def s_prior(self) -> Tensor:
        """The prior on s of this epoch, 0-d in [0, s_prior_max]."""
        return self.s_prior_max * self.decay

    @property
    def rho_prior(self) -> Tensor:
        """The prior on rho of this epoch, 0-d in [0, rho_prior_max]."""
        return self.rho_prior_max * self.decay

    @property
    def needs_calibration(self) -> bool:
        """Whether the margin is "auto", used and not yet measured."""
        return self.mu > 0 and bool(self.tau0.isnan())

    @property
    def measures(self) -> bool:
        """Whether the next call of `loss` measures the discrepancy: in training every `mmd_every`-th does."""
        seldom = self.training and self.mmd_every > 1
        return self.features is not None and not (seldom and int(self.calls) % self.mmd_every)

    @property
    def collapsed(self) -> bool:
        """Whether rho fell below 5 % of its bound before the last quarter of T.

        The mixed images then no longer teach anything: a failure to be reported, not annealing.
        """
        early = 4 * int(self.epoch) <= 3 * self.epochs
        return early and float(self.rho.detach()) < _COLLAPSE * self.rho_max

    def mix(self, real: Tensor, synthetic: Tensor, relative: Tensor | None = None) -> Tensor:
        """`(1 - s) real + s synthetic` for images (B, 3, H, W); gradients flow to s.

        With `relative`, factors (B,) around 1, sample i takes the share `s relative_i`, at most `s_max`;
        without it all samples take s, as in the paper.
        """
        if relative is None:
            return mix(real, synthetic, self.s)
        return mix(real, synthetic, (self.s * relative.to(real)).clamp(max=self.s_max))

    def loss(self, loss_real: Tensor, loss_mix: Tensor, real: Tensor, mixed: Tensor) -> RLALoss:
        """The objective of one step.

        In training mode it also updates the signals of the controller and the running mean of D_t.

        Args:
            loss_real: Mean segmentation loss of the real images, 0-d.
            loss_mix: That of the mixed images against the same masks.
            real: (B, 3, H, W).
            mixed: What `mix` returned for them, with its graph.

        Raises:
            TrainingError: If `set_epoch` or `calibrate` was forgotten, or `mixed` lost its graph.
        """
        psi, zeta = self.gates()
        self._check_step(loss_real, loss_mix, mixed, zeta)
        rho, s = self.rho_max * torch.sigmoid(psi), self.s_max * torch.sigmoid(zeta)
        measured, distribution = None, torch.zeros_like(self.decay)
        if self.measures:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.mu > 0):
                measured = self._discrepancy(real, mixed)
            level = self.mean_discrepancy(measured)
            if self.mu > 0:
                times = self.mmd_every if self.training else 1
                level = level + (measured - measured.detach())  # the mean's value with the batch's gradient
                # relu, not clamp: its gradient at D = tau is 0, as in the paper's indicator of D > tau.
                distribution = times * self.mu * torch.relu(level - self.tau)
        prior = self.lambda_rho * (rho - self.rho_prior) ** 2 + self.lambda_s * (s - self.s_prior) ** 2
        total = (1.0 - rho) * loss_real + rho * loss_mix + distribution + prior
        if self.training:
            self.calls += 1
            if measured is not None:
                self.discrepancy.copy_(measured.detach())
            self.statistics.update(loss_real, loss_mix, measured, self.tau0)
        discrepancy = self.discrepancy.clone() if measured is None else measured
        return RLALoss(total, discrepancy, distribution, prior)

    @torch.no_grad()
    def calibrate(
        self, batches: Iterable[tuple[Tensor, Tensor]], relative: Callable[[int], Tensor] | None = None
    ) -> float:
        """Set tau0 to the mean discrepancy of `(real, synthetic)` batches at `s = s_max`, and return it.

        Args:
            batches: (B, 3, H, W) each, of the training data and batch size. One batch scatters by about its
                own size: give twenty or more, an epoch if it is not too long.
            relative: Draws the factors (B,) that training gives to `mix` for B samples; None if it does not.

        Raises:
            DataError: If there is no batch, or the features see no difference.
        """
        values = []
        for real, fake in batches:
            # As in `mix`, where shares stay within the bound.
            share = self.s_max if relative is None else self.s_max * relative(len(real)).clamp(max=1.0)
            values.append(float(self._discrepancy(real, mix(real, fake, share))))
        mean = sum(values) / len(values) if values else math.nan
        if not 0.0 < mean < math.inf:
            raise DataError(
                f"RLA.calibrate needs batches with a discrepancy above 0, got a mean of {mean} over "
                f"{len(values)} batches. Give it (real, synthetic) pairs that differ, or set tau0 by hand."
            )
        self.tau0.fill_(mean)
        return mean

    def gate_parameters(self) -> list[nn.Parameter]:
        """The learnable parameters of the gates, for an optimiser group without weight decay."""
        return list(self.controller.parameters())

    def gate_learning_rate(self, steps: int, lr: float | Literal["auto"] = "auto") -> float:
        """The learning rate of the gates for Adam or AdamW, in a run of so many steps, tail included.

        "auto" lets them travel about 3.5 logits in the run, as `Controller.learning_rate` explains.
        """
        return self.controller.learning_rate(steps) if lr == "auto" else lr

    def _discrepancy(self, real: Tensor, mixed: Tensor) -> Tensor:
        if self.features is None:
            raise ConfigError("RLA was built without features, so it has no discrepancy to calibrate.")
        with torch.no_grad():
            anchor = self.features(real)
        return mmd(self.features(mixed), anchor, root=self.root, bandwidths=self.bandwidths)

    def _check_step(self, loss_real: Tensor, loss_mix: Tensor, mixed: Tensor, zeta: Tensor) -> None:
        if not self._ready:  # checked once: reading buffers makes the host wait for the accelerator
            if int(self.epoch) == 0:
                raise TrainingError(
                    "RLA.loss was called before set_epoch. Call rla.set_epoch(t), t = 1 ... T, at the start "
                    "of each epoch; without it nothing anneals."
                )
            if self.needs_calibration:
                raise TrainingError(
                    "RLA has tau0='auto' and no margin yet. Call rla.calibrate(batches) with a few "
                    "(real, synthetic) batches before training, or give tau0 a number."
                )
            self._ready = True
        if loss_real.ndim or loss_mix.ndim:
            raise TrainingError(
                f"RLA.loss expects mean losses, 0-d; got shapes {tuple(loss_real.shape)} and "
                f"{tuple(loss_mix.shape)}. Average over pixels and samples first."
            )
        if torch.is_grad_enabled() and zeta.requires_grad and not mixed.requires_grad:
            raise TrainingError(
                "RLA.loss: the mixed images carry no gradient, so s could not learn. Pass on what "
                "rla.mix(real, synthetic) returned, without detach, no_grad or a round trip through NumPy."
            )


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
        checks = {
            f"spread is {spread}; expected a value in [0, 1]": 0.0 <= spread <= 1.0,
            f"gate_lr is {gate_lr}; expected a learning rate above 0, or 'auto'": gate_lr == "auto"
            or gate_lr > 0,
        }
        require("MCPMix with RLA", checks)
        self.rla, self.gate_lr, self.spread = rla, gate_lr, spread
        self._steps: dict[str, list[Tensor]] = defaultdict(list)  # what the log gives the means of

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Measure the margin on these batches, if it is "auto" and still unknown.

        Shares are drawn as in training with its gate fully open, s = s_max: the margin starts at the largest
        discrepancy that training can show, so that nothing is penalised early, as the paper wants it. With
        s_max for every sample it would be far above that under spread; at the s of the start it would bite
        from the first step on.
        """
        if self.rla.needs_calibration:
            rng = torch_rng("mcpmix.mixing", "rla margin")
            self.rla.calibrate(
                ((batch.images, batch.pairs()) for batch in batches),
                lambda count: self._relative(count, rng),
            )

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, from 1 to the end of the tail."""
        self._steps.clear()
        self.rla.set_epoch(epoch)

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real and the mixed images, with their learnt weights."""
        relative = self._relative(len(batch.images), rng) if self.spread > 0 else None
        return paired_terms(batch, self.rla.mix(batch.images, batch.pairs(), relative), self.rla.rho)

    def combine(self, losses: Sequence[Tensor], batch: Batch, terms: Sequence[Term]) -> Tensor:
        """The objective of RLA: the weighted losses, the distribution term and the priors, 0-d."""
        loss_real, loss_mix = losses
        with torch.no_grad():  # before `loss`, which moves the signals of the controller
            step = {"s": self.rla.s, "rho": self.rla.rho}
        measures = self.rla.measures
        result = self.rla.loss(loss_real, loss_mix, batch.images, terms[1].images)
        step["prior"] = result.prior
        if measures:
            step["discrepancy"] = result.discrepancy
            step["discrepancy_mean"] = self.rla.mean_discrepancy.value.clone()
            # As the paper writes it: without the factor that makes up for the steps that do not measure.
            step["distribution"] = result.distribution / (self.rla.mmd_every if self.training else 1)
        for name, value in step.items():
            self._steps[name].append(value.detach())
        return result.total

    def parameter_groups(self, steps: int) -> list[dict[str, Any]]:
        """One group: the gates, without weight decay."""
        lr = self.rla.gate_learning_rate(steps, self.gate_lr)
        return [{"name": "gates", "params": self.rla.gate_parameters(), "lr": lr, "weight_decay": 0.0}]

    def log(self) -> dict[str, float]:
        """Means over the steps of the epoch, the gates at its end, the margin and the priors.

        Discrepancy (of batches, and its running mean, which is compared with the margin) and distribution
        term are means over the steps that measured them, and absent if none did.
        """
        rla = self.rla
        values = {name: torch.stack(found).mean() for name, found in self._steps.items()}
        values |= {name: getattr(rla, name) for name in ("s_prior", "rho_prior", "tau", "tau0")}
        values |= {"s_end": rla.s, "rho_end": rla.rho}
        return {name: float(value.detach()) for name, value in values.items()} | {"mu": float(rla.mu)}

    def warnings(self) -> list[str]:
        """A collapsed rho, if there is one."""
        if not self.rla.collapsed:
            return []
        return [
            f"rho has collapsed to {float(self.rla.rho.detach()):.4f} (bound {self.rla.rho_max}) by epoch "
            f"{int(self.rla.epoch)} of {self.rla.epochs}: the mixed images no longer teach anything. Lower "
            "gate_lr, or look at the pairs: L_mix stays far above L_real."
        ]

    def _relative(self, count: int, rng: torch.Generator) -> Tensor:
        """The shares of so many samples as factors of s, (count,): 1 + spread U[-1, 1]."""
        return 1 + self.spread * (2 * torch.rand(count, generator=rng) - 1)
