"""The index: content digests, paths that move with the folder, no image in two parts."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.index import DatasetIndex, Record, build_index
from mcpmix.data.likeness import look_of
from mcpmix.data.sample import pixel_digest
from mcpmix.data.splits import Split


@pytest.fixture
def samples(make_pair):
    return [make_pair(stem, group=f"p{stem}") for stem in "dcba"]


SPLIT = Split(("d", "a"), ("b",), ("c",))


def test_records_say_what_the_files_show(samples):
    index = build_index(samples, SPLIT)
    assert [(record.split, record.id) for record in index.records] == [
        ("train", "a"),
        ("train", "d"),
        ("validation", "b"),
        ("test", "c"),
    ]
    record = index.part("test")[0]
    image = np.asarray(Image.open(record.image))
    mask = np.asarray(Image.open(record.mask)) // 255
    assert dataclasses.asdict(record) == {
        **dataclasses.asdict(samples[1]),
        "split": "test",
        "image_sha256": pixel_digest(image),
        "mask_sha256": pixel_digest(mask),
        "width": 10,
        "height": 8,
        "look": look_of(image),
    }
    assert [record.id for record in index.part("train")] == ["a", "d"]


def test_unknown_part_is_a_programming_mistake(samples):
    with pytest.raises(ValueError, match="unknown part 'val': expected one of train, validation, test"):
        build_index(samples, SPLIT).part("val")


def test_samples_outside_the_split_are_left_out(samples):
    assert len(build_index(samples, Split(("a",), ("b",), ("c",))).records) == 3


def test_file_has_the_agreed_form_and_moves_with_its_folder(tmp_path, samples):
    index = build_index(samples, SPLIT)
    index.write(tmp_path)
    content = json.loads((tmp_path / "index.json").read_text())
    assert set(content) == {"samples"}
    row = content["samples"][0]
    assert {key: row[key] for key in ("id", "image", "mask", "group", "split", "width", "height")} == {
        "id": "a",
        "image": "images/a.png",
        "mask": "masks/a.png",
        "group": "pa",
        "split": "train",
        "width": 10,
        "height": 8,
    }
    assert DatasetIndex.read(tmp_path) == index

    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("images", "masks", "index.json"):
        shutil.move(tmp_path / name, moved / name)
    again = DatasetIndex.read(moved)
    assert again.records[0].image == moved / "images" / "a.png"
    assert again.records[0].image.exists()
    assert again.digest == index.digest


def test_files_elsewhere_are_named_absolutely(tmp_path, samples, monkeypatch):
    place = tmp_path / "run" / "dataset"
    place.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    relative = [
        dataclasses.replace(
            sample, image=sample.image.relative_to(tmp_path), mask=sample.mask.relative_to(tmp_path)
        )
        for sample in samples
    ]
    build_index(relative, SPLIT).write(place)
    row = json.loads((place / "index.json").read_text())["samples"][0]
    assert row["image"] == (tmp_path / "images" / "a.png").as_posix()
    assert DatasetIndex.read(place).records[0].mask == tmp_path / "masks" / "a.png"


def test_digest_follows_content_and_split_only(samples):
    index = build_index(samples, SPLIT)
    assert build_index(samples[::-1], SPLIT).digest == index.digest
    assert build_index(samples, Split(("a",), ("b", "d"), ("c",))).digest != index.digest
    for field in ("image_sha256", "mask_sha256", "id"):
        changed = dataclasses.replace(index.records[0], **{field: "x"})
        assert DatasetIndex((changed, *index.records[1:])).digest != index.digest
    renamed = samples[0].image.with_suffix(".bmp")
    Image.open(samples[0].image).save(renamed)
    repacked = [dataclasses.replace(samples[0], image=renamed), *samples[1:]]
    assert build_index(repacked, SPLIT).digest == index.digest


def test_equal_pixels_across_parts_are_refused(make_pair):
    samples = [
        make_pair(stem, look=look) for stem, look in (("a", 1), ("b", 1), ("c", 2), ("d", 1), ("e", 3))
    ]
    Image.open(samples[3].image).save(samples[3].image.with_suffix(".bmp"))
    samples[3] = dataclasses.replace(samples[3], image=samples[3].image.with_suffix(".bmp"))
    with pytest.raises(DataError) as caught:
        build_index(samples, Split(("a", "b"), ("c",), ("d", "e")))
    assert str(caught.value).split("\n") == [
        "Images with identical pixels are in different parts of the split, so test figures would be too "
        "good. Remove the copies, or put them into one part (one group):",
        f"  - train a ({samples[0].image}) = train b ({samples[1].image}) = test d ({samples[3].image})",
    ]
    assert (
        len(build_index(samples, Split(("a", "b", "d"), ("c",), ("e",))).records) == 5
    )  # within a part: allowed


def test_all_unreadable_files_and_unknown_ids_at_once(samples):
    samples[0].image.write_bytes(b"")
    Image.fromarray(np.zeros((4, 6), dtype=np.uint8)).save(samples[3].mask)
    with pytest.raises(DataError) as caught:
        build_index(samples, Split(("a", "d", "typo"), ("b",), ("c",)))
    headline, unknown, mismatch, unreadable = str(caught.value).split("\n")
    assert headline == "The data set cannot be indexed:"
    assert unknown == "  - typo (train) is not in the data set. Correct the split."
    assert mismatch.startswith(
        f"  - {samples[3].mask} is 6 x 4 pixels, but its image {samples[3].image} is 10 x 8."
    )
    assert unreadable.startswith(f"  - {samples[0].image} cannot be read: the file is empty.")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"samples": [{"id": "a"}]}', '{"samples": ["a"]}', '{"samples": 1}']
)
def test_damaged_file(tmp_path, content):
    path = tmp_path / "index.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        DatasetIndex.read(tmp_path)
    assert str(caught.value).startswith(f"{path} is not an index of a data set (")
    assert str(caught.value).endswith("). Delete its folder to make it again.")


def test_missing_file(tmp_path):
    path = tmp_path / "index.json"
    with pytest.raises(DataError) as caught:
        DatasetIndex.read(tmp_path)
    assert str(caught.value) == f"{path} does not exist. Run the dataset stage first."


def test_records_are_frozen(samples):
    record: Record = build_index(samples, SPLIT).records[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.split = "test"  # type: ignore[misc]
