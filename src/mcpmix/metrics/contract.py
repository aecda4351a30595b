"""The contract of the metrics: names, units, direction, empty masks, and what counts as a hard mask.

Region metrics and boundary metrics are in percent, distances in pixels. With `TP, FP, FN, TN` the pixel
counts of one image, `B` the boundary of the truth and `P` that of the prediction:

| key | meaning | one mask empty | both empty |
|---|---|---|---|
| `miou` | mean IoU of foreground and background, over those of the two that occur | by its formula | 100 |
| `precision` | TP / (TP + FP) | 0 | undefined |
| `recall` | TP / (TP + FN) | 0 | undefined |
| `pixel_accuracy` | (TP + TN) / all | by its formula | 100 |
| `dsc` | 2 TP / (2 TP + FP + FN) | 0 | undefined |
| `hd95` | 95th percentile of all distances B to P and P to B, in one list | image diagonal | undefined |
| `assd` | mean of the two directed mean distances | image diagonal | undefined |
| `bp_t` | percentage of P within t of B | 0 | undefined |
| `br_t` | percentage of B within t of P | 0 | undefined |
| `bf1_t` | harmonic mean of `bp_t` and `br_t`, 0 if both are 0 | 0 | undefined |
| `biou` | IoU of the pixels within `band` of B and those within `band` of P | 0 | undefined |

Undefined is NaN. `EmptyRule` names the two right-hand columns and lets a caller choose others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import ConfigError, DataError, bullet_list

Mask = npt.NDArray[np.uint8]

REGION_KEYS = ("miou", "precision", "recall", "pixel_accuracy", "dsc")
DISTANCE_KEYS = ("hd95", "assd")
DEFAULT_TOLERANCES: tuple[float, ...] = (2, 5, 10)
DEFAULT_BAND = 2.0
_SHOWN_VALUES = 6

OneEmpty = Literal["worst", "infinite", "undefined"]
BothEmpty = Literal["undefined", "perfect"]


@dataclass(frozen=True)
class EmptyRule:
    """What a metric is when truth, prediction or both have no foreground."""

    # A missed lesion, or a false alarm on an image without one. "worst": 0 percent, and the image diagonal
    # sqrt(H^2 + W^2) as distance, which no real distance reaches. "infinite": the same with infinite
    # distances. "undefined": NaN for distances and for every 0/0.
    one_empty: OneEmpty = "worst"
    # An image without lesion on which nothing was found. "undefined": NaN wherever the formula is 0/0.
    # "perfect": 100 percent and distance 0.
    both_empty: BothEmpty = "undefined"

    def __post_init__(self) -> None:
        problems = [
            f"{field} must be one of {', '.join(map(repr, allowed))}, but is {getattr(self, field)!r}"
            for field, allowed in (("one_empty", get_args(OneEmpty)), ("both_empty", get_args(BothEmpty)))
            if getattr(self, field) not in allowed
        ]
        if problems:
            raise ConfigError(bullet_list("The rule for empty masks is wrong:", problems))

    def distance(self, truth_empty: bool, prediction_empty: bool, height: int, width: int) -> float:
        """The distance in pixels where at least one of two masks of `height` x `width` is empty."""
        if truth_empty and prediction_empty:
            return 0.0 if self.both_empty == "perfect" else math.nan
        diagonal = math.hypot(height, width)
        return {"worst": diagonal, "infinite": math.inf, "undefined": math.nan}[self.one_empty]

    def share(self, truth_empty: bool, prediction_empty: bool) -> float:
        """The percentage where the formula is 0/0, because at least one of two masks is empty."""
        if truth_empty and prediction_empty:
            return 100.0 if self.both_empty == "perfect" else math.nan
        return math.nan if self.one_empty == "undefined" else 0.0


DEFAULT_RULE = EmptyRule()


def boundary_keys(tolerances: Sequence[float]) -> tuple[str, ...]:
    """The keys of boundary precision, recall and F1, tolerance by tolerance: `bp_2`, `br_2`, `bf1_2`, ..."""
    return tuple(f"{kind}_{tolerance:g}" for tolerance in tolerances for kind in ("bp", "br", "bf1"))


def score_keys(tolerances: Sequence[float] = DEFAULT_TOLERANCES) -> tuple[str, ...]:
    """All keys of `score`, in the order of its result."""
    return (*REGION_KEYS, *DISTANCE_KEYS, *boundary_keys(tolerances), "biou")


def higher_is_better(key: str) -> bool:
    """Whether a larger value of a metric is better, for any tolerance."""
    return key not in DISTANCE_KEYS


HIGHER_IS_BETTER: dict[str, bool] = {key: higher_is_better(key) for key in score_keys()}


def check_lengths(tolerances: Sequence[float], band: float) -> None:
    """Raise a ConfigError if tolerances or band are negative or not finite, or two tolerances are equal."""
    problems = [
        f"{name} must be a finite number of pixels, at least 0, but is {value!r}"
        for name, value in [*(("a tolerance", tolerance) for tolerance in tolerances), ("band", band)]
        if not (math.isfinite(value) and value >= 0)
    ]
    if len(set(boundary_keys(tolerances))) != len(boundary_keys(tolerances)):
        problems.append(f"tolerances must differ from each other, but are {tuple(tolerances)}")
    if problems:
        raise ConfigError(bullet_list("The lengths for boundary metrics are wrong:", problems))


def squared_limit(length: float) -> int:
    """The largest integer whose square root is at most `length` pixels.

    A squared pixel distance is an integer, so `distance <= length` is the same as `squared <= limit`, without
    the rounding of a square root.

    >>> squared_limit(2), squared_limit(2.5), squared_limit(3**0.5)
    (4, 6, 3)
    """
    limit = math.floor(length * length)
    while math.sqrt(limit + 1) <= length:
        limit += 1
    while math.sqrt(limit) > length:
        limit -= 1
    return limit


def as_mask(array: npt.ArrayLike, name: str = "mask") -> Mask:
    """A hard mask as a C-contiguous, read-only (H, W) array of 0 and 1.

    Booleans, and numbers of any type whose values are only 0 and 1 or only 0 and 255, are hard masks.

    Raises:
        DataError: anything else: other shapes, soft maps, blurred masks, NaN.
    """
    values = np.asarray(array)
    if values.ndim != 2 or values.size == 0:
        advice = ""
        if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
            advice = f" Take its only channel, for example with {name}.squeeze()."
        elif values.ndim == 3 and values.shape[-1] in (3, 4):
            advice = " It looks like a colour image: take one channel, or map its colours to 0 and 1 first."
        raise DataError(
            f"{name} must be a mask of shape (H, W) with at least one pixel, but its shape is "
            f"{values.shape}.{advice}"
        )
    if values.dtype.kind not in "buif":
        raise DataError(f"{name} must be boolean or numeric, but its type is {values.dtype}.")
    if values.dtype == np.bool_:
        mask = np.ascontiguousarray(values)
    else:
        low, high = values.min(), values.max()  # NaN if one value is: then both comparisons are false
        ones = int(np.count_nonzero(values))
        if not (low >= 0 and high in (0, 1, 255) and ones == np.count_nonzero(values == high) * bool(high)):
            expected = f"{name} must be a hard mask with values 0 and 1 or 0 and 255"
            if values.dtype.kind == "f" and np.isnan(values).any():
                missing = int(np.isnan(values).sum())
                raise DataError(f"{expected}, but {missing} of its {values.size} values are NaN.")
            found = np.unique(values)
            shown = ", ".join(f"{value:.6g}" for value in found[:_SHOWN_VALUES])
            more = f" and {found.size - _SHOWN_VALUES} more" if found.size > _SHOWN_VALUES else ""
            raise DataError(
                f"{expected}, but it holds {shown}{more}. No threshold is applied silently: for a soft map "
                "or a mask blurred by JPEG, pass `map >= threshold`; for a label map, pass `map == label`."
            )
        mask = np.ascontiguousarray(values if high <= 1 else values != 0, np.uint8)
    mask = mask.view(np.uint8)
    mask.setflags(write=False)  # a view: the kernels are compiled for one kind of array only
    return cast(Mask, mask)


def as_pair(truth: npt.ArrayLike, prediction: npt.ArrayLike) -> tuple[Mask, Mask]:
    """Two hard masks of one image, both (H, W)."""
    masks: list[Mask] = []
    problems: list[str] = []
    for array, name in ((truth, "truth"), (prediction, "prediction")):
        try:
            masks.append(as_mask(array, name))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError(problems[0] if len(problems) == 1 else bullet_list("Both masks are wrong:", problems))
    if masks[0].shape != masks[1].shape:
        sizes = [" x ".join(map(str, mask.shape)) for mask in masks]
        raise DataError(
            f"truth and prediction must have the same shape, but truth is {sizes[0]} and prediction is "
            f"{sizes[1]}. Resize the prediction to the truth (probabilities first, then threshold)."
        )
    return masks[0], masks[1]
