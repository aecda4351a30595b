"""How near a set of synthetic images is to real ones: KID on features."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError


class KID(NamedTuple):
    """A kernel distance, and its standard error by leaving out one synthetic image at a time.

    The estimate is unbiased: 0 in the mean for two samples of one distribution, so it may be negative.
    """

    value: float
    error: float


def kid(synthetic: npt.ArrayLike, real: npt.ArrayLike) -> KID:
    """Kernel distance between two sets of features: squared MMD, unbiased, kernel `(a.b / F + 1)^3`.

    All pairs are used at once, without the random subsets that large sets are usually cut into: it is exact
    and does not depend on draws. Values compare only under the same phi and the same real images.

    Args:
        synthetic: n,F features, n of 3 or more.
        real: m,F features, m of 2 or more.

    Raises:
        DataError: the shapes do not fit or there are too few images.
    """
    x, y = np.asarray(synthetic, np.float64), np.asarray(real, np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or len(x) < 3 or len(y) < 2:
        raise DataError(
            "kid expects features (n, F) of 3 or more synthetic and (m, F) of 2 or more real images; "
            f"got {x.shape} and {y.shape}."
        )
    n, m = len(x), len(y)
    within, across, apart = ((a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (x, y), (y, y)))
    np.fill_diagonal(within, 0.0)
    of_real = (apart.sum() - apart.trace()) / (m * (m - 1))
    value = within.sum() / (n * (n - 1)) + of_real - 2 * across.sum() / (n * m)
    # The same without image i: its row and its column leave the sum within, its row the sum across.
    left = (within.sum() - 2 * within.sum(axis=1)) / ((n - 1) * (n - 2))
    left += of_real - 2 * (across.sum() - across.sum(axis=1)) / ((n - 1) * m)
    error = np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())
    return KID(float(value), float(error))
