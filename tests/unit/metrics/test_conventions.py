"""Conventions of other evaluations: by hand, against slow loops, and against libraries where installed."""

import math
import warnings

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.metrics import conventions_table


@pytest.fixture
def study():
    """Soft maps: usual ones, a miss, a false alarm, a correctly empty frame."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:48, :56]
    images = []
    for k in range(10):
        cy, cx, r = rng.uniform(14, 34), rng.uniform(14, 40), rng.uniform(5, 12)
        truth = (y - cy) ** 2 + (x - cx) ** 2 <= r**2
        distance = np.hypot(y - cy - rng.normal(0, 3), x - cx - rng.normal(0, 3))
        soft = 1 / (1 + np.exp((distance - r * rng.uniform(0.7, 1.3)) / 2))
        if k == 3:
            soft = soft * 0.3
        if k == 5:
            truth = truth & False
        if k == 7:
            truth, soft = truth & False, soft * 0.2
        images.append((truth, np.round(soft * 255) / 255))
    return images


@pytest.fixture
def found(study):
    return {(row.convention, row.metric): row for row in conventions_table(study)}


def dice(truth, hard):
    return 200 * (truth & hard).sum() / (truth.sum() + hard.sum())


def iou(truth, hard):
    return 100 * (truth & hard).sum() / (truth | hard).sum()


def test_the_same_predictions_differ_by_convention(found):
    values = [row.value for row in found.values() if row.metric == "dice"]
    assert max(values) - min(values) > 15


def test_every_row_says_how_many_images_it_counts(found, study):
    assert all(row.n + row.dropped == len(study) and row.rule for row in found.values())


def test_per_image_conventions_by_loop(found, study):
    hard = [(truth, soft >= 0.5) for truth, soft in study]
    defined = [dice(t, h) for t, h in hard if t.any() or h.any()]
    assert found["mcpmix", "dice"].value == pytest.approx(np.mean(defined))
    assert found["mcpmix", "dice"].dropped == 1
    assert found["smp, micro-imagewise", "dice"].value == pytest.approx(np.mean([*defined, 100]))
    assert found["MONAI", "iou"].value == pytest.approx(np.mean([iou(t, h) for t, h in hard if t.any()]))
    assert found["MONAI", "iou"].dropped == 2
    background = [dice(~t, ~h) for t, h in hard]
    front = [dice(t, h) if t.any() or h.any() else math.nan for t, h in hard]
    both = np.nanmean([front, background], axis=0)
    assert found["torchmetrics, 2 classes", "dice"].value == pytest.approx(both.mean())
    single = [iou(t, h) for t, h in hard if t.any() or h.any()] + [iou(~t, ~h) for t, h in hard]
    assert found["torchmetrics, 2 classes", "iou"].value == pytest.approx(np.mean(single))


def test_pooled_conventions_by_loop(found, study):
    t = np.stack([truth for truth, _ in study])
    h = np.stack([soft >= 0.5 for _, soft in study])
    pooled = "pooled (smp micro, torchmetrics F1 and Jaccard)"
    assert found[pooled, "dice"].value == pytest.approx(dice(t, h))
    assert found[pooled, "iou"].value == pytest.approx(iou(t, h))
    assert found["pooled, 2 classes (mmseg)", "iou"].value == pytest.approx((iou(t, h) + iou(~t, ~h)) / 2)


def test_pranet_by_loop_over_thresholds(found, study):
    curves = {"dice": [], "iou": []}
    for truth, soft in study:
        stretched = (soft - soft.min()) / (soft.max() - soft.min())
        for metric, function in (("dice", dice), ("iou", iou)):
            row = []
            for k in range(256):
                hard = stretched >= k / 255 - 1e-9
                row.append(function(truth, hard) if (truth & hard).any() else 0.0)
            curves[metric].append(row)
    for metric, rows in curves.items():
        columns = np.mean(rows, axis=0)
        assert found["PraNet, mean", metric].value == pytest.approx(columns.mean())
        assert found["PraNet, max", metric].value == pytest.approx(columns.max())


def test_pranet_of_a_hard_mask_counts_the_full_image_at_threshold_0():
    truth = np.zeros((10, 10), bool)
    truth[:5] = True
    (row,) = [
        row
        for row in conventions_table([(truth, truth)])
        if row.convention == "PraNet, mean" and row.metric == "dice"
    ]
    assert row.value == pytest.approx((255 * 100 + 200 * 50 / 150) / 256)


def test_pranet_leaves_a_constant_map_as_it_is():
    truth = np.ones((4, 4), bool)
    rows = conventions_table([(truth, np.full((4, 4), 51 / 255))])
    (row,) = [row for row in rows if row.convention == "PraNet, mean" and row.metric == "dice"]
    assert row.value == pytest.approx(
        100 * 52 / 256
    )  # thresholds 0 to 51 find everything, the others nothing


def test_soft_dice_by_hand():
    rows = conventions_table([(np.array([[1, 0]]), np.array([[0.8, 0.4]]))])
    (row,) = [row for row in rows if row.convention.startswith("Polyp-PVT")]
    assert row.value == pytest.approx(100 * (2 * 1 + 1) / (1 + 1 + 1))  # stretched to 1 and 0


def test_distances_by_hand():
    truth = np.zeros((1, 40), bool)
    truth[0, :2] = True
    prediction = np.zeros((1, 40), bool)
    prediction[0, 1:12] = True
    empty = np.zeros((1, 40), bool)
    rows = conventions_table([(truth, prediction), (truth, empty), (empty, empty)])
    found = {(row.convention, row.metric): row for row in rows}
    a, b = [1, 0], list(range(11))
    diagonal = math.hypot(1, 40)
    ours = found["mcpmix", "hd95"]
    assert (ours.value, ours.n, ours.dropped) == (
        pytest.approx((np.percentile(a + b, 95) + diagonal) / 2),
        2,
        1,
    )
    monai = found["MONAI", "hd95"]
    assert (monai.value, monai.n, monai.dropped) == (pytest.approx(np.percentile(b, 95)), 1, 2)
    assert found["mcpmix", "assd"].value == pytest.approx(((0.5 + 5) / 2 + diagonal) / 2)
    assert found["MONAI, medpy", "assd"].value == math.inf


def test_hard_and_soft_input_of_equal_masks_agree(study):
    hard = [(truth, soft >= 0.5) for truth, soft in study]
    first = {(row.convention, row.metric): row.value for row in conventions_table(hard)}
    second = {(row.convention, row.metric): row.value for row in conventions_table(study)}
    for key in first:
        if "PraNet" not in key[0] and "Polyp-PVT" not in key[0]:
            assert first[key] == second[key]


@pytest.mark.parametrize(
    "probability", [np.zeros((2, 2)), np.full((3, 3), 1.5), np.full((3, 3), np.nan), np.full((3, 3), -2.0)]
)
def test_maps_that_are_no_probabilities_are_refused(probability):
    with pytest.raises(DataError, match=r"must be \(3, 3\) with values in \[0, 1\]"):
        conventions_table([(np.ones((3, 3)), probability)])


def test_no_images_are_refused():
    with pytest.raises(DataError, match="at least one image"):
        conventions_table([])


def tensors(study):
    torch = pytest.importorskip("torch")
    truth = torch.from_numpy(np.stack([truth for truth, _ in study]))[:, None]
    return truth, torch.from_numpy(np.stack([soft >= 0.5 for _, soft in study]))[:, None]


def test_equals_smp(found, study):
    smp = pytest.importorskip("segmentation_models_pytorch")
    truth, hard = tensors(study)
    counts = smp.metrics.get_stats(hard.long(), truth.long(), mode="binary")
    for metric, function in (("dice", smp.metrics.f1_score), ("iou", smp.metrics.iou_score)):
        imagewise = 100 * float(function(*counts, reduction="micro-imagewise"))
        assert found["smp, micro-imagewise", metric].value == pytest.approx(imagewise, abs=1e-4)
        pooled = 100 * float(function(*counts, reduction="micro"))
        assert found["pooled (smp micro, torchmetrics F1 and Jaccard)", metric].value == pytest.approx(
            pooled, abs=1e-4
        )


def test_equals_monai(found, study):
    monai = pytest.importorskip("monai.metrics")
    truth, hard = tensors(study)
    metrics = {
        ("MONAI", "dice"): (monai.DiceMetric(), 100),
        ("MONAI", "iou"): (monai.MeanIoU(), 100),
        ("MONAI", "hd95"): (monai.HausdorffDistanceMetric(include_background=True, percentile=95), 1),
        ("MONAI, medpy", "assd"): (monai.SurfaceDistanceMetric(include_background=True, symmetric=True), 1),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, (metric, scale) in metrics.items():
            metric(hard, truth)
            assert found[key].value == pytest.approx(scale * float(metric.aggregate()), rel=1e-5), key


def test_equals_torchmetrics(found, study):
    classification = pytest.importorskip("torchmetrics.classification")
    segmentation = pytest.importorskip("torchmetrics.segmentation")
    truth, hard = (masks[:, 0].long() for masks in tensors(study))
    f1, jaccard = classification.BinaryF1Score(), classification.BinaryJaccardIndex()
    pooled = "pooled (smp micro, torchmetrics F1 and Jaccard)"
    assert found[pooled, "dice"].value == pytest.approx(100 * float(f1(hard, truth)), abs=1e-4)
    assert found[pooled, "iou"].value == pytest.approx(100 * float(jaccard(hard, truth)), abs=1e-4)
    for metric, cls in (("dice", "DiceScore"), ("iou", "MeanIoU")):
        function = getattr(segmentation, cls)(num_classes=2, input_format="index")
        expected = 100 * float(function(hard, truth))
        assert found["torchmetrics, 2 classes", metric].value == pytest.approx(expected, abs=1e-4), metric
