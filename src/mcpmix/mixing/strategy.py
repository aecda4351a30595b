"""The contract between a training loop and what decides what it trains on.

The loop does not know which strategy it runs. It calls `attach` once, `set_epoch` each epoch, and each step

    terms = strategy.terms(batch, rng)
    logits = [network(term.images) for term in terms]
    losses = [loss(part, term.targets) for part, term in zip(logits, terms)]
    total = strategy.combine(losses, batch, terms) + strategy.consistency(logits, terms)
    total.backward()
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, DataError, TrainingError, bullet_list

Search = Mapping[str, Sequence[object]]
"""Values of settings that are worth trying, the published ones among them."""

InputGradient = Callable[[Tensor, Tensor], Tensor]
"""From images (B, 3, H, W) and targets (B, C, H, W) to the gradient of the loss at the images, like them."""


TrainingSource = Literal["", "images", "pseudo-masks"]
"""What a strategy takes of unlabelled images."""


@dataclass(frozen=True)
class Originals:
    """The samples of a batch before augmentation, for what is computed once per sample.

    Attributes:
        images: Returns the images, (B, 3, H, W), float, normalised. A function, as most strategies need none.
        warp: Moves maps (B, C, H, W) of these images to where augmentation moved their pixels, by nearest
            neighbours.
    """

    images: Callable[[], Tensor]
    warp: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """What a loader gives to a strategy.

    Attributes:
        images: Real images, (B, 3, H, W), float, normalised.
        masks: Hard masks, (B, C, H, W), float in {0, 1}: lesion, or with several classes one channel for each
            label, background first.
        synthetic: Counterparts under the same masks and the same geometric transform, like `images`; None if
            the strategy needs no pairs.
        ids: The ids of the B samples.
        originals: The samples before augmentation; None if the loop cannot tell.
        unlabelled: Unlabelled images, like `images`; None if the strategy takes none.
        pseudo_masks: Masks that a teacher has given them, like `masks`; None if it takes none.
        labelled_set: Synthetic images with masks of their own, like `images` and `masks`; None if it takes
            none.
    """

    images: Tensor
    masks: Tensor
    synthetic: Tensor | None
    ids: tuple[str, ...]
    originals: Originals | None = None
    unlabelled: Tensor | None = None
    pseudo_masks: Tensor | None = None
    labelled_set: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.images.ndim != 4 or self.images.shape[1] != 3:
            problems.append(f"images are {tuple(self.images.shape)}; expected (B, 3, H, W)")
        if self.masks.ndim != 4 or self.masks[:, :1].shape != self.images[:, :1].shape:
            problems.append(f"masks are {tuple(self.masks.shape)}; expected (B, C, H, W) like the images")
        if self.synthetic is not None and self.synthetic.shape != self.images.shape:
            problems.append(f"synthetic is {tuple(self.synthetic.shape)}; expected the shape of the images")
        if len(self.ids) != len(self.images):
            problems.append(f"{len(self.ids)} ids for {len(self.images)} images")
        if problems:
            raise DataError(bullet_list("The parts of a batch do not fit together:", problems))

    def pairs(self) -> Tensor:
        """The synthetic images, (B, 3, H, W).

        Raises:
            DataError: If there are none; the message says how to get them.
        """
        if self.synthetic is None:
            raise DataError(
                f"This strategy mixes real with synthetic images, and the batch of {', '.join(self.ids[:3])} "
                "... has none. Make pairs first (mcpmix synthesize), or train with 'full-sup'."
            )
        return self.synthetic

    def unlabelled_images(self) -> Tensor:
        """The unlabelled images, (B, 3, H, W).

        Raises:
            DataError: If there are none; the message says how to get them.
        """
        if self.unlabelled is None:
            raise DataError(
                "This strategy learns from unlabelled images, and the batch has none. Name some in "
                "data.unlabelled, or train with 'full-sup'."
            )
        return self.unlabelled

    def more(self) -> tuple[Tensor, Tensor]:
        """The unlabelled images and their pseudo-masks, (B, 1, H, W).

        Raises:
            DataError: If there are none; the message says how to get them.
        """
        if self.pseudo_masks is None:
            raise DataError("This strategy trains on pseudo-masks, and the batch has none.")
        return self.unlabelled_images(), self.pseudo_masks

    def with_own_masks(self) -> tuple[Tensor, Tensor]:
        """Synthetic images, (B, 3, H, W), and their own masks, (B, 1, H, W).

        Raises:
            DataError: If there are none; the message says how to get them.
        """
        if self.labelled_set is None:
            raise DataError(
                "This strategy trains on synthetic images with masks of their own, and the batch has none. "
                "`mcpmix run` makes them for the arms in train.arms."
            )
        return self.labelled_set


@dataclass(frozen=True)
class Term:
    """Images with their targets, and how much their loss counts.

    Attributes:
        images: (B', 3, H, W), float, normalised; may carry a graph.
        targets: (B', C, H, W), float in [0, 1]; hard for MCPMix, soft for some baselines.
        weight: Weight of the mean loss of this term; a 0-d tensor may carry a graph.
        name: "real" for unchanged real images, anything else for others; a loop updates running batch
            statistics on "real" terms only.
    """

    images: Tensor
    targets: Tensor
    weight: Tensor | float
    name: str


class Strategy(nn.Module, ABC):
    """What to train on: one interface for the method and all baselines.

    A module, so that `to`, `state_dict` and `load_state_dict` do what a checkpoint needs. A subclass is
    either abstract or final. By default it ignores the network, prepares and learns nothing, and asks for no
    consistency.
    """

    needs_pairs: ClassVar[bool]
    """Whether batches must bring synthetic images."""
    needs_set: ClassVar[bool] = False
    """Whether batches must bring synthetic images with masks of their own."""
    source: ClassVar[TrainingSource] = ""
    """What batches must bring of unlabelled images: nothing, the images, or also their pseudo-masks."""
    ahead: ClassVar[bool] = False
    """Whether `terms` depends on its arguments alone, so that a loop may call it early, in another thread."""
    search: ClassVar[Search] = {}
    """Settings to search, each with its range; empty where there is nothing to choose."""

    def attach(self, gradient: InputGradient, network: nn.Module) -> None:
        """Take access to the network, once, before `prepare`.

        Args:
            gradient: gradient of the current network in evaluation mode. It leaves the gradients of the
                parameters alone; only ratios within a sample count.
            network: the network itself, to be read and never changed.
        """

    def result(self, network: nn.Module) -> nn.Module:
        """The network that is validated and kept; by default the one that is trained."""
        return network

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Look at some training batches once, before the first epoch of a new (not a resumed) run."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, counted from 1. Also called first thing after a resume."""

    @abstractmethod
    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """What to train on in this step. All randomness comes from `rng`, a CPU generator."""

    @abstractmethod
    def combine(self, losses: Sequence[Tensor], batch: Batch, terms: Sequence[Term]) -> Tensor:
        """The objective, 0-d, from the mean loss of each term (0-d tensors in the order of `terms`)."""

    def consistency(self, logits: Sequence[Tensor], terms: Sequence[Term]) -> Tensor:  # noqa: ARG002
        """A penalty between the predictions of the terms, 0-d, to add to the objective; 0 by default.

        Logits are one (B', C, H, W) tensor per term; under autocast they may be of lower precision.
        """
        return torch.zeros((), device=logits[0].device)

    def parameter_groups(self, steps: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Optimiser groups of what the strategy itself learns, for a run of this many optimiser steps.

        Each has "params", "lr", "weight_decay" and a "name" for the log. None by default.
        """
        return []

    @abstractmethod
    def log(self) -> dict[str, float]:
        """The current state in numbers, for the log; may wait for the accelerator."""

    def warnings(self) -> list[str]:
        """A warning for the user at the end of an epoch; empty if there is none."""
        return []


class FixedStrategy(Strategy):
    """Base of strategies that learn nothing: their objective is the weighted sum of the losses.

    A subclass implements `terms` only; it may note numbers for the log with `note`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._notes: dict[str, float] = {}

    @property
    def epoch(self) -> int:
        """The current epoch, from 1."""
        if self._epoch == 0:
            raise TrainingError("The strategy was asked for terms before set_epoch(1).")
        return self._epoch

    @final
    def note(self, **values: float) -> None:
        """Replace the numbers that `log` returns.

        Some names are read elsewhere: `s`, the mean share of the counterpart, and `rho`, the weight of its
        term, scale the effort of `synthesis.budget`; `own_share` chooses the draw that docs/baselines.md
        shows.
        """
        self._notes = values

    @final
    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, counted from 1."""
        self._epoch = epoch

    @final
    def combine(self, losses: Sequence[Tensor], batch: Batch, terms: Sequence[Term]) -> Tensor:  # noqa: ARG002
        """The sum of weight times loss over the terms, 0-d."""
        total = torch.zeros_like(losses[0])
        for loss, term in zip(losses, terms, strict=True):
            total = total + term.weight * loss
        return total

    @final
    def log(self) -> dict[str, float]:
        """What was noted last."""
        return dict(self._notes)


def require(method: str, checks: Mapping[str, bool]) -> None:
    """Refuse settings that are out of range: `require("Mix", {"k is -1; expected 0 or more": k >= 0})`.

    Raises:
        ConfigError: With every problem.
    """
    problems = [text for text, fine in checks.items() if not fine]
    if problems:
        raise ConfigError(bullet_list(f"{method} cannot be built with these settings:", problems))


@final
class FullSup(FixedStrategy):
    """The baseline of the ablation: supervised training without synthetic images.

    Cost: one training step, with which the others are compared.
    """

    needs_pairs: ClassVar[bool] = False

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:  # noqa: ARG002
        """One term: the real images."""
        return [Term(batch.images, batch.masks, 1.0, "real")]
