"""Images without masks: where they are found, which are refused by name, and what is kept of them."""

import json
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image
from tests.helpers.progress import Recorder

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import DataError
from mcpmix.data import dataset, unlabelled
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import pixel_digest, resize_image
from mcpmix.data.unlabelled import TRAINING_PART, Unlabelled

PARTS = {"train": ["a", "b", "c", "d"], "validation": ["e"], "test": ["f"]}


def photo(seed, width=60, height=48):
    """A smooth picture; another seed shows something else."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture
def own(tmp_path):
    """A data set of six photos, and a folder `more` that is still to be filled."""
    for number, name in enumerate("abcdef"):
        save(tmp_path / "images" / f"{name}.png", photo(number))
        mask = np.zeros((48, 60), np.uint8)
        mask[10:30, 10 + number : 30] = 255
        save(tmp_path / "masks" / f"{name}.png", mask)
    (tmp_path / "split.json").write_text(json.dumps(PARTS))
    (tmp_path / "more").mkdir()
    return tmp_path


def make(own, *overrides, places=("more",), progress=None):
    """The artefact of the stage, and the one of the data set."""
    data = {name: str(own / name) for name in ("images", "masks")}
    data |= {"source": "folder", "size": 32, "split": {"file": str(own / "split.json")}}
    data["unlabelled"] = [str(own / place) for place in places]
    config = resolve_config({"preset": "tiny", "output": str(own / "runs"), "data": data}, overrides)
    indexed = dataset.run(config, config.folder / "dataset")
    progress = progress or Recorder()
    return unlabelled.run(config, indexed, config.folder / "unlabelled", progress), indexed


def refused(own, **options):
    with pytest.raises(DataError) as caught:
        make(own, **options)
    return str(caught.value)


def test_folders_and_archives_of_any_sizes_are_read_in_order(own):
    save(own / "more" / "x.png", photo(10, 100, 40))
    save(own / "more" / "deep" / "y.jpg", photo(11), quality=95)
    (own / "more" / "notes.txt").write_text("no image")
    save(own / "z.png", photo(12, 32, 32))
    with zipfile.ZipFile(own / "frames.zip", "w") as archive:
        archive.write(own / "z.png", "z.png")
    made, _ = make(own, places=("more", "frames.zip"))
    found = Unlabelled.read(made)
    assert found.ids == ("unlabelled/0/deep/y.jpg", "unlabelled/0/x.png", "unlabelled/1/z.png")
    assert found.places == ("more", "more", "frames.zip")
    assert found.images.shape == (3, 32, 32, 3)
    assert np.array_equal(found.images[1], resize_image(photo(10, 100, 40), 32))
    assert np.array_equal(found.images[2], photo(12, 32, 32))
    assert found.seen[1].sha256 == pixel_digest(photo(10, 100, 40))
    assert made.manifest["counts"]["notes"] == []


def test_places_of_one_name_are_told_apart(own):
    for number, place in enumerate(("north/frames", "south/frames")):
        save(own / place / "x.png", photo(10 + number))
    made, _ = make(own, places=("north/frames", "south/frames"))
    assert Unlabelled.read(made).places == ("north/frames", "south/frames")


def test_places_without_images_are_named_together(own):
    text = refused(own, places=("more", "nowhere", "lost.zip"))
    for place, state in (("more", "holds no image"), ("nowhere", "not exist"), ("lost.zip", "not exist")):
        (line,) = [line for line in text.splitlines() if str(own / place) in line]
        assert state in line


def test_all_files_that_cannot_be_used_are_named_together(own):
    more = own / "more"
    save(more / "fine.png", photo(10))
    (more / "broken.png").write_bytes(b"\x89PNG and nothing more")
    save(more / "mask.jpg", np.asarray(Image.open(own / "masks" / "a.png")))
    save(more / "grey-mask.png", np.repeat(np.eye(40, dtype=np.uint8)[..., None] * 255, 3, axis=2))
    shutil.copy(own / "images" / "f.png", more / "renamed.png")
    save(more / "encoded.jpg", photo(4), quality=60)  # e
    save(more / "smaller.png", np.asarray(Image.fromarray(photo(4)).resize((45, 36))))
    text = refused(own)
    expected = {
        "broken.png": "",
        "mask.jpg": "mask",
        "grey-mask.png": "mask",
        "renamed.png": "is the test image f",
        "encoded.jpg": "near-duplicate of the validation image e",
        "smaller.png": "near-duplicate of the validation image e",
    }
    lines = [line for line in text.splitlines() if str(more) in line]
    assert len(lines) == len(expected)
    for name, fact in expected.items():
        (line,) = [line for line in lines if f"{more / name}" in line]
        assert fact in line
    assert not (own / "runs" / "run" / "unlabelled").exists()


def test_a_dark_or_colourful_photo_is_no_mask(own):
    dark = photo(10) // 12
    dark[:20] = 0
    save(own / "more" / "dark.png", dark)
    poster = np.zeros((48, 60, 3), np.uint8)
    poster[10:30] = (255, 250, 30)
    save(own / "more" / "poster.png", poster)
    made, _ = make(own)
    assert made.manifest["counts"]["images"] == 2


def test_copies_are_used_once_and_near_duplicates_counted(own):
    recorder = Recorder()
    for name in ("one.png", "two.png"):
        save(own / "more" / name, photo(10))
    save(own / "more" / "three.jpg", photo(10), quality=60)
    shutil.copy(own / "images" / "a.png", own / "more" / "labelled.png")
    made, _ = make(own, progress=recorder)
    assert Unlabelled.read(made).ids == ("unlabelled/0/one.png", "unlabelled/0/three.jpg")
    copies, near = recorder.lines
    assert "2 copies" in copies
    assert "unlabelled/0/two.png = unlabelled/0/one.png" in copies
    assert "unlabelled/0/labelled.png = a" in copies
    assert "1 are near-duplicates" in near
    assert made.manifest["counts"]["notes"] == [line.removeprefix("unlabelled: ") for line in recorder.lines]


def test_none_left_is_an_error_and_not_an_empty_stage(own):
    shutil.copy(own / "images" / "a.png", own / "more" / "a.png")
    text = refused(own)
    assert "left of 1 found" in text
    assert "unlabelled/0/a.png = a" in text


def test_training_images_beyond_the_labelled_ones_count_as_unlabelled(own):
    made, indexed = make(own, "data.labelled=1", places=())
    found, labelled = (
        Unlabelled.read(made),
        {record.id for record in DatasetIndex.read(indexed).part("train")},
    )
    assert len(labelled) == 1
    assert {*found.ids, *labelled} == set(PARTS["train"])
    assert len(found.ids) == 3
    assert set(found.places) == {TRAINING_PART}


def test_a_training_image_that_shows_a_held_out_one_is_left_out_with_a_note(own):
    rest = Unlabelled.read(make(own, "data.labelled=1", places=())[0]).ids
    save(own / "images" / f"{rest[0]}.png", photo(4, 80, 64))  # e
    made, _ = make(own, "data.labelled=1", places=())
    assert Unlabelled.read(made).ids == rest[1:]
    (note,) = made.manifest["counts"]["notes"]
    assert f"{rest[0]} is a near-duplicate of the validation image e" in note


def test_a_finished_stage_is_reused_until_a_file_is_added(own):
    save(own / "more" / "x.png", photo(10))
    first, again, added = Recorder(), Recorder(), Recorder()
    make(own, progress=first)
    made, _ = make(own, progress=again)
    assert (first.titles, again.titles) == (["unlabelled images"], [])
    save(own / "more" / "y.png", photo(11))
    grown, _ = make(own, progress=added)
    assert added.titles == ["unlabelled images"]
    assert grown.digest != made.digest
    assert Unlabelled.read(grown).ids == ("unlabelled/0/x.png", "unlabelled/0/y.png")
