"""The index: content digests, paths that move with the folder, no image in two parts."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.dataset import build_index
from mcpmix.data.index import DatasetIndex, Record, training_digest
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
