"""+MCPMix: paired mixing with a random share and a fixed weight."""

from typing import ClassVar, final

import torch

from mcpmix.core.errors import ConfigError, bullet_list
from mcpmix.mixing.paired import mix
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, paired_terms


@final
class PairedUniform(FixedStrategy):
    """MCPMix without RLA: each sample draws its share from U[0, s_max].

    Search range: s_max in {0.3, 0.5, 0.7}, rho in {0.25, 0.5}. Cost: two images for each one.

    Args:
        s_max: Largest synthetic share, in (0, 1].
        rho: Weight of the mixed loss, in [0, 1]; the real loss has `1 - rho`. The paper gives none for this
            arm; 0.5 counts real and mixed alike, and is the bound of RLA.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"s_max": (0.3, 0.5, 0.7), "rho": (0.25, 0.5)}

    def __init__(self, s_max: float = 0.7, rho: float = 0.5) -> None:
        super().__init__()
        problems = []
        if not 0.0 < s_max <= 1.0:
            problems.append(f"s_max is {s_max}; expected a value in (0, 1]")
        if not 0.0 <= rho <= 1.0:
            problems.append(f"rho is {rho}; expected a value in [0, 1]")
        if problems:
            raise ConfigError(bullet_list("MCPMix cannot be built with these settings:", problems))
        self.s_max, self.rho = s_max, rho

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real images, and the images mixed with one random share per sample."""
        share = self.s_max * torch.rand(len(batch.images), generator=rng)
        self.note(s=float(share.mean()), rho=self.rho)
        return paired_terms(batch, mix(batch.images, batch.pairs(), share), self.rho)
