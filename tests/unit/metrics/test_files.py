"""Masks in files: pairing by name, and what each format may hold."""

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.metrics.files import pair_files, read_mask, read_pair, read_probability

SQUARE = np.zeros((12, 16), np.uint8)
SQUARE[3:9, 4:11] = 255


@pytest.fixture
def save(tmp_path):
    def save(name, values=SQUARE, mode=None, **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, values)
        else:
            image = Image.fromarray(values)
            (image.convert(mode) if mode else image).save(path, **options)
        return path

    return save


class TestHardMasks:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "gif"])
    @pytest.mark.parametrize("mode", ["1", "L", "RGB", "P"])
    def test_two_values_in_any_lossless_format(self, save, suffix, mode):
        mask, altered = read_mask(save(f"a.{suffix}", mode=mode))
        assert (mask == SQUARE // 255).all()
        assert altered == 0

    @pytest.mark.parametrize("mode", ["LA", "RGBA"])
    def test_an_opaque_alpha_channel_is_no_matter(self, save, mode):
        assert (read_mask(save("a.png", mode=mode))[0] == SQUARE // 255).all()

    def test_zeros_and_ones(self, save):
        assert (read_mask(save("a.png", SQUARE // 255))[0] == SQUARE // 255).all()

    def test_sixteen_bits(self, save):
        assert (read_mask(save("a.png", (SQUARE // 255).astype(np.uint16) * 65535))[0] == SQUARE // 255).all()

    @pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, np.int64])
    def test_arrays(self, save, kind):
        assert (read_mask(save("a.npy", (SQUARE // 255).astype(kind)))[0] == SQUARE // 255).all()

    @pytest.mark.parametrize("value", [0, 1, 255])
    def test_constant_masks(self, save, value):
        assert (read_mask(save("a.png", np.full((4, 4), value, np.uint8)))[0] == (value > 0)).all()

    def test_a_threshold_leaves_hard_masks_alone(self, save):
        mask, altered = read_mask(save("a.png", SQUARE // 255), threshold=0.5)
        assert (mask == SQUARE // 255).all()
        assert altered == 0


class TestOtherFiles:
    def test_a_jpeg_mask_is_refused_and_named(self, save):
        path = save("a.jpg", quality=60)
        with pytest.raises(
            DataError, match=r"a\.jpg must be a hard mask, but is a mask blurred by JPEG"
        ) as error:
            read_mask(path)
        assert "--threshold 0.5; in Python threshold=0.5" in str(error.value)

    def test_a_jpeg_mask_with_a_threshold_is_the_mask(self, save):
        mask, altered = read_mask(save("a.jpg", quality=60), threshold=0.5)
        assert (mask == SQUARE // 255).all()
        assert altered > 0

    def test_an_almost_black_jpeg_is_not_a_mask_of_zeros_and_ones(self, save):
        path = save("a.jpg", SQUARE // 255, quality=100)
        assert set(np.unique(np.asarray(Image.open(path)))) == {0, 1}
        with pytest.raises(DataError, match="blurred by JPEG"):
            read_mask(path)
        assert read_mask(path, 0.5)[0].sum() == 0

    def test_a_soft_map_is_refused_with_its_share_of_soft_pixels(self, save):
        soft = SQUARE.copy()
        soft[0, :3] = 100  # 3 of 192
        with pytest.raises(DataError, match=r"a soft map or a label map: 1\.56 % of its values"):
            read_mask(save("a.png", soft))

    def test_the_threshold_is_a_fraction_of_full_scale(self, save):
        values = np.array([[0, 127, 128, 255]], np.uint8)
        mask, altered = read_mask(save("a.png", values), threshold=0.5)
        assert mask.tolist() == [[0, 0, 1, 1]]
        assert altered == 2
        assert read_mask(save("b.npy", np.array([[0.1, 0.49, 0.5, 1.0]])), 0.5)[0].tolist() == [[0, 0, 1, 1]]

    def test_colours_are_refused(self, save):
        colour = np.stack([SQUARE, SQUARE // 2, SQUARE * 0], 2)
        with pytest.raises(DataError, match="is coloured: its channels differ"):
            read_mask(save("a.png", colour))

    def test_transparency_is_refused(self, save):
        with pytest.raises(DataError, match="transparent parts"):
            read_mask(save("a.png", np.stack([SQUARE, SQUARE, SQUARE, SQUARE], 2)))

    def test_several_pages_are_refused(self, tmp_path):
        page = Image.fromarray(SQUARE)
        page.save(tmp_path / "a.tif", save_all=True, append_images=[page])
        with pytest.raises(DataError, match="has 2 pages"):
            read_mask(tmp_path / "a.tif")

    def test_cmyk_is_refused(self, save):
        with pytest.raises(DataError, match="CMYK"):
            read_mask(save("a.tif", np.stack([SQUARE] * 3, 2), mode="CMYK"))

    def test_damaged_files_are_named(self, save, tmp_path):
        (tmp_path / "a.png").write_bytes(b"no image")
        (tmp_path / "a.npy").write_bytes(b"no array")
        whole = save("b.png", np.random.default_rng(0).integers(0, 2, (50, 50), np.uint8)).read_bytes()
        (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
        for name in ("a.png", "a.npy", "b.png"):
            with pytest.raises(DataError, match=f"{name} cannot be read"):
                read_mask(tmp_path / name)

    @pytest.mark.parametrize("values", [np.zeros((2, 2, 3)), np.zeros((0, 2)), np.array([["a"]])])
    def test_other_arrays_are_refused(self, save, values):
        with pytest.raises(DataError, match=r"must be a \(H, W\) array of numbers"):
            read_mask(save("a.npy", values))

    @pytest.mark.parametrize("bad", [-3.2, 1.5, np.nan])
    def test_logits_and_nan_are_refused_with_or_without_threshold(self, save, bad):
        path = save("a.npy", np.array([[0.2, bad]]))
        for threshold in (None, 0.5):
            with pytest.raises(DataError, match="1 of its 2 values are outside or NaN"):
                read_mask(path, threshold)

    def test_probabilities(self, save):
        soft = save("a.png", np.array([[0, 51, 255]], np.uint8))
        assert read_probability(soft).tolist() == [[0, 0.2, 1]]
        hard = save("b.png", np.array([[0, 1, 1]], np.uint8))
        assert read_probability(hard).tolist() == [[0, 1, 1]]


class TestPairing:
    def test_by_name_with_any_suffix_and_sub_folders(self, save, tmp_path):
        save("truth/b.png")
        save("truth/site 1/a.png")
        save("prediction/b.bmp")
        save("prediction/site 1/a.npy")
        save("prediction/site 2/a.png")
        (tmp_path / "truth" / "notes.txt").write_text("not a mask")
        save("truth/.hidden/c.png")
        pairs, extra = pair_files(tmp_path / "truth", tmp_path / "prediction")
        assert [pair.name for pair in pairs] == ["b", "site 1/a"]
        assert pairs[1].prediction == tmp_path / "prediction" / "site 1" / "a.npy"
        assert extra == ["site 2/a"]

    def test_endings(self, save, tmp_path):
        save("truth/a_segmentation.png")
        save("truth/a_superpixels.png")
        save("prediction/a_pred.png")
        pairs, _ = pair_files(
            tmp_path / "truth",
            tmp_path / "prediction",
            truth_ending="_segmentation",
            prediction_ending="_pred",
        )
        assert [pair.name for pair in pairs] == ["a"]

    def test_missing_predictions_are_an_error_or_count_as_empty(self, save, tmp_path):
        save("truth/a.png")
        save("truth/b.png")
        save("prediction/a.png")
        with pytest.raises(DataError, match=r"1 of 2 truths .* have no prediction .*: b\. Leaving them out"):
            pair_files(tmp_path / "truth", tmp_path / "prediction")
        pairs, _ = pair_files(tmp_path / "truth", tmp_path / "prediction", missing="empty")
        truth, prediction, _ = read_pair(pairs[1], None)
        assert truth.any()
        assert not prediction.any()
        assert prediction.shape == truth.shape

    def test_no_common_name_shows_both_kinds(self, save, tmp_path):
        save("truth/a_mask.png")
        save("prediction/a.png")
        with pytest.raises(
            DataError, match=r"truths are called a_mask, predictions a\. If they differ by an ending"
        ):
            pair_files(tmp_path / "truth", tmp_path / "prediction", missing="empty")

    def test_long_lists_are_cut(self, save, tmp_path):
        for k in range(15):
            save(f"truth/{k:02d}.png")
        save("prediction/00.png")
        with pytest.raises(DataError, match=r"14 of 15 .* 01, 02, .* 10 and 4 more"):
            pair_files(tmp_path / "truth", tmp_path / "prediction")

    def test_two_files_of_one_name_are_refused(self, save, tmp_path):
        save("truth/a.png")
        save("truth/a.bmp")
        with pytest.raises(DataError, match=r"a: a\.bmp and a\.png"):
            pair_files(tmp_path / "truth", tmp_path / "truth")

    def test_folders_that_are_missing_or_empty_are_named(self, tmp_path):
        with pytest.raises(DataError, match="folder of truth masks does not exist"):
            pair_files(tmp_path / "none", tmp_path)
        with pytest.raises(DataError, match=r"no masks in .*; known formats are \.png"):
            pair_files(tmp_path, tmp_path)
        with pytest.raises(DataError, match="no masks ending in '_x'"):
            pair_files(tmp_path, tmp_path, truth_ending="_x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        np.lib.format.magic(1, 0)
        + b"\x50\x00"
        + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999, 99999), }".ljust(80),
    ],
)
def test_arrays_that_are_empty_cut_or_claim_too_much(tmp_path, content):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npy cannot be read as an array"):
        read_mask(path)


def test_an_array_that_is_really_too_large(tmp_path):
    path = tmp_path / "a.npy"
    made = np.lib.format.open_memmap(path, "w+", np.uint8, (90_000, 1_000))
    del made  # sparse on disk
    with pytest.raises(DataError, match="more than 89 million values"):
        read_mask(path)


def test_photographs_beside_masks_are_not_taken_for_truth(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "set" / kind / "a.png")
    with pytest.raises(DataError, match=r"Name the folder of masks itself: .*masks"):
        pair_files(tmp_path / "set", tmp_path / "set" / "masks")


def test_hints_name_the_options_of_the_command(tmp_path):
    for kind, name in (("truth", "a_gt"), ("found", "a")):
        (tmp_path / kind).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / kind / f"{name}.png")
    with pytest.raises(DataError, match="--truth-ending, --prediction-ending"):
        pair_files(tmp_path / "truth", tmp_path / "found")
