"""The index: content digests, paths that move with the folder, no image in two parts."""

import dataclasses
import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.progress import Recorder

from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data import index as module
from mcpmix.data.dataset import build_index
from mcpmix.data.index import DatasetIndex, Record, load_arrays, new_cache, seen_from, training_digest
from mcpmix.data.leakage import look_of
from mcpmix.data.sample import pixel_digest, read_image, read_mask, resize_image, resize_mask
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
    with pytest.raises(
        ValueError, match="unknown part 'val': expected one of train, validation, test, known"
    ):
        build_index(samples, SPLIT).part("val")


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


def test_files_elsewhere_are_named_as_seen_from_the_index(tmp_path, samples, monkeypatch):
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
    assert row["image"] == "../../images/a.png"
    assert str(tmp_path) not in (place / "index.json").read_text()
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


def test_what_training_depends_on_follows_groups_and_not_new_images_of_known_ones(samples, make_pair):
    index = build_index(samples, SPLIT)
    more = [*samples, make_pair("e", group="pa", look=7)]
    tested = build_index(more, dataclasses.replace(SPLIT, known=("e",)))
    assert [record.id for record in tested.part("known")] == ["e"]
    assert (tested.digest, tested.training_digest) == (index.digest, index.training_digest)
    trained = build_index(more, dataclasses.replace(SPLIT, train=("d", "a", "e")))
    assert trained.training_digest != index.training_digest
    regrouped = dataclasses.replace(index.records[0], group="x")
    assert DatasetIndex((regrouped, *index.records[1:])).training_digest != index.training_digest


def test_a_data_set_of_an_earlier_version_stands_for_itself(tmp_path):
    assert training_digest(Artifact(tmp_path, {"digest": "a", "counts": {"train": 3}})) == "a"
    assert training_digest(Artifact(tmp_path, {"digest": "a", "counts": {"training": "b"}})) == "b"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"samples": [{"id": "a"}]}', '{"samples": ["a"]}', '{"samples": 1}']
)
def test_damaged_file(tmp_path, content):
    path = tmp_path / "index.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        DatasetIndex.read(tmp_path)
    assert str(caught.value).startswith(f"{path} is not an index of a data set (")
    assert str(caught.value).endswith("). Delete its folder to rebuild it.")


def test_missing_file(tmp_path):
    path = tmp_path / "index.json"
    with pytest.raises(DataError) as caught:
        DatasetIndex.read(tmp_path)
    assert str(caught.value) == f"{path} does not exist. Run the dataset stage first."


def test_records_are_frozen(samples):
    record: Record = build_index(samples, SPLIT).records[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.split = "test"  # type: ignore[misc]


def test_places_as_seen_from_a_folder(tmp_path):
    assert seen_from(tmp_path / "runs" / "x", tmp_path / "data") == "../../data"
    assert seen_from(tmp_path, tmp_path / "a" / "b.png") == "a/b.png"
    assert seen_from(Path("runs"), Path("data")) == "../data"


# --- decoded pixels: made once, shared, checked, rewritten if they are damaged ---------------------------


@pytest.fixture
def records(make_pair):
    samples = [make_pair("a", side=8), make_pair("b", side=8), make_pair("c", side=14)]
    return build_index(samples, Split(("a",), ("b",), ("c",))).records


@pytest.fixture
def never(monkeypatch):
    """Call it, and nothing may be decoded any more."""

    def refuse(*arguments):
        raise AssertionError("decoded although it is cached")

    return lambda: monkeypatch.setattr(module, "read_pair", refuse)


def test_order_shapes_and_content(records):
    arrays = load_arrays(records[::-1], 5)
    assert arrays.ids == ("c", "b", "a")
    assert len(arrays) == 3
    assert (arrays.images.shape, arrays.images.dtype) == ((3, 5, 5, 3), np.uint8)
    assert (arrays.masks.shape, arrays.masks.dtype) == ((3, 5, 5), np.uint8)
    for row, record in enumerate(records[::-1]):
        np.testing.assert_array_equal(arrays.images[row], resize_image(read_image(record.image), 5))
        np.testing.assert_array_equal(arrays.masks[row], resize_mask(read_mask(record.mask), 5))


def test_no_records_give_empty_arrays():
    assert load_arrays([], 4).images.shape == (0, 4, 4, 3)


def test_some_rows_of_arrays(records):
    arrays = load_arrays(records, 5)
    some = arrays.take(["c", "a"])
    assert some.ids == ("c", "a")
    np.testing.assert_array_equal(some.images, arrays.images[[2, 0]])
    np.testing.assert_array_equal(some.masks, arrays.masks[[2, 0]])


def test_lost_and_changed_files_are_all_named(records):
    records[0].image.unlink()
    Image.fromarray(255 - np.asarray(Image.open(records[1].mask))).save(records[1].mask)
    Image.fromarray(255 - np.asarray(Image.open(records[2].image))).save(records[2].image)
    with pytest.raises(DataError) as caught:
        load_arrays(records, 5)
    assert str(caught.value).split("\n") == [
        "The data set is no longer what its index says. Restore the files, or delete the run's folder "
        "dataset to rebuild the index:",
        f"  - {records[0].image} does not exist. Check the path, or restore the file.",
        f"  - {records[1].mask} has changed since it was indexed.",
        f"  - {records[2].image} has changed since it was indexed.",
    ]


# --- on disk -----------------------------------------------------------------------------------------------


def test_made_once_then_mapped(records, tmp_path, never):
    plain = load_arrays(records, 6)
    first = load_arrays(records, 6, tmp_path / "cache")
    never()
    again = load_arrays(records, 6, tmp_path / "cache")
    assert first.place == again.place
    for arrays in (first, again):
        assert arrays.ids == plain.ids
        np.testing.assert_array_equal(arrays.images, plain.images)
        np.testing.assert_array_equal(arrays.masks, plain.masks)
    assert isinstance(again.images.base, np.memmap)


def test_other_images_order_or_size_are_another_cache(records, tmp_path):
    asked = ((records, 6), (records[:2], 6), (records[::-1], 6), (records, 5))
    assert len({load_arrays(*which, tmp_path / "cache").place for which in asked}) == 4


def test_nobody_writes_to_the_file_by_way_of_an_array(records, tmp_path):
    arrays = load_arrays(records, 6, tmp_path / "cache")
    with pytest.raises(ValueError, match="read-only"):
        arrays.images[:] = 0
    plain = load_arrays(records, 6)
    np.testing.assert_array_equal(load_arrays(records, 6, tmp_path / "cache").images, plain.images)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


DAMAGE = {
    "a wrong bit": (lambda place: flip_a_bit(place / "images.npy"), "1 of 3 images are not what was written"),
    "a wrong mask": (lambda place: flip_a_bit(place / "masks.npy"), "1 of 3 images are not what was written"),
    "cut short": (lambda place: cut(place / "images.npy"), "images.npy|mmap length"),
    "lost": (lambda place: (place / "masks.npy").unlink(), "No such file"),
    "no header": (lambda place: (place / "masks.npy").write_bytes(b""), "magic string"),
    "bad checksums": (lambda place: (place / "checksums.json").write_text("{"), "Expecting property name"),
    "few checksums": (lambda place: (place / "checksums.json").write_text("[1]"), "1 checksums"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_told_and_repaired(records, tmp_path, kind, never):
    damage, reason = DAMAGE[kind]
    place = load_arrays(records, 6, tmp_path).place
    damage(place)
    said = Recorder()
    arrays = load_arrays(records, 6, tmp_path, said)
    np.testing.assert_array_equal(arrays.images, load_arrays(records, 6).images)
    assert len(said.lines) == 1
    assert said.lines[0].startswith(f"{place} is damaged (")
    assert any(part in said.lines[0] for part in reason.split("|"))
    never()
    load_arrays(records, 6, tmp_path)


def test_what_a_kill_left_is_written_anew(records, tmp_path):
    place = load_arrays(records, 6, tmp_path).place
    place.rename(place.with_name(place.name + ".partial"))
    cut(tmp_path / f"{place.name}.partial" / "images.npy")
    arrays = load_arrays(records, 6, tmp_path)
    np.testing.assert_array_equal(arrays.images, load_arrays(records, 6).images)
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_disk_has_a_message(records, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "resize_image", full)
    with pytest.raises(StorageError, match="is full"):
        load_arrays(records, 6, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_an_error_between_two_rows_leaves_nothing(records, tmp_path):
    writing = new_cache(tmp_path / "cache", "new", 3, 6)
    writing.__enter__()(records[0], read_image(records[0].image), read_mask(records[0].mask))
    assert writing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert not list((tmp_path / "cache").iterdir())


ONE_OF_MANY = """
import sys, time, pickle
from pathlib import Path
from mcpmix.data import index as module

def slow(*arguments, read=module.read_pair):
    with open(sys.argv[1] + "/decoded", "a") as file:
        file.write("x")
    time.sleep(0.1)
    return read(*arguments)

module.read_pair = slow
records = pickle.loads(Path(sys.argv[1], "records").read_bytes())
print(module.load_arrays(records, 5, Path(sys.argv[1])).images.sum())
"""


def test_processes_that_ask_at_once_decode_once(records, tmp_path):
    (tmp_path / "records").write_bytes(pickle.dumps(records))
    processes = [
        subprocess.Popen([sys.executable, "-c", ONE_OF_MANY, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    total = str(load_arrays(records, 5).images.sum())
    assert [process.communicate()[0].strip() for process in processes] == [total] * 3
    assert (tmp_path / "decoded").read_text() == "xxx"  # one of the three, each of its images once


def test_arrays_travel_to_workers_by_name_and_not_by_content(records, tmp_path):
    mapped = load_arrays(records, 200, tmp_path / "cache")
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert received.ids == mapped.ids
    np.testing.assert_array_equal(received.images, mapped.images)
    plain = pickle.loads(pickle.dumps(load_arrays(records, 6)))
    np.testing.assert_array_equal(plain.masks, load_arrays(records, 6).masks)


def test_bad_files_leave_no_cache(records, tmp_path):
    records[1].image.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(DataError, match=r"b\.png cannot be read"):
            load_arrays(records, 6, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_labels_are_written_only_where_there_are_several_classes(records, tmp_path):
    several = DatasetIndex(tuple(dataclasses.replace(record, labels=3) for record in records))
    for index, written in ((DatasetIndex(tuple(records)), False), (several, True)):
        index.write(tmp_path)
        assert ("labels" in (tmp_path / "index.json").read_text()) is written
        assert DatasetIndex.read(tmp_path) == index
