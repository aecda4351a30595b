"""The suite against other people's implementations, where the definitions agree.

MONAI, surface-distance and torchmetrics come with the extra `dev`. medpy is GPL and stays out: its
definitions are those of the slow implementation in `conftest.py`.
"""

import math
import warnings

import numpy as np
import pytest

from mcpmix.metrics import boundary_distances, score

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pairs(random_pair):
    rng = np.random.default_rng(21)
    return [random_pair(rng, 64) for _ in range(60)]


@pytest.fixture
def monai():
    import monai.metrics as metrics
    import torch

    def call(name, truth, prediction, **options):
        tensors = (torch.from_numpy(np.array(mask))[None, None] for mask in (prediction, truth))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(getattr(metrics, name)(*tensors, include_background=True, **options))

    return call


def test_monai_hausdorff_without_percentile_is_the_largest_distance(pairs, monai):
    for truth, prediction in pairs:
        largest = max(part.max() for part in boundary_distances(truth, prediction))
        expected = monai("compute_hausdorff_distance", truth, prediction)
        assert largest == pytest.approx(expected, rel=1e-6)


def test_monai_hd95_is_the_larger_of_two_directed_percentiles(pairs, monai):
    for truth, prediction in pairs:
        directed = boundary_distances(truth, prediction)
        expected = monai("compute_hausdorff_distance", truth, prediction, percentile=95)
        assert max(np.percentile(part, 95) for part in directed) == pytest.approx(expected, rel=1e-6)


def test_monai_hd95_equals_ours_where_both_boundaries_are_equally_far(monai):
    truth = np.zeros((40, 60), bool)
    truth[5:35, 10:14] = True
    for shift in (10, 20, 30):
        prediction = np.roll(truth, shift, 1)  # disjoint bars: both directed sets have the same values
        expected = monai("compute_hausdorff_distance", truth, prediction, percentile=95)
        assert score(truth, prediction)["hd95"] == pytest.approx(expected, rel=1e-6)


def test_monai_surface_distance_pools_both_boundaries(pairs, monai):
    for truth, prediction in pairs:
        pooled = np.concatenate(boundary_distances(truth, prediction)).mean()
        expected = monai("compute_average_surface_distance", truth, prediction, symmetric=True)
        assert pooled == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_monai_surface_dice_pools_both_boundaries(pairs, monai):
    for truth, prediction in pairs:
        near = np.concatenate(boundary_distances(truth, prediction)) <= 2
        expected = monai("compute_surface_dice", truth, prediction, class_thresholds=[2.0])
        assert near.mean() == pytest.approx(expected, rel=1e-6)


def test_monai_region_metrics(pairs, monai):
    for truth, prediction in pairs:
        dice = monai("compute_dice", truth, prediction)
        assert score(truth, prediction)["dsc"] == pytest.approx(100 * dice, abs=1e-4)


def test_surface_distance_hausdorff_is_within_a_pixel(pairs):
    import surface_distance as library

    for truth, prediction in pairs:
        measured = library.compute_surface_distances(truth, prediction, (1, 1))
        largest = max(part.max() for part in boundary_distances(truth, prediction))
        # It measures between corners of the contour, half a pixel diagonal away from ours at each end.
        assert largest == pytest.approx(library.compute_robust_hausdorff(measured, 100), abs=math.sqrt(2))


def test_torchmetrics_hausdorff_is_the_largest_distance_on_square_images(random_mask):
    import torch
    import torchmetrics.functional.segmentation as library

    rng = np.random.default_rng(22)
    for side in range(2, 42, 2):  # on other images it mixes up rows and columns
        truth, prediction = random_mask(rng, side, side), random_mask(rng, side, side)
        one_hot = [torch.from_numpy(np.stack([~mask, mask])[None]).long() for mask in (prediction, truth)]
        expected = float(library.hausdorff_distance(*one_hot, num_classes=2, include_background=False))
        largest = max(part.max() for part in boundary_distances(truth, prediction))
        assert largest == pytest.approx(expected, rel=1e-6)
