"""Rivals that learn from unlabelled images too: pseudo-labels, with and without MCPMix, and a mean teacher.

A gain of counterparts from a base that has seen unlabelled images could be the gain of these images alone.
These strategies get the same images and the same number of steps.
"""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from mcpmix.data.augment import apply_colour, denormalise, draw_colour, normalise
from mcpmix.mixing.mcpmix import mix
from mcpmix.mixing.strategy import (
    Batch,
    FixedStrategy,
    InputGradient,
    Search,
    Strategy,
    Term,
    TrainingSource,
    require,
)
from mcpmix.networks.loss import probabilities


def with_pseudo_labels(batch: Batch) -> tuple[Tensor, Tensor]:
    """Images and hard masks of a batch, first the labelled ones, then the pseudo-labelled ones."""
    images, masks = batch.more()
    return torch.cat([batch.images, images]), torch.cat([batch.masks, masks])


@final
class PseudoLabel(FixedStrategy):
    """Labelled images and as many unlabelled ones, whose masks a teacher has drawn before.

    The teacher is the judge, trained on the labelled images only; only masks on which its networks agree are
    used (`pseudo.agreement`). After Lee (2013), with a fixed teacher.

    Cost: two images for each one.
    """

    needs_pairs: ClassVar[bool] = False
    source: ClassVar[TrainingSource] = "pseudo-masks"

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:  # noqa: ARG002
        """One term: all are real images, and train the network alike."""
        return [Term(*with_pseudo_labels(batch), 1.0, "real")]


@final
class PseudoLabelMix(FixedStrategy):
    """Pseudo-labels and MCPMix together: labelled images are mixed with their counterparts too.

    Cost: three images for each one.

    Args:
        s_max: Largest synthetic share, in (0, 1].
        rho: Weight of the mixed loss, in [0, 1].
    """

    needs_pairs: ClassVar[bool] = True
    source: ClassVar[TrainingSource] = "pseudo-masks"

    def __init__(self, s_max: float = 0.7, rho: float = 0.25) -> None:
        super().__init__()
        checks = {
            f"s_max is {s_max}; expected a value in (0, 1]": 0.0 < s_max <= 1.0,
            f"rho is {rho}; expected a value in [0, 1]": 0.0 <= rho <= 1.0,
        }
        require("MCPMix on pseudo-labels", checks)
        self.s_max, self.rho = s_max, rho

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real images, labelled and pseudo-labelled, and mixed ones of the labelled."""
        share = self.s_max * torch.rand(len(batch.images), generator=rng)
        self.note(s=float(share.mean()), rho=self.rho)
        return [
            Term(*with_pseudo_labels(batch), 1.0 - self.rho, "real"),
            Term(mix(batch.images, batch.pairs(), share), batch.masks, self.rho, "mixed"),
        ]


@final
class MeanTeacher(Strategy):
    """A teacher that is the moving average of the network says what unlabelled images show.

    The network sees them in other colours than the teacher, and is to find the same. After Tarvainen and
    Valpola (2017), with cross-entropy in place of squared error; the teacher is the result.

    Cost: two images for each one, and a forward pass of the teacher.

    Args:
        decay: Of the average, per step, in [0, 1). The first steps have less: a decoder starts at random, and
            an average that still holds its first weights teaches noise.
        weight: Of the loss on unlabelled images once it has risen.
        ramp: Epochs in which the weight rises from 0, as a share of T, in [0, 1].
        colour: Strength of the change of colour that the network sees, in [0, 1].
        epochs: T.
    """

    needs_pairs: ClassVar[bool] = False
    source: ClassVar[TrainingSource] = "images"
    search: ClassVar[Search] = {"weight": (0.3, 1.0), "decay": (0.97, 0.99)}

    def __init__(
        self,
        epochs: int = 400,
        decay: float = 0.99,
        weight: float = 1.0,
        ramp: float = 0.3,
        colour: float = 0.5,
    ) -> None:
        super().__init__()
        checks = {
            f"epochs is {epochs}; expected 1 or more": epochs >= 1,
            f"decay is {decay}; expected a value in [0, 1)": 0.0 <= decay < 1.0,
            f"weight is {weight}; expected 0 or more": weight >= 0.0,
            f"ramp is {ramp}; expected a value in [0, 1]": 0.0 <= ramp <= 1.0,
            f"colour is {colour}; expected a value in [0, 1]": 0.0 <= colour <= 1.0,
        }
        require("The mean teacher", checks)
        self.epochs, self.decay, self.weight, self.ramp, self.colour = epochs, decay, weight, ramp, colour
        self.teacher: nn.Module | None = None
        self.followed: Tensor  # steps so far; saved with the teacher
        self.register_buffer("followed", torch.zeros((), dtype=torch.long))
        self._student: tuple[nn.Module, ...] = ()  # not a part of this module: the loop saves it
        self._epoch = 0

    def attach(self, gradient: InputGradient, network: nn.Module) -> None:  # noqa: ARG002
        """Start the average at the network as it is."""
        self._student = (network,)
        self.teacher = copy.deepcopy(network).requires_grad_(False)

    def result(self, network: nn.Module) -> nn.Module:
        """The teacher."""
        return network if self.teacher is None else self.teacher.eval()

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, counted from 1."""
        self._epoch = epoch

    @property
    def current_weight(self) -> float:
        """Of the unlabelled images in this epoch."""
        rise = max(1.0, self.ramp * self.epochs)
        return self.weight * min(1.0, self._epoch / rise)

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real images, and unlabelled ones in other colours with the teacher's probabilities."""
        assert self.teacher is not None  # `attach` comes first
        self._follow()
        images = batch.unlabelled_images()
        with torch.no_grad():
            targets = probabilities(self.teacher.eval()(images))
        changed = apply_colour(draw_colour(len(images), rng, self.colour), denormalise(images))
        return [
            Term(batch.images, batch.masks, 1.0, "real"),
            Term(normalise(changed), targets, self.current_weight, "consistent"),
        ]

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the teacher towards the network, as the last step has left it; batch statistics alike."""
        assert self.teacher is not None
        (student,) = self._student
        self.followed += 1
        share = max(1 - self.decay, 1 / int(self.followed))
        now = student.state_dict()
        for name, mean in self.teacher.state_dict().items():
            if mean.is_floating_point():
                mean.lerp_(now[name], share)
            else:
                mean.copy_(now[name])

    def combine(self, losses: Sequence[Tensor], batch: Batch, terms: Sequence[Term]) -> Tensor:  # noqa: ARG002
        """The weighted sum of both losses, 0-d."""
        supervised, consistent = losses
        return supervised + terms[1].weight * consistent

    def log(self) -> dict[str, Any]:
        """The weight of the unlabelled images."""
        return {"weight": self.current_weight}
