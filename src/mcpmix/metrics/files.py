"""Masks in files: which ones belong together, and what a file must hold to be a hard mask.

A hard mask is an image, read by the rules of `mcpmix.data.sample.read_grey`, or a `.npy` array, with two
values: 0 and 1, or 0 and full scale (255, 65535, or 1 for floating point). JPEG blurs edges, so a JPEG is
never read as a mask of 0 and 1. Anything else is a soft map and needs a threshold that the caller names.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import list_images
from mcpmix.data.sample import read_grey
from mcpmix.metrics.contract import Mask, as_mask

MASK_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif", ".jpg", ".jpeg", ".npy")
_SHOWN = 10
_LARGEST = 89_478_485  # values, as Pillow's limit of pixels

Missing = Literal["error", "empty"]


class OneClass(NamedTuple):
    """One class of label maps, against all else in them."""

    label: int  # its number
    labels: int  # how many there are, background included


@dataclass(frozen=True)
class FilePair:
    """The files of one image."""

    name: str  # path below the folder of truths, without suffix
    truth: Path
    prediction: Path | None


def pair_files(
    truth: Path,
    prediction: Path,
    *,
    truth_ending: str = "",
    prediction_ending: str = "",
    missing: Missing = "error",
) -> tuple[list[FilePair], list[str]]:
    """Pair the masks of two folders by name; suffixes may differ, sub-folders are part of the name.

    An ending is what masks have at the end of their stem beyond the name, such as `_segmentation`; `missing`
    says whether a truth without prediction is an error or counts as an empty prediction.

    Returns:
        A pair per true mask, in the order of their names; and the names of predictions without a true mask.
    """
    truths = _index(truth, truth_ending, "truth")
    predictions = _index(prediction, prediction_ending, "prediction")
    absent = [name for name in truths if name not in predictions]
    if len(absent) == len(truths):
        raise DataError(
            f"no prediction in {prediction} has the name of a truth in {truth}: truths are called "
            f"{_some(list(truths))}, predictions {_some(list(predictions))}. If they differ by an ending, "
            "name it (--truth-ending, --prediction-ending; in Python truth_ending, prediction_ending)."
        )
    if absent and missing == "error":
        raise DataError(
            f"{len(absent)} of {len(truths)} truths in {truth} have no prediction in {prediction}: "
            f"{_some(absent)}. Leaving them out would flatter the scores: add them, or count each as an "
            "empty mask (--missing empty; in Python missing='empty')."
        )
    pairs = [FilePair(name, path, predictions.get(name)) for name, path in sorted(truths.items())]
    return pairs, sorted(set(predictions) - set(truths))


def read_pair(
    files: FilePair, threshold: float | None, one: OneClass | None = None
) -> tuple[Mask, Mask, int]:
    """Both masks of an image, and how many of their pixels a threshold decided, by `read_mask`.

    A missing prediction is an empty mask.
    """
    truth, altered = read_mask(files.truth, threshold, one)
    if files.prediction is None:
        return truth, np.zeros_like(truth), altered
    prediction, more = read_mask(files.prediction, threshold, one)
    return truth, prediction, altered + more


def read_mask(path: Path, threshold: float | None = None, one: OneClass | None = None) -> tuple[Mask, int]:
    """Read a hard mask.

    Args:
        threshold: fraction of full scale in (0, 1]. Soft maps are foreground where they reach it; hard masks
            are left alone. None: soft maps are refused.
        one: the class that is foreground; files then are label maps.

    Returns:
        The mask, and how many of its pixels were neither 0 nor full scale before the threshold.
    """
    grey, lossy = _read(path, indices=one is not None)
    if one is not None:
        if lossy or grey.dtype.kind not in "bui" or not 0 <= grey.min() <= grey.max() < one.labels:
            found = ", ".join(f"{value:g}" for value in np.unique(grey)[:_SHOWN])
            raise DataError(
                f"{path} must hold the labels 0 to {one.labels - 1} of the classes, not as a JPEG, but holds "
                f"{found}."
            )
        return as_mask(grey == one.label), 0
    if _is_hard(grey, lossy):
        return as_mask(grey != 0), 0
    scaled = _scale(grey, path)
    soft = int(np.count_nonzero((scaled > 0) & (scaled < 1)))
    if threshold is None:
        kind = "a mask blurred by JPEG" if lossy else "a soft map or a label map"
        raise DataError(
            f"{path} must be a hard mask, but is {kind}: {100 * soft / grey.size:.2f} % of its values lie "
            f"between 0 and full scale ({_full_scale(grey)}). No threshold is applied silently: give one "
            "(--threshold 0.5; in Python threshold=0.5)."
        )
    return as_mask(scaled >= threshold), soft


def read_probability(path: Path) -> npt.NDArray[np.float64]:
    """Read a hard mask or a soft map as values in [0, 1]."""
    grey, lossy = _read(path)
    return np.asarray(grey != 0, np.float64) if _is_hard(grey, lossy) else _scale(grey, path)


def _index(folder: Path, ending: str, role: str) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(f"the folder of {role} masks does not exist: {folder}")
    if (folder / "images").is_dir() and folder.name != "images":
        inner = folder / "masks" if (folder / "masks").is_dir() else "the one with the masks"
        raise DataError(
            f"{folder} holds a folder images/, whose photographs would be read as {role} masks. Name the "
            f"folder of masks itself: {inner}."
        )
    found: dict[str, Path] = {}
    problems = []
    for path in list_images(folder, deep=True, endings=MASK_SUFFIXES):
        if not path.stem.endswith(ending):
            continue
        name = path.relative_to(folder).with_suffix("").as_posix().removesuffix(ending)
        if name in found:
            problems.append(f"{name}: {found[name].name} and {path.name}")
        found[name] = path
    if problems:
        raise DataError(bullet_list(f"Names must be unique, but in {folder} two files share one:", problems))
    if not found:
        ends = f" ending in {ending!r}" if ending else ""
        raise DataError(f"no masks{ends} in {folder}; known formats are {', '.join(MASK_SUFFIXES)}.")
    return found


def _read(path: Path, *, indices: bool = False) -> tuple[npt.NDArray[Any], bool]:
    """The values of a file as they are stored, (H, W), and whether JPEG may have blurred them."""
    if path.suffix.lower() != ".npy":
        return read_grey(path, deep=True, indices=indices)
    try:
        # Mapped: its head may claim any size, and only what the file really holds takes memory.
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("it is an archive")
        if values.size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST // 10**6} million values")
    except Exception as error:  # numpy's reader fails on damaged files with errors of many kinds
        raise DataError(f"{path} cannot be read as an array: {error or 'it is empty'}") from error
    if values.ndim != 2 or values.size == 0 or values.dtype.kind not in "bufi":
        raise DataError(f"{path} must be a (H, W) array of numbers, but is {values.shape} of {values.dtype}.")
    return np.array(values), False


def _is_hard(grey: npt.NDArray[Any], lossy: bool) -> bool:
    if grey.dtype == np.bool_:
        return True
    high = grey.max()
    if not (grey.min() >= 0 and high in ((0, _full_scale(grey)) if lossy else (0, 1, _full_scale(grey)))):
        return False
    return high == 0 or bool(np.count_nonzero(grey) == np.count_nonzero(grey == high))


def _scale(grey: npt.NDArray[Any], path: Path) -> npt.NDArray[np.float64]:
    scaled: npt.NDArray[np.float64] = grey / float(_full_scale(grey))
    if not (scaled.min() >= 0 and scaled.max() <= 1):
        bad = int(np.count_nonzero(~((scaled >= 0) & (scaled <= 1))))
        raise DataError(
            f"{path} must hold probabilities in [0, 1], but {bad} of its {grey.size} values are outside or "
            f"NaN (smallest {np.nanmin(grey):.6g}, largest {np.nanmax(grey):.6g}). Apply a sigmoid to logits."
        )
    return scaled


def _full_scale(grey: npt.NDArray[Any]) -> int:
    """The value of "certainly foreground"."""
    if grey.dtype.kind in "fb":
        return 1
    return 255 if grey.dtype.itemsize == 1 else 65535


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
