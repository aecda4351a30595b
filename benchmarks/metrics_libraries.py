"""Other libraries behind one call each, for the benchmark of the metrics.

A library that is not installed is left out by name. Every call takes two boolean masks and returns what the
library gives for them.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from scipy import ndimage

Call = Callable[[np.ndarray, np.ndarray], dict[str, float]]
TOLERANCES = (2, 5, 10)
PACKAGES = {
    "monai": "monai",
    "surface-distance": "surface_distance",
    "torchmetrics": "torchmetrics",
    "medpy": "medpy",
}


def installed() -> tuple[dict[str, str], list[str]]:
    """Versions of the libraries that are here, and the names of those that are not."""
    found, absent = {}, []
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            absent.append(name)
    return found, absent


def scipy_suite(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """The whole suite from the formulas, with two distance transforms of the full image."""
    tp, fp = (truth & prediction).sum(), (~truth & prediction).sum()
    fn, tn = (truth & ~prediction).sum(), (~truth & ~prediction).sum()
    result = {
        "miou": 50 * (tp / (tp + fp + fn) + tn / (tn + fp + fn)),
        "precision": 100 * tp / (tp + fp),
        "recall": 100 * tp / (tp + fn),
        "pixel_accuracy": 100 * (tp + tn) / truth.size,
        "dsc": 200 * tp / (2 * tp + fp + fn),
    }
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (truth, prediction)]
    maps = [ndimage.distance_transform_edt(~edge) for edge in edges]
    a, b = maps[1][edges[0]], maps[0][edges[1]]
    result |= {"hd95": np.percentile(np.concatenate([a, b]), 95), "assd": (a.mean() + b.mean()) / 2}
    for t in TOLERANCES:
        recall, precision = (a <= t).mean(), (b <= t).mean()
        f1 = 2 * precision * recall / max(precision + recall, 1e-300)
        result |= {f"bp_{t}": 100 * precision, f"br_{t}": 100 * recall, f"bf1_{t}": 100 * f1}
    bands = [distance <= 2 for distance in maps]
    result["biou"] = 100 * (bands[0] & bands[1]).sum() / (bands[0] | bands[1]).sum()
    return {key: float(value) for key, value in result.items()}


def _tensors(truth: np.ndarray, prediction: np.ndarray) -> tuple[Any, Any]:
    torch = import_module("torch")
    return tuple(torch.from_numpy(mask)[None, None] for mask in (prediction, truth))


def monai_hd95(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """HD95 alone."""
    monai = import_module("monai.metrics")
    p, y = _tensors(truth, prediction)
    value = monai.compute_hausdorff_distance(p, y, include_background=True, percentile=95)
    return {"hd95": float(value)}


def monai_suite(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """The nearest MONAI has to the suite: no boundary precision or recall, no boundary IoU."""
    monai = import_module("monai.metrics")
    p, y = _tensors(truth, prediction)
    result = monai_hd95(truth, prediction)
    assd = monai.compute_average_surface_distance(p, y, include_background=True, symmetric=True)
    result |= {"assd": float(assd), "dsc": 100 * float(monai.compute_dice(p, y))}
    for t in TOLERANCES:
        value = monai.compute_surface_dice(p, y, class_thresholds=[float(t)], include_background=True)
        result[f"bf1_{t}"] = 100 * float(value)
    result["iou"] = 100 * float(monai.compute_iou(p, y))
    # Not on booleans, for which it counts no true positive: see `monai_precision_of_booleans`.
    counts = monai.get_confusion_matrix(p.float(), y.float(), include_background=True)
    for key in ("precision", "recall", "accuracy"):
        result[key] = 100 * float(monai.compute_confusion_matrix_metric(key, counts))
    return result


def monai_precision_of_booleans(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """Precision as MONAI gives it for boolean masks."""
    monai = import_module("monai.metrics")
    counts = monai.get_confusion_matrix(*_tensors(truth, prediction), include_background=True)
    return {"precision": 100 * float(monai.compute_confusion_matrix_metric("precision", counts))}


def surface_distance_suite(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """Distances and surface overlaps; no boundary IoU, and of the region metrics Dice only."""
    library = import_module("surface_distance")
    measured = library.compute_surface_distances(truth, prediction, (1, 1))
    result = {
        "hd95": library.compute_robust_hausdorff(measured, 95),
        "assd": sum(library.compute_average_surface_distance(measured)) / 2,
        "dsc": 100 * library.compute_dice_coefficient(truth, prediction),
    }
    for t in TOLERANCES:
        recall, precision = library.compute_surface_overlap_at_tolerance(measured, t)
        f1 = 100 * library.compute_surface_dice_at_tolerance(measured, t)
        result |= {f"bp_{t}": 100 * precision, f"br_{t}": 100 * recall, f"bf1_{t}": f1}
    return {key: float(value) for key, value in result.items()}


def medpy_suite(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """HD95, ASSD and region metrics, one call each."""
    library = import_module("medpy.metric.binary")
    result = {"hd95": library.hd95(prediction, truth), "assd": library.assd(prediction, truth)}
    names = {"dsc": "dc", "precision": "precision", "recall": "recall", "iou": "jc"}
    result |= {key: 100 * getattr(library, name)(prediction, truth) for key, name in names.items()}
    return {key: float(value) for key, value in result.items()}


def torchmetrics_region(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """Dice and mean IoU of two classes; it has no percentile of distances."""
    library = import_module("torchmetrics.functional.segmentation")
    p, y = (mask[:, 0].long() for mask in _tensors(truth, prediction))
    options = {"num_classes": 2, "input_format": "index"}
    dice = library.dice_score(p, y, average="none", **options)[0, 1]
    return {"dsc": 100 * float(dice), "miou": 100 * float(library.mean_iou(p, y, **options).mean())}


def torchmetrics_hausdorff(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """The largest distance; needs memory in proportion to foreground times background."""
    torch = import_module("torch")
    library = import_module("torchmetrics.functional.segmentation")
    p, y = (torch.from_numpy(np.stack([~mask, mask])[None]).long() for mask in (prediction, truth))
    return {"hd": float(library.hausdorff_distance(p, y, num_classes=2, include_background=False))}


LIBRARY_CALLS: dict[str, tuple[str, Call]] = {
    "MONAI, the same quantities": ("monai", monai_suite),
    "MONAI, HD95 only": ("monai", monai_hd95),
    "surface-distance, without boundary IoU": ("surface-distance", surface_distance_suite),
    "medpy, HD95, ASSD and four region metrics": ("medpy", medpy_suite),
    "torchmetrics, Dice and IoU only": ("torchmetrics", torchmetrics_region),
}


EXAMPLE_CALLS: dict[str, tuple[str, Call]] = {
    "MONAI": ("monai", monai_suite),
    "MONAI on booleans": ("monai", monai_precision_of_booleans),
    "surface-distance": ("surface-distance", surface_distance_suite),
    "medpy": ("medpy", medpy_suite),
    "torchmetrics": ("torchmetrics", torchmetrics_region),
    "torchmetrics, Hausdorff": ("torchmetrics", torchmetrics_hausdorff),
}


def available_calls() -> dict[str, Call]:
    """All calls whose library is installed, scipy first."""
    found, _ = installed()
    calls = {name: call for name, (package, call) in LIBRARY_CALLS.items() if package in found}
    return {"scipy, whole suite": scipy_suite} | calls


def answer(call: Call, truth: np.ndarray, prediction: np.ndarray) -> dict[str, float] | str:
    """What a library says, or the name of its exception."""
    try:
        return call(truth, prediction)
    except Exception as error:
        return type(error).__name__
