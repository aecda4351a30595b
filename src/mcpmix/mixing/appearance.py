"""Changing the colours of single images: what AugMix and PixMix have in common."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from mcpmix.mixing.photometric import ALL, STANDARD, Pixels, random_operation, severity_problems
from mcpmix.mixing.settings import require
from mcpmix.mixing.strategy import FixedStrategy


class AppearanceMix(FixedStrategy):
    """Base of strategies that change images by random operations and leave the masks as they are, hard.

    What they make depends on the batch and the random stream only, so that a loop may have it made ahead.

    Args:
        method: Name of the method, for messages.
        severity: Largest level of an operation, in [0.1, 10].
        all_ops: Also change saturation, contrast, brightness and sharpness.
        mean: Mean by which images are normalised, one value per channel.
        std: Standard deviation likewise.
        checks: Of the settings of the subclass, as of `require`.
    """

    needs_pairs: ClassVar[bool] = False
    ahead: ClassVar[bool] = True

    def __init__(
        self,
        method: str,
        severity: float,
        all_ops: bool,
        mean: Sequence[float],
        std: Sequence[float],
        checks: Mapping[str, bool],
    ) -> None:
        super().__init__()
        require(method, checks, severity_problems(severity))
        self.severity = severity
        self.operations = ALL if all_ops else STANDARD
        self.pixels = Pixels(mean, std)

    def changed(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """An image (3, H, W) in [0, 1] after one random operation, like it."""
        return random_operation(image, self.operations, self.severity, draws)
