"""An independent, slow implementation of the suite, written from the formulas with scipy; random masks."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage


def boundary_of(mask: np.ndarray) -> np.ndarray:
    cross = ndimage.generate_binary_structure(2, 1)
    return mask & ~ndimage.binary_erosion(mask, cross, border_value=0)


def distances_to(boundary: np.ndarray) -> np.ndarray:
    return ndimage.distance_transform_edt(~boundary)


def slow_score(truth, prediction, tolerances=(2, 5, 10), band=2) -> dict[str, float]:
    """The paper's formulas for two masks that both have foreground."""
    y, p = np.asarray(truth, bool), np.asarray(prediction, bool)
    tp, fp, fn, tn = (y & p).sum(), (~y & p).sum(), (y & ~p).sum(), (~y & ~p).sum()
    ious = [hit / (hit + fp + fn) for hit in (tp, tn) if hit + fp + fn]
    result = {
        "miou": 100 * float(np.mean(ious)),
        "precision": 100 * tp / (tp + fp),
        "recall": 100 * tp / (tp + fn),
        "pixel_accuracy": 100 * (tp + tn) / y.size,
        "dsc": 100 * 2 * tp / (2 * tp + fp + fn),
    }
    dy, dp = boundary_of(y), boundary_of(p)
    to_truth, to_prediction = distances_to(dy), distances_to(dp)
    from_truth, from_prediction = to_prediction[dy], to_truth[dp]
    result["hd95"] = np.percentile(np.concatenate([from_truth, from_prediction]), 95)
    result["assd"] = (from_truth.mean() + from_prediction.mean()) / 2
    for delta in tolerances:
        recall, precision = (from_truth <= delta).mean(), (from_prediction <= delta).mean()
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        result |= {
            f"bp_{delta:g}": 100 * precision,
            f"br_{delta:g}": 100 * recall,
            f"bf1_{delta:g}": 100 * f1,
        }
    band_truth, band_prediction = to_truth <= band, to_prediction <= band
    result["biou"] = 100 * (band_truth & band_prediction).sum() / (band_truth | band_prediction).sum()
    return {key: float(value) for key, value in result.items()}


def _blob(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    cy, cx = rng.uniform(0, height), rng.uniform(0, width)
    ry, rx = rng.uniform(0.5, height / 2 + 1), rng.uniform(0.5, width / 2 + 1)
    angle = np.arctan2(y - cy, x - cx)
    wobble = 1 + 0.3 * np.sin(rng.integers(2, 7) * angle + rng.uniform(0, 6))
    return ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= wobble**2


def _noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    return rng.random((height, width)) < rng.choice([0.002, 0.05, 0.5, 0.95])


def _clouds(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    smooth = ndimage.gaussian_filter(rng.standard_normal((height, width)), rng.uniform(0.5, 4))
    return smooth > np.quantile(smooth, rng.uniform(0.1, 0.95))


def _ring(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    outer = _blob(rng, height, width)
    return outer & ~ndimage.binary_erosion(outer, iterations=int(rng.integers(1, 5)))


def _frame(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    mask = np.ones((height, width), bool)
    mask[1:-1, 1:-1] = rng.random() < 0.5
    return mask


def _lines(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[rng.integers(height)] = True
    mask[:, rng.integers(width)] = rng.random() < 0.5
    return mask


def _pixel(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[rng.integers(height), rng.integers(width)] = True
    return mask


KINDS: list[Callable[[np.random.Generator, int, int], np.ndarray]] = [
    _blob,
    _noise,
    _clouds,
    _ring,
    _frame,
    _lines,
    _pixel,
]


def random_mask(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """One of many shapes and topologies, never empty: blobs, noise, holes, frames, lines, single pixels."""
    mask = KINDS[rng.integers(len(KINDS))](rng, height, width)
    if not mask.any():
        mask[rng.integers(height), rng.integers(width)] = True
    return mask


def random_pair(rng: np.random.Generator, limit: int = 96) -> tuple[np.ndarray, np.ndarray]:
    """Truth and prediction of one random size: unrelated, or the one a disturbed copy of the other."""
    height, width = (int(side) for side in np.exp(rng.uniform(0, math.log(limit), 2)).astype(int))
    truth = random_mask(rng, height, width)
    if rng.random() < 0.5:
        return truth, random_mask(rng, height, width)
    prediction = np.roll(truth, tuple(rng.integers(-4, 5, 2)), (0, 1)) ^ (rng.random(truth.shape) < 0.01)
    return truth, prediction if prediction.any() else truth


@pytest.fixture(name="slow_score")
def slow_score_fixture():
    return slow_score


@pytest.fixture(name="random_pair")
def random_pair_fixture():
    return random_pair


@pytest.fixture(name="random_mask")
def random_mask_fixture():
    return random_mask


def disc(rng, size=40):
    y, x = np.mgrid[:size, :size]
    cy, cx, r = rng.uniform(10, 30), rng.uniform(10, 30), rng.uniform(4, 9)
    return (y - cy) ** 2 + (x - cx) ** 2 <= r**2


@pytest.fixture
def study(tmp_path):
    """Twelve images, a good and a bad method; image 3 is missed by both, image 5 has no lesion."""
    rng = np.random.default_rng(0)
    masks = {folder: {} for folder in ("truth", "good", "bad")}
    for k in range(12):
        truth = disc(rng) if k != 5 else np.zeros((40, 40), bool)
        masks["truth"][f"i{k:02d}"] = truth
        masks["good"][f"i{k:02d}"] = truth & (rng.random(truth.shape) < 0.97) if k != 3 else truth & False
        masks["bad"][f"i{k:02d}"] = np.roll(truth, 4, 1) if k != 3 else truth & False
    for folder, content in masks.items():
        (tmp_path / folder).mkdir()
        for name, mask in content.items():
            Image.fromarray(mask).save(tmp_path / folder / f"{name}.png")
    return tmp_path, masks
