"""Masks in files: which ones belong together, and what a file must hold to be a hard mask.

A hard mask is an 8-bit or 16-bit image, or a `.npy` array, with two values: 0 and 1, or 0 and full scale
(255, 65535, or 1 for floating point). Colour images count if their channels are equal, an alpha channel if it
is opaque. JPEG blurs edges, so a JPEG is never read as a mask of 0 and 1. Anything else is a soft map and
needs a threshold that the caller names.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.metrics.masks import Mask, as_mask

MASK_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif", ".jpg", ".jpeg", ".npy")
_LOSSY = (".jpg", ".jpeg")
_SHOWN = 10

Grey = npt.NDArray[Any]
Missing = Literal["error", "empty"]


@dataclass(frozen=True)
class FilePair:
    """The files of one image.

    Attributes:
        name: path below the folder of truths, without suffix.
        truth: file of the true mask.
        prediction: file of the predicted mask; None if there is none.
    """

    name: str
    truth: Path
    prediction: Path | None


@dataclass(frozen=True)
class Pairing:
    """All pairs of two folders.

    Attributes:
        pairs: one per true mask, in the order of their names.
        extra: names of predictions without a true mask. They are not scored.
    """

    pairs: tuple[FilePair, ...]
    extra: tuple[str, ...]


def pair_files(
    truth: Path,
    prediction: Path,
    *,
    truth_ending: str = "",
    prediction_ending: str = "",
    missing: Missing = "error",
) -> Pairing:
    """Pair the masks of two folders by name; suffixes may differ, sub-folders are part of the name.

    Args:
        truth: folder of true masks.
        prediction: folder of predicted masks.
        truth_ending: what true masks have at the end of their stem beyond the name, such as `_segmentation`.
        prediction_ending: the same for predictions.
        missing: whether a truth without prediction is an error or counts as an empty prediction.

    Raises:
        DataError: a folder is missing or has no masks, two files share a name, predictions are missing.
    """
    truths = _index(truth, truth_ending, "truth")
    predictions = _index(prediction, prediction_ending, "prediction")
    absent = [name for name in truths if name not in predictions]
    if len(absent) == len(truths):
        raise DataError(
            f"no prediction in {prediction} has the name of a truth in {truth}: truths are called "
            f"{_some(list(truths))}, predictions {_some(list(predictions))}. If they differ by an ending, "
            f"name it (truth_ending, prediction_ending)."
        )
    if absent and missing == "error":
        raise DataError(
            f"{len(absent)} of {len(truths)} truths in {truth} have no prediction in {prediction}: "
            f"{_some(absent)}. Leaving them out would flatter the scores: add them, or count each as an "
            f"empty mask (missing='empty')."
        )
    pairs = tuple(FilePair(name, path, predictions.get(name)) for name, path in sorted(truths.items()))
    return Pairing(pairs, tuple(sorted(set(predictions) - set(truths))))


def read_grey(path: Path) -> Grey:
    """The grey values of a mask file, (H, W), as they are stored: boolean, 8-bit, 16-bit or floating point.

    Raises:
        DataError: the file cannot be read, has several pages, unequal colour channels or transparency.
    """
    if path.suffix.lower() == ".npy":
        return _read_array(path)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            pages = getattr(image, "n_frames", 1)
            if pages > 1:
                raise DataError(f"{path} must hold one mask, but has {pages} pages.")
            if image.mode in ("1", "L", "I", "I;16", "F"):
                return np.asarray(image)
            if image.mode not in ("LA", "RGB", "RGBA", "P", "PA"):
                raise DataError(f"{path} must be a grey mask, but its colour mode is {image.mode}.")
            return _only_channel(image if image.mode in ("LA", "RGB") else image.convert("RGBA"), path)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error


def is_hard(grey: Grey, path: Path) -> bool:
    """Whether the grey values of a file are those of a hard mask."""
    if grey.dtype == np.bool_:
        return True
    low, high = grey.min(), grey.max()
    whole = (0, _full_scale(grey)) if path.suffix.lower() in _LOSSY else (0, 1, _full_scale(grey))
    if not (low >= 0 and high in whole):
        return False
    return high == 0 or bool(np.count_nonzero(grey) == np.count_nonzero(grey == high))


def to_mask(grey: Grey, path: Path, threshold: float | None = None) -> tuple[Mask, int]:
    """A hard mask from the grey values of a file.

    Args:
        grey: (H, W), from `read_grey`.
        path: where it came from.
        threshold: fraction of full scale in (0, 1]. Soft maps are foreground where they reach it; hard masks
            are left alone. None: soft maps are refused.

    Returns:
        The mask, and how many of its pixels were neither 0 nor full scale before the threshold.

    Raises:
        DataError: a soft map without a threshold, or values outside the scale.
    """
    if is_hard(grey, path):
        return as_mask(grey != 0), 0
    scaled = to_probability(grey, path)
    if threshold is None:
        share = 100 * float(np.mean((scaled > 0) & (scaled < 1)))
        kind = "a mask blurred by JPEG" if path.suffix.lower() in _LOSSY else "a soft map or a label map"
        raise DataError(
            f"{path} must be a hard mask, but is {kind}: {share:.2f} % of its values lie between 0 and full "
            f"scale ({_full_scale(grey)}). No threshold is applied in silence: name one (threshold=0.5)."
        )
    return as_mask(scaled >= threshold), int(np.count_nonzero((scaled > 0) & (scaled < 1)))


def to_probability(grey: Grey, path: Path) -> npt.NDArray[np.float64]:
    """The grey values of a file as a map in [0, 1].

    Raises:
        DataError: floating-point values outside [0, 1], or NaN.
    """
    if is_hard(grey, path):
        return np.asarray(grey != 0, np.float64)
    scaled: npt.NDArray[np.float64] = grey / float(_full_scale(grey))
    if not (scaled.min() >= 0 and scaled.max() <= 1):
        bad = int(np.count_nonzero(~((scaled >= 0) & (scaled <= 1))))
        raise DataError(
            f"{path} must hold probabilities in [0, 1], but {bad} of its {grey.size} values are outside or "
            f"NaN (smallest {np.nanmin(grey):.6g}, largest {np.nanmax(grey):.6g}). Apply a sigmoid to logits."
        )
    return scaled


def read_pair(files: FilePair, threshold: float | None) -> tuple[Mask, Mask, int]:
    """Both masks of an image, and how many of their pixels a threshold decided.

    A missing prediction is an empty mask.

    Raises:
        DataError: a file is not a mask.
    """
    truth, altered = to_mask(read_grey(files.truth), files.truth, threshold)
    if files.prediction is None:
        return truth, np.zeros_like(truth), altered
    prediction, more = to_mask(read_grey(files.prediction), files.prediction, threshold)
    return truth, prediction, altered + more


def _index(folder: Path, ending: str, role: str) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(f"the folder of {role} masks does not exist: {folder}")
    found: dict[str, Path] = {}
    problems = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if hidden or path.suffix.lower() not in MASK_SUFFIXES or not relative.stem.endswith(ending):
            continue
        name = relative.with_suffix("").as_posix().removesuffix(ending)
        if name in found:
            problems.append(f"{name}: {found[name].name} and {path.name}")
        found[name] = path
    if problems:
        raise DataError(bullet_list(f"Names must be unique, but in {folder} two files share one:", problems))
    if not found:
        ends = f" ending in {ending!r}" if ending else ""
        raise DataError(f"no masks{ends} in {folder}; known formats are {', '.join(MASK_SUFFIXES)}.")
    return found


def _read_array(path: Path) -> Grey:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an array: {error}") from error
    if values.ndim != 2 or values.size == 0 or values.dtype.kind not in "bufi":
        raise DataError(f"{path} must be a (H, W) array of numbers, but is {values.shape} of {values.dtype}.")
    return np.asarray(values)


def _only_channel(image: Any, path: Path) -> Grey:  # noqa: ANN401
    bands = image.split()
    if image.mode in ("LA", "RGBA"):
        *bands, alpha = bands
        if alpha.getextrema() != (255, 255):
            raise DataError(f"{path} must be opaque, but has transparent pixels. Save it without alpha.")
    first = bands[0].tobytes()
    if any(band.tobytes() != first for band in bands[1:]):
        raise DataError(
            f"{path} must be a grey mask, but is a colour image whose channels differ. Map its colours to 0 "
            f"and 255 first."
        )
    return np.asarray(bands[0])


def _full_scale(grey: Grey) -> int:
    """The value of "certainly foreground"."""
    if grey.dtype.kind == "f" or grey.dtype == np.bool_:
        return 1
    return 255 if grey.dtype.itemsize == 1 else 65535


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
