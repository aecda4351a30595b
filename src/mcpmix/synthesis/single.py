"""One counterpart alone: whatever batch it came from, it can be made again to the last bit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mcpmix.synthesis.counterparts import Request

Pixels = npt.NDArray[np.uint8]


class Maker(Protocol):
    """What makes counterparts; `CounterpartMaker` is one."""

    def make(self, requests: Sequence["Request"]) -> np.ndarray:
        """B,S,S,3 uint8 images, made as one batch."""
        ...


def make_filled(maker: Maker, requests: Sequence["Request"], batch_size: int) -> Pixels:
    """Make at most a batch, always computed at its full size: a short one is filled up with its last request.

    Networks round differently at different batch sizes, but at one size an image's bits do not depend on its
    place or its neighbours. So whatever is made here can be made again alone, bit for bit.

    Args:
        maker: makes the images.
        requests: 1 to `batch_size` counterparts.
        batch_size: images per call of the generator.

    Returns:
        B,S,S,3 uint8 for the B requests.
    """
    filled = [*requests, *[requests[-1]] * (batch_size - len(requests))]
    return np.asarray(maker.make(filled)[: len(requests)], dtype=np.uint8)
