"""Seeds by identity: a random stream belongs to a name (run, sample, replica), never to an order of calls."""

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_SEED_BITS = 63  # torch.Generator takes signed 64-bit seeds


def seed_for(*identity: object) -> int:
    """A seed in [0, 2**63) that depends on the parts of an identity and on nothing else.

    Parts are joined by their `repr`, so `("a", 1)` and `("a1",)` differ.

    >>> seed_for("run", "image-7", 0) == seed_for("run", "image-7", 0)
    True
    """
    text = "\x1f".join(repr(part) for part in identity)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def numpy_rng(*identity: object) -> np.random.Generator:
    """A NumPy generator that belongs to an identity."""
    return np.random.default_rng(seed_for(*identity))


def numpy_stream(rng: "torch.Generator") -> np.random.Generator:
    """A NumPy generator that one draw from `rng`, a CPU generator, determines completely."""
    import torch

    return np.random.default_rng(int(torch.randint(2**_SEED_BITS - 1, (), generator=rng)))


def torch_rng(*identity: object) -> "torch.Generator":
    """A CPU torch generator that belongs to an identity."""
    import torch

    return torch.Generator().manual_seed(seed_for(*identity))


def seed_everything(*identity: object) -> int:
    """Seed the global streams of Python, NumPy and torch, for libraries that draw from them.

    Own code draws from generators it was given; dropout and weight initialisation inside foreign networks
    use the global torch stream.
    """
    import torch

    seed = seed_for(*identity)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    return seed
