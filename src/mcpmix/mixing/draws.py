"""Draws that torch's generators do not offer: Beta, Dirichlet and single numbers, on the host."""

import numpy as np
import torch

_SEEDS = 2**63 - 1


def numpy_stream(rng: torch.Generator) -> np.random.Generator:
    """A NumPy generator that one draw from `rng`, a CPU generator, determines completely."""
    return np.random.default_rng(int(torch.randint(_SEEDS, (), generator=rng)))
