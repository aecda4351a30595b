"""The whole suite: equal to a slow implementation, to cases worked by hand, and to its contract."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import ndimage

from mcpmix.core.errors import DataError
from mcpmix.metrics import Counts, EmptyRule, boundary_distances, count, region_scores, score, score_keys
from mcpmix.metrics import suite as module


def rectangle(shape, rows, columns):
    mask = np.zeros(shape, bool)
    mask[slice(*rows), slice(*columns)] = True
    return mask


def assert_same(found, expected, tolerance=1e-6):
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=tolerance, nan_ok=True), key


@pytest.mark.parametrize("seed", range(10))
def test_equals_the_slow_implementation_on_random_pairs(slow_score, random_pair, seed):
    rng = np.random.default_rng(seed)
    for _ in range(80):
        truth, prediction = random_pair(rng)
        tolerances = (2, 5, 10) if rng.random() < 0.7 else tuple(np.unique(rng.uniform(0, 9, 3)).round(3))
        band = 2 if rng.random() < 0.7 else float(rng.choice([0, 1, 1.5, 3, 2**0.5, 7.3, 40]))
        assert_same(
            score(truth, prediction, tolerances, band), slow_score(truth, prediction, tolerances, band)
        )


def test_equals_the_slow_implementation_on_larger_images(slow_score, random_mask):
    rng = np.random.default_rng(77)
    for height, width in [(512, 512), (288, 384), (500, 611), (1, 700), (700, 1), (257, 1030)]:
        truth, prediction = random_mask(rng, height, width), random_mask(rng, height, width)
        assert_same(score(truth, prediction), slow_score(truth, prediction))


def test_equals_the_slow_implementation_where_searching_rows_would_take_too_long(slow_score):
    truth = np.zeros((200, 900), bool)
    truth[::2, :300:2] = True
    prediction = rectangle(truth.shape, (150, 151), (890, 891))
    assert_same(score(truth, prediction), slow_score(truth, prediction))
    assert_same(score(prediction, truth), slow_score(prediction, truth))


def test_shifted_square_by_hand():
    truth = rectangle((10, 12), (2, 6), (2, 6))  # 16 pixels, 12 of them boundary
    prediction = rectangle((10, 12), (2, 6), (5, 9))  # three columns to the right: 4 pixels in common
    found = score(truth, prediction, tolerances=(1, 3), band=0)
    assert found["dsc"] == pytest.approx(100 * 8 / 32)
    assert found["miou"] == pytest.approx(50 * (4 / 28 + 92 / 116))
    assert found["pixel_accuracy"] == pytest.approx(100 * 96 / 120)
    # Distances of the truth's boundary, left to right: a column of 4 at 3, two pairs at 2 and 1, a column of
    # 4 on the prediction's own left edge at 0; the other direction is the mirror image.
    assert found["assd"] == pytest.approx((4 * 3 + 2 * 2 + 2 * 1) / 12)
    assert found["hd95"] == pytest.approx(3.0)
    assert found["bp_1"] == found["br_1"] == pytest.approx(100 * 6 / 12)
    assert found["bf1_3"] == pytest.approx(100.0)
    assert found["biou"] == pytest.approx(100 * 4 / 20)  # band 0: the boundaries themselves


def test_percentile_interpolates_between_distances_not_their_squares():
    truth = rectangle((1, 30), (0, 1), (0, 2))
    prediction = rectangle((1, 30), (0, 1), (1, 12))
    # Truth to prediction: 1, 0. Prediction to truth: 0, 1, ..., 10. The 95th percentile of these 13 distances
    # lies at position 11.4, between 9 and 10.
    assert score(truth, prediction)["hd95"] == pytest.approx(9.4)


def test_the_image_border_counts_as_outside():
    full = np.ones((6, 6), bool)
    inner = rectangle((6, 6), (1, 5), (1, 5))
    found = score(full, inner)
    assert found["hd95"] == pytest.approx(np.percentile([2**0.5] * 4 + [1.0] * 16 + [1.0] * 12, 95))


def test_full_and_single_pixel_images():
    full = np.ones((4, 5), bool)
    perfect = {key: 0.0 if key in ("hd95", "assd") else 100.0 for key in score_keys()}
    assert score(full, full) == perfect
    assert score(np.ones((1, 1)), np.ones((1, 1))) == perfect
    pixel = rectangle((7, 7), (3, 4), (3, 4))
    assert score(pixel, pixel) == perfect


def test_empty_masks_follow_the_default_contract():
    lesion, empty = rectangle((3, 4), (1, 2), (1, 3)), np.zeros((3, 4), bool)
    missed, alarm, nothing = score(lesion, empty), score(empty, lesion), score(empty, empty)
    for found in (missed, alarm):
        assert found["hd95"] == found["assd"] == 5.0  # the diagonal of 3 x 4
        assert found["miou"] == pytest.approx(50 * (0 + 10 / 12))
        assert found["pixel_accuracy"] == pytest.approx(100 * 10 / 12)
        zero = set(score_keys()) - {"hd95", "assd", "miou", "pixel_accuracy"}
        assert {key: found[key] for key in zero} == dict.fromkeys(zero, 0.0)
    assert nothing["miou"] == nothing["pixel_accuracy"] == 100.0
    assert all(math.isnan(value) for key, value in nothing.items() if key not in ("miou", "pixel_accuracy"))


def test_empty_masks_follow_a_chosen_rule():
    lesion, empty = rectangle((3, 4), (1, 2), (1, 3)), np.zeros((3, 4), bool)
    perfect = score(empty, empty, rule=EmptyRule(both_empty="perfect"))
    assert perfect == {key: 0.0 if key in ("hd95", "assd") else 100.0 for key in score_keys()}
    infinite = score(lesion, empty, rule=EmptyRule(one_empty="infinite"))
    assert infinite["hd95"] == infinite["assd"] == math.inf
    assert infinite["precision"] == 0.0
    undefined = score(lesion, empty, rule=EmptyRule(one_empty="undefined"))
    nan = {key for key, value in undefined.items() if math.isnan(value)}
    assert nan == {"precision", "hd95", "assd", "bp_2", "bp_5", "bp_10"}
    swapped = score(empty, lesion, rule=EmptyRule(one_empty="undefined"))
    assert {key for key, value in swapped.items() if math.isnan(value)} == {
        "recall",
        "hd95",
        "assd",
        "br_2",
        "br_5",
        "br_10",
    }


def test_a_missed_lesion_is_farther_than_any_found_one():
    for height, width in [(1, 1), (1, 9), (13, 2), (40, 30)]:
        corner, opposite = np.zeros((2, height, width), bool)
        corner[0, 0] = opposite[-1, -1] = True
        assert score(corner, opposite)["hd95"] < score(corner, np.zeros_like(corner))["hd95"]


def test_keys_and_custom_tolerances():
    mask = rectangle((9, 9), (2, 6), (2, 6))
    assert " ".join(score(mask, mask)) == (
        "miou precision recall pixel_accuracy dsc hd95 assd "
        "bp_2 br_2 bf1_2 bp_5 br_5 bf1_5 bp_10 br_10 bf1_10 biou"
    )
    assert list(score(mask, mask, tolerances=(0.5,)))[7:] == ["bp_0.5", "br_0.5", "bf1_0.5", "biou"]
    assert list(score(mask, mask, tolerances=()))[-2:] == ["assd", "biou"]


def test_different_shapes_are_refused():
    with pytest.raises(DataError, match=r"truth is 3 x 4 and prediction is 4 x 3"):
        score(np.ones((3, 4), bool), np.ones((4, 3), bool))


def test_accepts_every_form_of_the_same_mask(random_pair):
    truth, prediction = random_pair(np.random.default_rng(5))
    expected = score(truth, prediction)
    forms = [
        lambda mask: mask.astype(np.uint8),
        lambda mask: mask.astype(np.uint8) * 255,
        lambda mask: mask.astype(np.float32),
        lambda mask: mask.astype(np.int64) * 255,
        lambda mask: np.asfortranarray(mask),
        lambda mask: mask.tolist(),
        lambda mask: np.repeat(mask, 2, 1)[:, ::2],
    ]
    for first, second in itertools.product(forms, forms):
        assert score(first(truth), second(prediction)) == expected


def test_leaves_its_input_alone(random_pair):
    truth, prediction = random_pair(np.random.default_rng(6))
    copies = truth.copy(), prediction.copy()
    truth.setflags(write=False)
    prediction.setflags(write=False)
    score(truth, prediction)
    assert (truth == copies[0]).all()
    assert (prediction == copies[1]).all()


def test_threads_do_not_disturb_each_other(random_pair):
    rng = np.random.default_rng(8)
    pairs = [random_pair(rng, 200) for _ in range(200)]
    expected = [score(*pair) for pair in pairs]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: score(*pair), pairs * 4))
    assert found == expected * 4


def brute_force(truth, prediction):
    """Every boundary pixel against every other, without any distance transform."""

    def edge(mask):
        padded = np.pad(mask, 1)
        inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        return np.argwhere(mask & ~inner)

    a, b = edge(truth), edge(prediction)
    table = np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))
    return table.min(1), table.min(0)


def test_equals_every_pixel_against_every_other(random_pair):
    rng = np.random.default_rng(3)
    for _ in range(150):
        truth, prediction = random_pair(rng, 40)
        for found, expected in zip(
            boundary_distances(truth, prediction), brute_force(truth, prediction), strict=True
        ):
            assert np.array_equal(found, expected)


def test_distances_of_empty_masks():
    lesion, empty = np.ones((3, 3), bool), np.zeros((3, 3), bool)
    from_truth, from_prediction = boundary_distances(lesion, empty)
    assert np.array_equal(from_truth, np.full(8, np.inf))
    assert from_prediction.size == 0
    assert [part.size for part in boundary_distances(empty, lesion)] == [0, 8]
    assert [part.size for part in boundary_distances(empty, empty)] == [0, 0]


def test_both_ways_of_measuring_agree(random_pair, monkeypatch):
    rng = np.random.default_rng(4)
    pairs = [random_pair(rng, 60) for _ in range(100)]
    searched = [boundary_distances(*pair) for pair in pairs]
    monkeypatch.setattr("mcpmix.metrics.kernels.measure", lambda pixels, gaps, squared: -1.0)
    for pair, expected in zip(pairs, searched, strict=True):
        for a, b in zip(boundary_distances(*pair), expected, strict=True):
            assert np.array_equal(a, b)


def test_images_too_large_for_16_bits(monkeypatch):
    truth, prediction = np.zeros((2, 3, 20_000), bool)
    truth[0, 5] = truth[2, 19_999] = prediction[1, 17_000] = True
    wide, _ = boundary_distances(truth, prediction)
    assert np.array_equal(wide, np.sqrt([1 + 16_995**2, 1 + 2_999**2]))
    tall, _ = boundary_distances(truth.T, prediction.T)
    assert np.array_equal(np.sort(tall), np.sort(wide))


def test_wide_numbers_equal_narrow_ones(random_pair, monkeypatch):
    rng = np.random.default_rng(12)
    pairs = [random_pair(rng) for _ in range(30)]
    narrow = [boundary_distances(*pair) for pair in pairs]
    monkeypatch.setattr(module, "_NARROW_SIDE", 0)
    for pair, expected in zip(pairs, narrow, strict=True):
        for a, b in zip(boundary_distances(*pair), expected, strict=True):
            assert np.array_equal(a, b)


def test_the_workspace_is_given_back(monkeypatch):
    monkeypatch.setattr(module, "_KEPT_BYTES", 100)
    workspace = module._Workspace()
    assert workspace.take("small", (10,), np.uint8).base is workspace.take("small", (5,), np.uint8).base
    assert (
        workspace.take("large", (101,), np.uint8).base is not workspace.take("large", (101,), np.uint8).base
    )


@pytest.mark.parametrize("band", [0, 1, 1.4, 2, 3.7, 9, 1000])
def test_bands_are_all_pixels_within_the_radius(random_pair, band):
    rng = np.random.default_rng(9)
    for _ in range(20):
        truth, prediction = (mask.astype(np.uint8) for mask in random_pair(rng, 50))
        found = module.compare(truth, prediction, module.survey(truth, prediction)[1], band)
        bands = []
        for mask in (truth, prediction):
            inner = ndimage.binary_erosion(mask, ndimage.generate_binary_structure(2, 1), border_value=0)
            bands.append(ndimage.distance_transform_edt(~((mask == 1) & ~inner)) <= band)
        assert found.band_both == (bands[0] & bands[1]).sum()
        assert found.band_either == (bands[0] | bands[1]).sum()


def test_counts_by_hand():
    truth = np.array([[1, 1, 0], [0, 0, 0]])
    prediction = np.array([[1, 0, 1], [1, 0, 0]])
    assert count(truth, prediction) == Counts(tp=1, fp=2, fn=1, tn=2)


def test_scores_by_hand():
    found = region_scores(Counts(tp=6, fp=2, fn=4, tn=8))
    assert found == {
        "miou": pytest.approx(50 * (6 / 12 + 8 / 14)),
        "precision": pytest.approx(75.0),
        "recall": pytest.approx(60.0),
        "pixel_accuracy": pytest.approx(70.0),
        "dsc": pytest.approx(100 * 12 / 18),
    }


def test_miou_can_exceed_dsc_because_it_has_the_background():
    found = region_scores(Counts(tp=10, fp=5, fn=5, tn=980))
    assert found["miou"] > found["dsc"]


def test_miou_averages_the_classes_that_occur():
    assert region_scores(Counts(0, 0, 0, 9))["miou"] == 100.0
    assert region_scores(Counts(9, 0, 0, 0))["miou"] == 100.0
    assert region_scores(Counts(0, 4, 0, 0))["miou"] == 0.0
    assert region_scores(Counts(0, 4, 0, 12))["miou"] == pytest.approx(50 * 12 / 16)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (EmptyRule(), (0.0, 0.0, math.nan)),
        (EmptyRule(one_empty="undefined"), (math.nan, 0.0, math.nan)),
        (EmptyRule(both_empty="perfect"), (0.0, 0.0, 100.0)),
    ],
)
def test_empty_masks(rule, expected):
    missed, nothing = Counts(0, 0, 3, 6), Counts(0, 0, 0, 9)
    found = (
        region_scores(missed, rule)["precision"],
        region_scores(missed, rule)["recall"],
        region_scores(nothing, rule)["dsc"],
    )
    assert found == pytest.approx(expected, nan_ok=True)
    assert region_scores(missed, rule)["dsc"] == 0.0


def test_adding_counts_pools_images():
    a, b = Counts(1, 2, 3, 4), Counts(10, 20, 30, 40)
    assert a + b == Counts(11, 22, 33, 44)
    assert region_scores(a + b)["dsc"] == pytest.approx(100 * 22 / 77)
