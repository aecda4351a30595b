"""Changing the colours of single images: what AugMix and PixMix have in common."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.core.seeds import numpy_stream
from mcpmix.mixing.photometric import ALL, STANDARD, Pixels, random_operation, severity_problems
from mcpmix.mixing.pictures import mixing_picture
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require


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


_SMALLEST = 1e-37  # a power of it is finite in single precision for every exponent in [-1, 0]


@final
class PixMix(AppearanceMix):
    """Add or multiply an image, some times over, with structurally rich pictures or with itself.

    Start from the image or, as likely, from a copy after one random operation. Then 0 to `k` rounds, each as
    likely: the partner is a newly changed copy of the image or the sample's mixing picture, and is added or
    multiplied with random exponents or factors; each of two choices as likely. The mask stays, hard; so no
    operation may move structures, and the geometric ones of the published method are left out. The mixing
    set is not the authors' download but made by code (`mcpmix.mixing.pictures`), each picture when first
    needed.

    Search range: k in {2, 4}, beta in {3, 4, 5}, severity in {1, 3}. Cost: about 5 operations for each image
    on the way in, and one pass of the network.

    Args:
        k: Most rounds, 0 or more.
        beta: How much the image outweighs its partner, above 0; the partner's mean share is 1 / (1 + beta).
            The paper has 3 on CIFAR and 4 on ImageNet.
        severity: Largest level of an operation, in [0.1, 10]; the paper has 3 on CIFAR and 1 on ImageNet.
        all_ops: Also change saturation, contrast, brightness and sharpness, as in the paper's recipe.
        pictures: Size of the mixing set; 0 mixes images with changed copies of themselves only.
        seed: Names the mixing set.
        probability: How often an image is mixed, in [0, 1]; the paper mixes all.
        mean: Mean by which images are normalised, one value per channel.
        std: Standard deviation likewise.
    """

    search: ClassVar[Search] = {"k": (2, 4), "beta": (3.0, 4.0, 5.0), "severity": (1.0, 3.0)}

    def __init__(
        self,
        k: int = 4,
        beta: float = 3.0,
        severity: float = 3.0,
        all_ops: bool = True,
        pictures: int = 256,
        seed: int = 0,
        probability: float = 1.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        checks = {
            f"k is {k}; expected 0 or more": k >= 0,
            f"beta is {beta}; expected a value above 0": beta > 0,
            f"pictures is {pictures}; expected 0 or more": pictures >= 0,
            f"probability is {probability}; expected a value in [0, 1]": 0.0 <= probability <= 1.0,
        }
        super().__init__("PixMix", severity, all_ops, mean, std, checks)
        self.k, self.beta, self.probability = k, beta, probability
        self.pictures, self.seed = pictures, seed

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the mixed images under their hard masks."""
        draws, pixels = numpy_stream(rng), self.pixels.denormalise(batch.images)
        images = batch.images.clone()
        for index, image in enumerate(pixels):
            if draws.random() < self.probability:
                images[index] = self.pixels.normalise(self.mixed(image, draws))
        return [Term(images, batch.masks, 1.0, "mixed")]

    def mixed(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """One image (3, H, W) in [0, 1] after all rounds, like it."""
        picture = self._picture(image, draws)
        result = self.changed(image, draws) if draws.random() < 0.5 else image
        for _ in range(int(draws.integers(self.k + 1))):
            partner = picture if picture is not None and draws.random() < 0.5 else self.changed(image, draws)
            mix = add if draws.random() < 0.5 else multiply
            result = mix(result, partner, *coefficients(self.beta, draws)).clamp(0, 1)
        return result

    def _picture(self, image: Tensor, draws: np.random.Generator) -> Tensor | None:
        if self.pictures == 0:
            return None
        index = int(draws.integers(self.pictures))
        return mixing_picture(self.seed, index, *image.shape[1:]).to(image) / 255


def coefficients(beta: float, draws: np.random.Generator) -> tuple[float, float]:
    """Factors, or exponents, of the image and of its partner.

    As likely: Beta(beta, 1) and Beta(1, beta), or 1 + Beta(1, beta) and -Beta(1, beta).
    """
    if draws.random() < 0.5:
        return float(draws.beta(beta, 1)), float(draws.beta(1, beta))
    return 1 + float(draws.beta(1, beta)), -float(draws.beta(1, beta))


def add(image: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """`own * image + other * partner` around mid-grey, not clamped: pixels are taken to [-1, 1] and back."""
    return (own * (2 * image - 1) + other * (2 * partner - 1) + 1) / 2


def multiply(image: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """`image^own * partner^other` around mid-grey, not clamped: pixels are taken to [0, 2] and back.

    Exponents: `own` 0 or more, `other` -1 or more.
    """
    return (2 * image) ** own * (2 * partner).clamp(min=_SMALLEST) ** other / 2
