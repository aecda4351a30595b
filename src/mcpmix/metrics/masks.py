"""What counts as a hard mask in memory: two-dimensional, two values, nothing thresholded silently."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list

Mask = npt.NDArray[np.uint8]

_SHOWN_VALUES = 6


def as_mask(array: npt.ArrayLike, name: str = "mask") -> Mask:
    """A hard mask as a C-contiguous, read-only (H, W) array of 0 and 1.

    Booleans, and numbers of any type whose values are only 0 and 1 or only 0 and 255, are hard masks.

    Args:
        array: (H, W).
        name: for error messages.

    Raises:
        DataError: anything else: other shapes, soft maps, blurred masks, NaN.
    """
    values = np.asarray(array)
    if values.ndim != 2 or values.size == 0:
        raise DataError(_shape_message(values, name))
    if values.dtype.kind not in "buif":
        raise DataError(f"{name} must be boolean or numeric, but its type is {values.dtype}.")
    mask = np.ascontiguousarray(values) if values.dtype == np.bool_ else _hard(values, name)
    mask = mask.view(np.uint8)
    mask.setflags(write=False)  # a view: the kernels are compiled for one kind of array only
    return cast(Mask, mask)


def as_pair(truth: npt.ArrayLike, prediction: npt.ArrayLike) -> tuple[Mask, Mask]:
    """Two hard masks of one image, both (H, W).

    Raises:
        DataError: one of them is not a hard mask, or their shapes differ; the message has every problem.
    """
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
        raise DataError(
            f"truth and prediction must have the same shape, but truth is {_size(masks[0])} and prediction "
            f"is {_size(masks[1])}. Resize the prediction to the truth (probabilities first, then threshold)."
        )
    return masks[0], masks[1]


def _hard(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    low, high = values.min(), values.max()  # NaN if one value is: then both comparisons are false
    ones = int(np.count_nonzero(values))
    if low >= 0 and high in (0, 1, 255) and ones == np.count_nonzero(values == high) * bool(high):
        return np.ascontiguousarray(values if high <= 1 else values != 0, np.uint8)
    raise DataError(_value_message(values, name))


def _size(values: npt.NDArray[Any]) -> str:
    return " x ".join(map(str, values.shape))


def _shape_message(values: npt.NDArray[Any], name: str) -> str:
    message = (
        f"{name} must be a mask of shape (H, W) with at least one pixel, but its shape is {values.shape}."
    )
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        return f"{message} Take its only channel, for example with {name}.squeeze()."
    if values.ndim == 3 and values.shape[-1] in (3, 4):
        return (
            f"{message} It looks like a colour image: take one channel, or map its colours to 0 and 1 first."
        )
    return message


def _value_message(values: npt.NDArray[Any], name: str) -> str:
    expected = f"{name} must be a hard mask with values 0 and 1 or 0 and 255"
    if values.dtype.kind == "f" and np.isnan(values).any():
        return f"{expected}, but {int(np.isnan(values).sum())} of its {values.size} values are NaN."
    found = np.unique(values)
    shown = ", ".join(f"{value:.6g}" for value in found[:_SHOWN_VALUES])
    more = f" and {found.size - _SHOWN_VALUES} more" if found.size > _SHOWN_VALUES else ""
    return (
        f"{expected}, but it holds {shown}{more}. No threshold is applied silently: for a soft map or a "
        f"mask blurred by JPEG, pass `map >= threshold`; for a label map, pass `map == label`."
    )
