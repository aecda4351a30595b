"""The discrepancy D of RLA: the maximum mean discrepancy between features that a frozen network gives."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, DataError, ModelError

Estimator = Literal["biased", "unbiased"]

FeatureExtractor = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) to pooled features (B, F); an `nn.Module` or any differentiable function."""


def mmd(
    x: Tensor,
    y: Tensor,
    bandwidth: float | Tensor | None = None,
    *,
    estimator: Estimator = "biased",
    root: bool = False,
    bandwidths: Sequence[float] = (1.0,),
) -> Tensor:
    """Squared MMD between two samples, with the kernel `k(a, b) = exp(-|a - b|^2 / (2 sigma^2))`.

    The biased V-statistic (default) is never negative, at most 2, and exactly 0 for bitwise equal inputs.
    Its expectation for two samples of one distribution is not 0 but of the order of 1/n + 1/m; the unbiased
    U-statistic is centred at 0 there and therefore negative half of the time.

    Args:
        x: Features, (n, F). Half precision is computed in float32, also under autocast.
        y: Features, (m, F), dtype and device of `x`.
        bandwidth: sigma, in units of the features, above 0. None: `median_bandwidth(x, y)`, a constant for
            the gradient.
        estimator: "biased" or "unbiased" (leaves out the pairs of a vector with itself; needs n, m >= 2).
        root: Return MMD instead of its square (of 0 if an unbiased estimate is negative); its gradient at
            exactly 0 is defined as 0.
        bandwidths: Multiples of `bandwidth`; the kernel is the mean over them, so the range stays the same.

    Returns:
        A 0-d tensor, differentiable in `x` and `y`.

    Raises:
        DataError: If the shapes do not fit.
        ConfigError: If an option is not one of those above.
    """
    _check_shapes(x, y)
    if estimator not in ("biased", "unbiased"):
        raise ConfigError(f"mmd: estimator is {estimator!r}; expected 'biased' or 'unbiased'.")
    if estimator == "unbiased" and min(len(x), len(y)) < 2:
        raise DataError(
            f"The unbiased MMD needs two vectors or more on each side, got {len(x)} and {len(y)}; "
            "use a larger batch or estimator='biased'."
        )
    widths = [*bandwidths] if bandwidth is None or isinstance(bandwidth, Tensor) else [bandwidth, *bandwidths]
    if not bandwidths or not all(0.0 < width < math.inf for width in widths):
        raise ConfigError(
            f"mmd: bandwidth {bandwidth} with multiples {tuple(bandwidths)}; expected finite values above 0, "
            "and one multiple or more."
        )
    with torch.autocast(x.device.type, enabled=False):
        xx, yy, xy = _squared_distances(x, y)
        variance = _median_square(xx, yy, xy) if bandwidth is None else bandwidth**2
        # Scaled once for all factors, also in the backward pass.
        scaled = [squares / (-2.0 * variance) for squares in (xx, yy, xy)]
        k_xx, k_yy, k_xy = (
            torch.stack([torch.exp(part / factor**2) for factor in bandwidths]).mean(dim=0) for part in scaled
        )
        if estimator == "biased":
            # In exact arithmetic this is a squared norm; the clamp only removes rounding below 0.
            squared = (k_xx.mean() + k_yy.mean() - 2.0 * k_xy.mean()).clamp(min=0.0)
        else:
            squared = _mean_off_diagonal(k_xx) + _mean_off_diagonal(k_yy) - 2.0 * k_xy.mean()
        if not root:
            return squared
        # A plain root would send inf * 0 = nan to the gates at 0.
        positive = squared > 0
        length = torch.where(positive, squared, torch.ones_like(squared)).sqrt()
        return torch.where(positive, length, torch.zeros_like(squared))


def median_bandwidth(x: Tensor, y: Tensor) -> Tensor:
    """Median distance over all pairs of different vectors in the pooled sample, detached: a 0-d tensor.

    The lower of the two middle values for an even number of pairs. If more than half of the pairs coincide
    the root mean square distance is taken, and 1 if all vectors are equal, so it is always above 0.
    """
    _check_shapes(x, y)
    with torch.autocast(x.device.type, enabled=False), torch.no_grad():
        return _median_square(*_squared_distances(x, y)).sqrt()


def _check_shapes(x: Tensor, y: Tensor) -> None:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or 0 in (*x.shape, *y.shape):
        raise DataError(
            f"mmd expects two sets of feature vectors (n, F) and (m, F), none empty; "
            f"got {tuple(x.shape)} and {tuple(y.shape)}. Pool feature maps first."
        )


def _squared_distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances within x, within y and across, by the product form."""
    if x.dtype in (torch.float16, torch.bfloat16):
        x, y = x.float(), y.float()
    # |a|^2 + |b|^2 - 2ab cancels badly for features far from the origin; distances do not change when the
    # common mean is removed first.
    centre = torch.cat([x, y]).detach().mean(dim=0)
    x, y = x - centre, y - centre
    # Three products of one form, and norms from their diagonals: for x = y all blocks agree bitwise, and a
    # vector is at distance exactly 0 from itself.
    xx, yy, xy = x @ x.T, y @ y.T, x @ y.T
    norm_x, norm_y = xx.diagonal(), yy.diagonal()
    return (
        (norm_x[:, None] + norm_x[None, :] - 2.0 * xx).clamp(min=0.0),
        (norm_y[:, None] + norm_y[None, :] - 2.0 * yy).clamp(min=0.0),
        (norm_x[:, None] + norm_y[None, :] - 2.0 * xy).clamp(min=0.0),
    )


def _median_square(xx: Tensor, yy: Tensor, xy: Tensor) -> Tensor:
    upper = []
    for square in (xx, yy):
        rows, columns = torch.triu_indices(len(square), len(square), offset=1, device=square.device)
        upper.append(square[rows, columns])
    pairs = torch.cat([*upper, xy.flatten()]).detach()
    median, mean = pairs.median(), pairs.mean()
    fallback = torch.where(mean > 0, mean, torch.ones_like(mean))
    return torch.where(median > 0, median, fallback)


def _mean_off_diagonal(square: Tensor) -> Tensor:
    n = len(square)
    return (square.sum() - square.diagonal().sum()) / (n * (n - 1))


class FrozenFeatures:
    """Calls phi, the network whose features are compared, frozen and on the device of the images.

    Not an `nn.Module`, on purpose: as an attribute of one it stays out of `parameters()`, `state_dict()` and
    `train()`. The module it was given is frozen in place.
    """

    def __init__(self, extractor: FeatureExtractor) -> None:
        self._extractor = extractor
        if isinstance(extractor, nn.Module):
            extractor.requires_grad_(False)
            extractor.eval()

    def __call__(self, images: Tensor) -> Tensor:
        """Features (B, F) of images (B, 3, H, W); gradients flow to the images, never to the weights."""
        if isinstance(self._extractor, nn.Module):
            if self._extractor.training:  # a model that contains phi may have been switched to training
                self._extractor.eval()
            weight = next(self._extractor.parameters(), None)
            if weight is not None and weight.device != images.device:
                self._extractor.to(images.device)
        features = self._extractor(images)
        if features.ndim != 2 or features.shape[0] != images.shape[0]:
            raise ModelError(
                f"The feature extractor must return one vector per image, ({images.shape[0]}, F), for images "
                f"{tuple(images.shape)}; it gave {tuple(features.shape)}. Average feature maps over height "
                "and width."
            )
        return features
