"""AugMix (Hendrycks et al., ICLR 2020) for masks: photometric chains, consistency averaged over pixels."""

from collections.abc import Sequence
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.mixing.appearance import AppearanceMix
from mcpmix.mixing.draws import numpy_stream
from mcpmix.mixing.photometric import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.mixing.strategy import Batch, Search, Term

_DEEPEST = 3
_TINY = 1e-7


@final
class AugMix(AppearanceMix):
    """Mix short chains of random operations on one image, and ask for consistent predictions.

    A view is `(1 - m) x + m sum_i w_i chain_i(x)`, `w ~ Dirichlet(alpha, ...)`, `m ~ Beta(alpha, alpha)`. The
    network sees the image and two views; the loss is that of the image (`supervise="clean"`, as published) or
    of all three, plus `jsd_weight` times the Jensen-Shannon divergence of the three predictions. Targets stay
    hard. Two things differ from the classification method. Chains hold no rotation, shear or translation:
    inside a mixture these leave ghosts of lesions that no mask describes. The divergence, of [p, 1 - p], is
    averaged over pixels: a sum would make its weight grow with the image.

    Search range: jsd_weight in {1, 4, 12}, severity in {1, 3}. Cost: three times the forward and backward
    pass, and about 6 operations for each view of each image. `jsd_weight=0` is the published mode without
    consistency: one view in place of the image, at the cost of one pass.

    Args:
        width: Number of chains, 1 or more.
        depth: Operations of each chain, 0 or more; None draws 1, 2 or 3. 0 leaves the images as they are.
        alpha: Parameter of the Dirichlet and Beta distributions, above 0.
        severity: Largest level of an operation, in [0.1, 10]; the paper has 3 on CIFAR and 1 on ImageNet.
        jsd_weight: Weight of the divergence, 0 or more.
        supervise: "clean" or "all": which predictions the masks teach.
        all_ops: Also change saturation, contrast, brightness and sharpness.
        mean: Mean by which images are normalised, one value per channel.
        std: Standard deviation likewise.
    """

    search: ClassVar[Search] = {"jsd_weight": (1.0, 4.0, 12.0), "severity": (1.0, 3.0)}

    def __init__(
        self,
        width: int = 3,
        depth: int | None = None,
        alpha: float = 1.0,
        severity: float = 3.0,
        jsd_weight: float = 12.0,
        supervise: Literal["clean", "all"] = "clean",
        all_ops: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        checks = {
            f"width is {width}; expected 1 or more": width >= 1,
            f"depth is {depth}; expected 0 or more, or None": depth is None or depth >= 0,
            f"alpha is {alpha}; expected a value above 0": alpha > 0,
            f"jsd_weight is {jsd_weight}; expected 0 or more": jsd_weight >= 0,
            f"supervise is {supervise!r}; expected 'clean' or 'all'": supervise in ("clean", "all"),
        }
        super().__init__("AugMix", severity, all_ops, mean, std, checks)
        self.width, self.depth, self.alpha = width, depth, alpha
        self.jsd_weight, self.supervise = jsd_weight, supervise

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The images and two views of them, or one view where nothing asks for consistency."""
        draws, pixels = numpy_stream(rng), self.pixels.denormalise(batch.images)
        names = ("view1", "view2") if self.jsd_weight > 0 else ("view",)
        views = [
            self.pixels.normalise(torch.stack([self.view(image, draws) for image in pixels])) for _ in names
        ]
        if self.jsd_weight == 0:
            return [Term(views[0], batch.masks, 1.0, names[0])]
        own, other = (1.0, 0.0) if self.supervise == "clean" else (1 / 3, 1 / 3)
        real = Term(batch.images, batch.masks, own, "real")
        return [real, *(Term(v, batch.masks, other, name) for v, name in zip(views, names, strict=True))]

    def consistency(self, logits: Sequence[Tensor], terms: Sequence[Term]) -> Tensor:  # noqa: ARG002
        """`jsd_weight` times the divergence of the three predictions, which is noted as "jsd"; 0-d."""
        if self.jsd_weight == 0:
            return torch.zeros((), device=logits[0].device)
        divergence = jensen_shannon(logits)
        self.note(jsd=float(divergence.detach()))
        return self.jsd_weight * divergence

    def view(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """One view of an image (3, H, W) in [0, 1], like it."""
        weights = draws.dirichlet([self.alpha] * self.width)
        share = draws.beta(self.alpha, self.alpha)
        mixed = torch.zeros_like(image)
        for weight in weights:
            depth = int(draws.integers(1, _DEEPEST + 1)) if self.depth is None else self.depth
            chain = image
            for _ in range(depth):
                chain = self.changed(chain, draws)
            mixed += float(weight) * chain
        return torch.lerp(image, mixed, float(share))


def jensen_shannon(logits: Sequence[Tensor]) -> Tensor:
    """Jensen-Shannon divergence of binary predictions, in nats, averaged over pixels; 0-d, in [0, log 2].

    Args:
        logits: Two or more tensors of one shape.
    """
    values = torch.stack([part.float() for part in logits])
    chances = values.sigmoid()
    centre = chances.mean(0).clamp(_TINY, 1 - _TINY)
    lesion = chances * (F.logsigmoid(values) - centre.log())
    background = (1 - chances) * (F.logsigmoid(-values) - (1 - centre).log())
    return (lesion + background).mean()
