"""Reading: every kind of file by the stated rule, every damage with a message that names the file."""

import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.sample import (
    examine_mask,
    has_alpha,
    named_images,
    pixel_digest,
    read_image,
    read_mask,
    read_pair,
    resize_image,
    resize_mask,
)

RGB = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[10, 20, 30], [0, 0, 0], [255, 255, 255]]], dtype=np.uint8
)
ORIENTATION = 0x0112


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **options)
    return path


def write_png(path: Path, depth: int, colour: int, width: int, rows: list[bytes]) -> Path:
    """A PNG written by hand, for layouts that Pillow does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    signature = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(signature + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("ending", ["png", "bmp", "tif"])
def test_lossless_colour_comes_back_as_written(tmp_path, ending):
    pixels = read_image(save(tmp_path / f"a.{ending}", RGB))
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, RGB)


def test_grey_is_repeated(tmp_path):
    grey = np.array([[0, 7], [200, 255]])
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", grey)), np.stack([grey] * 3, axis=-1))


def test_palette_gives_its_colours(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([9, 8, 7, 1, 2, 3])
    picture.putdata([1, 0])
    picture.save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), [[[1, 2, 3], [9, 8, 7]]])


def test_transparent_parts_lie_over_black(tmp_path):
    path = save(tmp_path / "a.png", [[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 51]]])
    # 51/255 = 0.2 of the colour over black
    np.testing.assert_array_equal(read_image(path), [[[200, 100, 50], [0, 0, 0], [40, 20, 10]]])


def test_a_fourth_channel_is_seen(tmp_path):
    assert has_alpha(save(tmp_path / "a.png", [[[200, 100, 50, 255]]]))
    assert not has_alpha(save(tmp_path / "b.png", [[[200, 100, 50]]]))


def test_transparent_palette_entry_lies_over_black_without_a_warning(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([9, 8, 7, 1, 2, 3])
    picture.putdata([1, 0])
    picture.save(tmp_path / "a.png", transparency=b"\x00\xff")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), [[[1, 2, 3], [0, 0, 0]]])


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_exif_orientation_is_applied_to_images_and_masks(tmp_path, ending):
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # stored lying on its left side: upright is a quarter turn clockwise
    path = save(tmp_path / f"a.{ending}", RGB, exif=exif)
    np.testing.assert_array_equal(read_image(path), np.rot90(RGB, -1))
    mask = np.array([[255, 0, 0], [0, 0, 0]])
    path = save(tmp_path / f"m.{ending}", mask, exif=exif)
    np.testing.assert_array_equal(read_mask(path), np.rot90(mask // 255, -1))


def test_deep_files_are_refused(tmp_path):
    grey = tmp_path / "grey.png"
    Image.fromarray(np.full((2, 2), 4000, dtype=np.uint16)).save(grey)
    # Pillow opens this one as plain RGB and would drop the lower bits without a word.
    colour = write_png(tmp_path / "colour.png", 16, 2, 1, [struct.pack(">HHH", 300, 4000, 60000)])
    floats = tmp_path / "float.tif"
    Image.fromarray(np.zeros((2, 2), dtype=np.float32)).save(floats)
    for path, layout in ((grey, "I;16"), (colour, "RGB;16B"), (floats, "F")):
        for read in (read_image, read_mask):
            with pytest.raises(DataError) as caught:
                read(path)
            assert str(caught.value) == (
                f"{path} has more than 8 bits per channel ({layout}). Expected 8: choose the range of levels "
                "to show and save it with 8 bits per channel."
            )


def test_bmp_with_16_bits_per_pixel_is_no_deep_file(tmp_path):
    header = struct.pack("<IiiHHIIiiII", 40, 1, 1, 1, 16, 0, 4, 0, 0, 0, 0)
    body = struct.pack("<HH", 0b0_11111_00000_00000, 0)  # pure red in 5 bits per channel, and padding
    path = tmp_path / "a.bmp"
    path.write_bytes(b"BM" + struct.pack("<IHHI", 58, 0, 0, 54) + header + body)
    np.testing.assert_array_equal(read_image(path), [[[255, 0, 0]]])


@pytest.mark.parametrize("read", [read_image, read_mask, examine_mask])
def test_missing_file(tmp_path, read):
    path = tmp_path / "gone.png"
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value) == f"{path} does not exist. Check the path, or restore the file."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not an image at all", "it is not a PNG, JPEG, TIFF or BMP file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "it is not a PNG, JPEG, TIFF or BMP file"),
    ],
)
def test_what_is_no_image_is_named_with_a_reason(tmp_path, content, reason):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_image(path)
    assert str(caught.value) == (
        f"{path} cannot be read: {reason}. Expected an intact PNG, JPEG, TIFF or BMP file: export it again, "
        "or remove the image together with its mask."
    )


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "bmp"])
@pytest.mark.filterwarnings("ignore:Truncated File Read:UserWarning")
def test_truncated_anywhere_is_an_error_or_the_whole_picture(tmp_path, ending):
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    whole = save(tmp_path / f"whole.{ending}", noise)
    content, expected = whole.read_bytes(), read_image(whole)
    cut = tmp_path / f"cut.{ending}"
    messages = []
    for length in range(0, len(content), 16):
        cut.write_bytes(content[:length])
        try:
            pixels = read_image(cut)
        except DataError as error:
            messages.append(str(error))
        else:
            np.testing.assert_array_equal(pixels, expected)  # only bytes after the pixels are missing
    assert all(message.startswith(f"{cut} cannot be read: ") for message in messages)
    assert len(messages) > 0.8 * len(content) / 16


def test_too_many_pixels_are_refused_before_decoding(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", np.zeros((50, 60)))
    for limit in (2000, 1000):  # Pillow warns above the limit and fails above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match=r"a\.png is larger than 0 million pixels\. Save it smaller"):
            read_image(path)


def test_bytes_in_memory_are_read_like_a_file(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(path)
    upload = Path("upload.png")  # no such file: only its name counts
    assert np.array_equal(read_image(upload, path.read_bytes()), read_image(path))
    for content, message in ((b"", "upload.png cannot be read: the file is empty"), (b"x", "not a PNG")):
        with pytest.raises(DataError, match=message):
            read_image(upload, content)
    with pytest.raises(DataError, match="larger than 0 million pixels"):
        read_image(upload, path.read_bytes(), most_pixels=15)


def test_mask_at_full_scale_splits_at_128(tmp_path):
    path = save(tmp_path / "a.png", [[0, 1, 127, 128, 255]])
    mask = read_mask(path)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, [[0, 0, 0, 1, 1]])
    assert examine_mask(path)[1] == 5


def test_mask_of_zeros_and_ones(tmp_path):
    np.testing.assert_array_equal(read_mask(save(tmp_path / "a.png", [[0, 1, 1]])), [[0, 1, 1]])
    np.testing.assert_array_equal(read_mask(save(tmp_path / "b.png", [[0, 0, 0]])), [[0, 0, 0]])


def test_bilevel_mask(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "a.png"), [[1, 0]])


def test_grey_mask_in_three_or_four_channels(tmp_path):
    grey = np.array([[0, 255], [200, 0]])
    three = save(tmp_path / "a.png", np.stack([grey] * 3, axis=-1))
    four = save(tmp_path / "b.png", np.stack([grey, grey, grey, np.full_like(grey, 255)], axis=-1))
    for path in (three, four):
        np.testing.assert_array_equal(read_mask(path), [[0, 1], [1, 0]])


def test_coloured_mask_is_refused(tmp_path):
    path = save(tmp_path / "a.png", [[[255, 255, 255], [255, 195, 255]]])
    with pytest.raises(DataError) as caught:
        read_mask(path)
    assert str(caught.value) == (
        f"{path} is coloured: its channels differ by up to 60 levels. Expected a mask in grey or black "
        "and white: save the lesion as white on black."
    )


def test_transparent_mask_is_refused(tmp_path):
    path = save(tmp_path / "a.png", [[[255, 255, 255, 255], [255, 255, 255, 0]]])
    with pytest.raises(DataError) as caught:
        read_mask(path)
    assert str(caught.value) == (
        f"{path} has transparent parts. Expected a mask without transparency: save it as grey or black and "
        "white, without an alpha channel."
    )


def palette_mask(path: Path, colours: list[int], numbers: list[int]) -> Path:
    picture = Image.new("P", (len(numbers), 1))
    picture.putpalette(colours)
    picture.putdata(numbers)
    picture.save(path)
    return path


def test_palette_masks(tmp_path):
    negative = palette_mask(tmp_path / "grey.png", [255, 255, 255, 0, 0, 0], [0, 1, 1])
    np.testing.assert_array_equal(read_mask(negative), [[1, 0, 0]])
    classes = palette_mask(tmp_path / "classes.png", [0, 0, 0, 128, 0, 0, 0, 128, 0], [0, 1, 1])
    np.testing.assert_array_equal(read_mask(classes), [[0, 1, 1]])
    three = palette_mask(tmp_path / "three.png", [0, 0, 0, 128, 0, 0, 0, 128, 0], [0, 1, 2])
    with pytest.raises(DataError, match=r"three\.png is coloured: its channels differ by up to 128 levels"):
        read_mask(three)


def test_class_numbers_are_not_read_as_an_empty_mask(tmp_path):
    path = save(tmp_path / "a.png", [[0, 1, 2, 3]])
    with pytest.raises(DataError) as caught:
        read_mask(path)
    assert str(caught.value) == (
        f"{path}: the brightest level of this mask is 3. Expected 0 and 1, or 0 and 255 with the lesion at "
        "128 or more. If the levels are class numbers, name the classes in data.classes, or save one class "
        "as 255."
    )


def test_jpeg_mask_keeps_its_lesion_and_shows_its_levels(tmp_path):
    rows, columns = np.mgrid[:64, :64]
    lesion = (rows - 30) ** 2 + (columns - 34) ** 2 < 200
    blurred = save(tmp_path / "a.jpg", np.stack([lesion * 255] * 3, axis=-1), quality=60)
    assert (read_mask(blurred) != lesion).mean() < 0.01
    assert examine_mask(blurred)[1] > 20
    faint = save(tmp_path / "b.jpg", np.full((8, 8), 5))  # an empty mask with noise, as JPEG leaves it
    assert read_mask(faint).max() == 0
    noise = save(tmp_path / "c.jpg", np.eye(8) > 0, quality=100)
    assert set(np.unique(np.asarray(Image.open(noise)))) == {0, 1}
    assert read_mask(noise).max() == 0


def test_a_mask_of_several_pages_is_refused(tmp_path):
    page = Image.fromarray(np.zeros((4, 4), dtype=np.uint8))
    page.save(tmp_path / "a.tif", save_all=True, append_images=[page])
    with pytest.raises(DataError, match="has 2 pages"):
        read_mask(tmp_path / "a.tif")


def test_reading_in_threads_leaves_filters_of_warnings_alone(tmp_path):
    path = save(tmp_path / "a.png", RGB)
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(pixels, RGB) for pixels in pool.map(read_image, [path] * 200))
    assert warnings.filters == before


def test_resize_image_averages_and_keeps_equal_sizes(tmp_path):
    checks = np.indices((64, 64)).sum(axis=0) % 2 * 255
    small = resize_image(np.stack([checks] * 3, axis=-1).astype(np.uint8), 8)
    assert small.shape == (8, 8, 3)
    assert np.abs(small.astype(int) - 127).max() < 12  # without antialiasing it would be 0 or 255
    same = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_image(same, 16), same)
    assert resize_image(same[:, :10], 12).shape == (12, 12, 3)


def test_resize_mask_takes_the_pixel_under_each_centre():
    mask = np.random.default_rng(0).integers(0, 2, (12, 20), dtype=np.uint8)
    centres = lambda side: ((np.arange(5) + 0.5) * side / 5).astype(int)  # noqa: E731
    np.testing.assert_array_equal(resize_mask(mask, 5), mask[np.ix_(centres(12), centres(20))])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_resized_masks_stay_hard(height, width, size, seed):
    mask = np.random.default_rng(seed).integers(0, 2, (height, width), dtype=np.uint8)
    resized = resize_mask(mask, size)
    assert resized.shape == (size, size)
    assert set(np.unique(resized)) <= set(np.unique(mask))


def test_pixel_digest_is_about_pixels_not_packing(tmp_path):
    png, bmp = save(tmp_path / "a.png", RGB), save(tmp_path / "b.bmp", RGB)
    assert png.read_bytes() != bmp.read_bytes()
    assert pixel_digest(read_image(png)) == pixel_digest(read_image(bmp))
    assert pixel_digest(RGB) == pixel_digest(np.asfortranarray(RGB))
    changed = RGB.copy()
    changed[0, 0, 0] -= 1
    assert pixel_digest(changed) != pixel_digest(RGB)
    assert pixel_digest(RGB.reshape(3, 2, 3)) != pixel_digest(RGB)


def test_a_pair_is_read_with_every_problem(tmp_path):
    wide, tall = np.zeros((3, 5, 3), dtype=np.uint8), np.zeros((5, 3), dtype=np.uint8)
    image, mask, fitting = (
        save(tmp_path / name, pixels)
        for name, pixels in (("i.png", wide), ("m.png", tall), ("f.png", tall.T))
    )
    assert read_pair(image, fitting)[1] == []
    pair, problems = read_pair(image, mask)
    assert [part.shape for part in pair[:2]] == [(3, 5, 3), (5, 3)]
    assert problems == [
        f"{mask} is 3 x 5 pixels, but its image {image} is 5 x 3. Expected equal sizes: export the mask at "
        "the size of its image."
    ]
    image.write_bytes(b"")
    mask.write_bytes(b"")
    pair, problems = read_pair(image, mask)
    assert pair is None
    assert [problem.split(" ")[0] for problem in problems] == [str(image), str(mask)]


def test_resizing_goes_along_rows_first_whatever_pillow_prefers():
    """Worked without Pillow: weights of a triangle in multiples of 2 ** -22, rounded after each pass."""
    one = 2.0**22

    def along_rows(levels, size):
        places, ratio = np.arange(levels.shape[1]), levels.shape[1] / size
        centres = (np.arange(size) + 0.5) * ratio
        triangle = np.clip(1 - np.abs(places + 0.5 - centres[:, None]) / max(ratio, 1), 0, None)
        weights = np.floor(triangle / triangle.sum(axis=1, keepdims=True) * one + 0.5)
        return np.floor((np.einsum("hwc,sw->hsc", levels, weights) + one / 2) / one)

    tall = np.random.default_rng(0).integers(0, 256, (61, 20, 3)).astype(np.float64)
    expected = along_rows(along_rows(tall, 16).transpose(1, 0, 2), 16).transpose(1, 0, 2)
    columns_first = along_rows(along_rows(tall.transpose(1, 0, 2), 16).transpose(1, 0, 2), 16)
    assert not np.array_equal(expected, columns_first)  # the order shows
    np.testing.assert_array_equal(resize_image(tall.astype(np.uint8), 16), expected)


def test_names_are_paths_below_the_folder_without_endings(tmp_path):
    for name in ("b.PNG", "sub/a.tif", ".hidden.png", ".cache/c.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert named_images(tmp_path) == {"b": tmp_path / "b.PNG", "sub/a": tmp_path / "sub" / "a.tif"}
    assert named_images(tmp_path / "b.PNG") == {"b": tmp_path / "b.PNG"}


def test_empty_folders_and_equal_names(tmp_path):
    with pytest.raises(DataError, match=r"holds no images\. Expected files ending in \.bmp, "):
        named_images(tmp_path)
    with pytest.raises(DataError, match="missing does not exist"):
        named_images(tmp_path / "missing")
    (tmp_path / "a.png").touch()
    (tmp_path / "a.jpg").touch()
    with pytest.raises(DataError, match=r"same name; rename one of:\n  - a\.jpg and a\.png"):
        named_images(tmp_path)


def palette_png(path: Path, labels: np.ndarray) -> Path:
    image = Image.fromarray(np.asarray(labels, np.uint8), "L").convert("P")
    image.putpalette([200, 10, 10, 0, 250, 0, 9, 9, 9] + [0] * 759)  # colours that mean nothing
    image.putdata(np.asarray(labels).ravel().tolist())
    image.save(path)
    return path


LABELS = [[0, 1, 2], [2, 2, 0]]


def test_labels_of_several_classes_are_grey_levels_or_indices_of_a_palette(tmp_path):
    for path in (save(tmp_path / "grey.png", LABELS), palette_png(tmp_path / "palette.png", LABELS)):
        labels, levels = examine_mask(path, 3)
        assert labels.tolist() == LABELS
        assert (labels.dtype, levels) == (np.uint8, 3)


def test_a_mask_of_one_class_alone_keeps_its_number(tmp_path):
    assert read_mask(save(tmp_path / "two.png", [[0, 2]]), 3).tolist() == [[0, 2]]
    assert read_mask(save(tmp_path / "none.png", [[0, 0]]), 3).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("values", "told"),
    [([[0, 255]], "0 to 2"), ([[0, 255]], "it holds 0, 255"), ([[0, 1, 2, 3]], "it holds 0, 1, 2, 3")],
)
def test_labels_beyond_the_classes_are_refused_with_what_was_found(tmp_path, values, told):
    path = save(tmp_path / "labels.png", values)
    with pytest.raises(DataError) as caught:
        read_mask(path, 3)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "data.classes" in str(caught.value)


def test_labels_in_a_jpeg_are_refused(tmp_path):
    with pytest.raises(DataError, match="JPEG, which blurs labels"):
        read_mask(save(tmp_path / "labels.jpg", np.ones((8, 8))), 3)


def test_many_odd_values_are_shortened(tmp_path):
    path = save(tmp_path / "photo.png", np.arange(100).reshape(10, 10))
    with pytest.raises(DataError, match=r"it holds 0, 1, 2, 3, 4, 5 \.\.\."):
        read_mask(path, 3)
