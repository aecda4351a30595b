"""A repaired copy: each kind of dirt is gone, each change is listed, the source stays as it was."""

import csv
import hashlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from mcpmix.core.errors import StorageError
from mcpmix.data.audit import Audit, Severity, inspect_all
from mcpmix.data.convert import Change, has_metadata, repair
from mcpmix.data.dataset import load_collection
from mcpmix.data.layouts import READERS, Collection
from mcpmix.data.sample import Sample, read_image, read_mask


def pixels(seed, height=32, width=40):
    rng = np.random.default_rng(seed)
    return np.kron(
        rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8)
    )


def lesion(height=32, width=40, level=255):
    mask = np.zeros((height, width), np.uint8)
    mask[8:16, 8:24] = level
    return mask


@pytest.fixture
def dirty(tmp_path):
    """A sample for each kind of dirt, in three groups, with a split."""
    images, masks = tmp_path / "source" / "images", tmp_path / "source" / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    samples = []

    def add(name, image, mask=None, ending="png", mask_ending="png", **saving):
        paths = images / f"{name}.{ending}", masks / f"{name}.{mask_ending}"
        image.save(paths[0], **saving)
        (Image.fromarray(lesion()) if mask is None else mask).save(paths[1])
        samples.append(Sample(name, *paths, f"g{len(samples) % 3}", "x"))

    exif = Image.Exif()
    exif[0x0112] = 6
    named = Image.Exif()
    named[0x013B] = "Dr Who"
    text = PngImagePlugin.PngInfo()
    text.add_text("Patient", "Jane")
    add("alpha", Image.fromarray(np.dstack([pixels(1), np.full((32, 40), 120, np.uint8)])))
    add("broken", Image.fromarray(pixels(2)))
    add("clean", Image.fromarray(pixels(3)))
    add("copy", Image.fromarray(pixels(3)), Image.fromarray(lesion()[::-1].copy()))
    add("exif", Image.fromarray(pixels(4)), ending="jpg", exif=named, comment=b"at home")
    add("greys", Image.fromarray(pixels(5)), Image.fromarray(np.maximum(lesion(), 60)))
    add("jpegmask", Image.fromarray(pixels(6)), Image.fromarray(np.roll(lesion(), 3)), mask_ending="jpg")
    add("liar", Image.fromarray(pixels(7)), format="JPEG")
    add("ones", Image.fromarray(pixels(8)), Image.fromarray(lesion(level=1)))
    add("palette", Image.fromarray(pixels(9)).convert("P"))
    add("text", Image.fromarray(pixels(10)), pnginfo=text)
    add("turned", Image.fromarray(pixels(11)), Image.fromarray(lesion(40, 32)), ending="jpg", exif=exif)
    (images / "broken.png").write_bytes(b"no image")
    parts = {sample.id: "test" if sample.group == "g2" else "train" for sample in samples}
    return Collection(tuple(samples), {"official": parts}, grouped="patient")


def state(folder):
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def changes_of(changes, name):
    return [f"{change.file}: {change.change}" for change in changes if change.id == name]


def test_every_kind_of_dirt(dirty, tmp_path):
    before = state(tmp_path / "source")
    changes = repair(inspect_all(dirty.samples), dirty, tmp_path / "repaired")
    assert state(tmp_path / "source") == before
    expected = {
        "alpha": ["image: transparency is composited over black"],
        "clean": [],
        "copy": [],
        "exif": ["image: metadata is removed"],
        "greys": ["mask: 2 levels become 0 and 255"],
        "jpegmask": ["mask: ", "mask: stored as PNG, was JPEG"],
        "liar": ["image: the ending is .jpg, as the file is JPEG"],
        "ones": ["mask: 2 levels become 0 and 255"],
        "palette": ["image: the palette is replaced by its colours"],
        "text": ["image: metadata is removed"],
        "turned": ["image: the EXIF orientation is applied", "image: metadata is removed",
                   "image: stored as PNG, was JPEG"],
    }  # fmt: skip
    for name, texts in expected.items():
        found = changes_of(changes, name)
        assert len(found) == len(texts), (name, found)
        assert all(text.startswith(start) for text, start in zip(found, texts, strict=True)), (name, found)
    assert changes_of(changes, "broken")[0].startswith("sample: left out: ")
    with (tmp_path / "repaired" / "changes.csv").open(encoding="utf-8", newline="") as file:
        assert [row["change"] for row in csv.DictReader(file)] == [change.change for change in changes]
    assert str(Change("a", "mask", "x")) == "a: mask: x"


def test_the_copy_is_clean_and_shows_the_same(dirty, tmp_path):
    repair(inspect_all(dirty.samples), dirty, tmp_path / "repaired")
    read = READERS["folder"](tmp_path / "repaired")
    source = {sample.id: sample for sample in dirty.samples}
    assert {sample.id for sample in read.samples} == set(source) - {"broken"}
    for sample in read.samples:
        assert sample.group == source[sample.id].group
        assert read.splits["official"][sample.id] == dirty.splits["official"][sample.id]
        np.testing.assert_array_equal(read_image(sample.image), read_image(source[sample.id].image))
        np.testing.assert_array_equal(read_mask(sample.mask), read_mask(source[sample.id].mask))
        with Image.open(sample.image) as image:
            assert not has_metadata(image)
        with Image.open(sample.mask) as mask:
            assert mask.mode == "L"
            assert {level for _, level in mask.getcolors()} == {0, 255}
    kinds = {finding.title: finding.severity for finding in Audit(inspect_all(read.samples), {}).findings}
    # The copy, which was not to be dropped: only a person can say which of its two masks is right.
    assert kinds.pop("images with identical pixels have different masks") is Severity.ERROR
    assert set(kinds.values()) == {Severity.WARNING}
    assert "identical pixels" in next(iter(kinds))
    again = repair(inspect_all(read.samples), read, tmp_path / "again")
    assert again == ()


def test_what_needs_nothing_is_copied_byte_for_byte_and_jpegs_are_not_encoded_again(dirty, tmp_path):
    repair(inspect_all(dirty.samples), dirty, tmp_path / "repaired")
    source = tmp_path / "source"
    for place in ("images/clean.png", "masks/clean.png", "masks/exif.png"):
        assert (tmp_path / "repaired" / place).read_bytes() == (source / place).read_bytes()
    stripped = (tmp_path / "repaired" / "images" / "exif.jpg").read_bytes()
    assert b"Dr Who" not in stripped
    assert b"at home" not in stripped
    whole = (source / "images" / "exif.jpg").read_bytes()
    assert stripped[-200:] == whole[-200:]


def test_copies_are_dropped_on_request(dirty, tmp_path):
    changes = repair(inspect_all(dirty.samples), dirty, tmp_path / "repaired", drop_copies=True)
    assert changes_of(changes, "copy") == ["sample: left out: it has the pixels of clean, but another mask"]
    assert not (tmp_path / "repaired" / "images" / "copy.png").exists()
    assert "copy" not in READERS["folder"](tmp_path / "repaired").splits["official"]


def test_only_into_a_new_folder_outside_the_source(dirty, tmp_path):
    facts = inspect_all(dirty.samples)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(StorageError, match="is not empty"):
        repair(facts, dirty, tmp_path / "full")
    for place in (tmp_path / "source" / "images" / "new", tmp_path / "source" / "masks"):
        with pytest.raises(StorageError, match=r"lies in the folder|is not an empty folder"):
            repair(facts, dirty, place)
    assert not (tmp_path / "source" / "images" / "new").exists()


def test_nothing_that_can_be_used(dirty, tmp_path):
    broken = [facts for facts in inspect_all(dirty.samples) if facts.errors]
    with pytest.raises(StorageError, match="no sample can be used"):
        repair(broken, dirty, tmp_path / "repaired")
    assert not any((tmp_path / "repaired").iterdir())
    assert not (tmp_path / "repaired.partial").exists()


def test_labels_of_several_classes_survive_a_repair(tmp_path):
    labels = np.array([[0, 1, 2, 0]] * 4, np.uint8)
    for kind in ("images", "masks"):
        (tmp_path / "own" / kind).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, mode in (("grey", "L"), ("palette", "P")):
        pixels = rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"own/images/{name}.png")
        mask = Image.fromarray(labels, mode)
        if mode == "P":
            mask.putpalette([0, 0, 0, 200, 20, 20, 20, 200, 20])
        mask.save(tmp_path / f"own/masks/{name}.png")
    found = load_collection("folder", root=tmp_path / "own", classes=("adenoma", "cancer"))
    repair(inspect_all(found.samples), found, tmp_path / "new")
    for name in ("grey", "palette"):
        stored = np.array(Image.open(tmp_path / f"new/masks/{name}.png"))
        np.testing.assert_array_equal(stored, labels)
        assert np.array_equal(read_mask(tmp_path / f"new/masks/{name}.png", 3), labels)
