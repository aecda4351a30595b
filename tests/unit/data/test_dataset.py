"""Stage 0: sources by name, splits as configured, one decoding of each file."""

import dataclasses
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcpmix.config_data import SplitConfig
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError, DataError
from mcpmix.data import dataset
from mcpmix.data.dataset import (
    build_index,
    listing,
    load_collection,
    make_split,
)
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.data.layouts import Collection
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.data.splits import Split, group_split
from mcpmix.run import run

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def frames(tmp_path):
    """Frames 1, 26, 51 ... of CVC-ClinicDB's first sequences, and two more of PraNet's test frames."""
    rng = np.random.default_rng(0)
    for frame in (1, 14, 26, 31, 51, 52, 68):
        for kind in ("images", "masks"):
            path = tmp_path / "CVC" / kind / f"{frame}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (8, 8, 3)) if kind == "images" else rng.integers(0, 2, (8, 8)) * 255
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "CVC"


def settings(frames, *overrides):
    data = {"source": "cvc-clinicdb", "root": str(frames)}
    return resolve_config({"preset": "tiny", "output": str(frames.parent / "runs"), "data": data}, overrides)


def test_the_first_stage_takes_a_name_of_the_catalogue(frames):
    config = settings(frames, "data.split.validation=0.3")
    made = dataset.run(config, config.folder / "dataset")
    index = DatasetIndex.read(made)
    assert {record.group for record in index.records} == {f"sequence-0{number}" for number in range(1, 5)}
    assert made.manifest["counts"]["leaks"] == ""
    assert made.digest == dataset.key(config).digest


def test_a_leaking_split_says_so_in_its_manifest(frames):
    config = settings(frames, "data.split.method=pranet")
    made = dataset.run(config, config.folder / "dataset")
    assert "same video sequences" in made.manifest["counts"]["leaks"]
    assert made.manifest["counts"]["test"] == 3


def test_the_split_of_a_run_serves_another_until_an_image_is_replaced(frames):
    config = settings(frames, "data.split.validation=0.3")
    made = dataset.run(config, config.folder / "dataset")
    index = DatasetIndex.read(made)
    again = settings(frames, "name=again", f"data.split.file={made / 'split.json'}", "seed=7")
    assert DatasetIndex.read(dataset.run(again, again.folder / "dataset")) == index
    Image.new("RGB", (8, 8)).save(frames / "images" / "26.png")
    with pytest.raises(DataError, match=r"made for other images[^-]*\n  - \S*26$"):
        dataset.run(again, again.folder / "dataset")


def test_a_changed_file_changes_the_key(frames):
    before = dataset.key(settings(frames)).digest
    assert dataset.key(settings(frames)).digest == before
    (frames / "images" / "1.png").write_bytes((frames / "images" / "26.png").read_bytes())
    assert dataset.key(settings(frames)).digest != before
    assert dataset.key(settings(frames, "data.split.method=kfold")).digest != before


def test_too_few_sequences(frames):
    for kind in ("images", "masks"):
        for frame in (51, 52, 68):
            (frames / kind / f"{frame}.png").unlink()
    config = settings(frames)
    with pytest.raises(DataError, match=r"belong to 2 group\(s\)"):
        dataset.run(config, config.folder / "dataset")


# --- decoding ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """How often Pillow opened each file, by its path."""
    counts = Counter()
    real = Image.open

    def counting(file, *arguments, **options):
        counts[Path(file.name)] += 1
        return real(file, *arguments, **options)

    monkeypatch.setattr(Image, "open", counting)
    return counts


def test_a_run_decodes_each_file_of_a_folder_once_and_test_files_once_more(make_config, tmp_path, opened):
    patients = {"train_patients": 3, "validation_patients": 2, "test_patients": 2}
    frames = {"frames_per_patient": 1, "test_frames_per_patient": 1}
    own = tmp_path / "own"
    write_phantom_set(own, **patients, **frames, seed=5, size=48)
    places = ("data.source=folder", f"data.images={own / 'images'}", f"data.masks={own / 'masks'}")
    settings = ("train.arms=[mcpmix]", "finetune.validation.every=1", "finetune.validation.images=1")
    config = make_config(tmp_path, *places, *settings, "runtime.jobs=1")
    index = DatasetIndex.read(run(config, until="evaluation").dataset)
    for part, times in (("train", 1), ("validation", 1), ("test", 2)):  # evaluation scores at their own size
        assert index.part(part)
        for record in index.part(part):
            assert (opened[record.image], opened[record.mask]) == (times, times)


def test_the_index_leaves_pixels_that_training_finds(samples, tmp_path, opened):
    index = build_index(samples, Split(("a", "d"), ("b",), ("c",)), cache=tmp_path / "cache", size=6)
    before = opened.total()
    kept = {part: load_arrays(index.part(part), 6, tmp_path / "cache") for part in ("train", "validation")}
    assert opened.total() == before
    for part, arrays in kept.items():
        plain = load_arrays(index.part(part), 6)
        np.testing.assert_array_equal(arrays.images, plain.images)
        np.testing.assert_array_equal(arrays.masks, plain.masks)


def test_a_refused_data_set_leaves_no_pixels(samples, tmp_path):
    samples[0].image.write_bytes(b"")
    with pytest.raises(DataError):
        build_index(samples, Split(("a", "d"), ("b",), ("c",)), cache=tmp_path / "cache", size=6)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def samples(make_pair):
    return [make_pair(stem, group=f"p{stem}") for stem in "dcba"]


def test_samples_outside_the_split_are_left_out(samples):
    assert len(build_index(samples, Split(("a",), ("b",), ("c",))).records) == 3


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


# --- sources and splits ------------------------------------------------------------------------------------


@pytest.fixture
def twelve(make_pair):
    return tuple(make_pair(f"s{number}", look=number, group=f"g{number // 2}") for number in range(12))


def test_sources_by_name(make_pair, tmp_path):
    make_pair("a")
    folders = {"images": tmp_path / "images", "masks": tmp_path / "masks"}
    assert [sample.id for sample in load_collection("folder", **folders).samples] == ["a"]
    assert load_collection("folder", root=tmp_path).samples[0].id == "a"
    assert load_collection("kvasir-seg", root=tmp_path).samples[0].source == "kvasir-seg"
    with pytest.raises(ConfigError, match=r"no source 'kvasir'\. Known: folder, .*phantom, cvc-clinicdb"):
        load_collection("kvasir", root=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.root: missing"):
        load_collection("nnunet")


def test_random_is_the_split_by_groups(twelve):
    planned = make_split(Collection(twelve), SplitConfig(), 5)
    assert planned == group_split(twelve, 0.15, 0.2, 5)
    assert planned.leaks == ""


def test_folds_ask_for_the_size_of_each_lesion_once(twelve):
    asked = []
    plan = SplitConfig(method="kfold", folds=3, fold=1, validation=0.3)
    make_split(Collection(twelve), plan, 0, area_of=lambda sample: asked.append(sample.id) or 0.1)
    assert sorted(asked) == sorted(sample.id for sample in twelve)
    tested = [
        name
        for fold in range(3)
        for name in make_split(Collection(twelve), SplitConfig(method="kfold", folds=3, fold=fold), 0).test
    ]
    assert sorted(tested) == sorted(sample.id for sample in twelve)
    assert make_split(Collection(twelve), SplitConfig(method="stratified"), 0).test


def test_a_published_split_without_validation_gets_one_by_whole_groups(twelve):
    parts = {sample.id: "test" if sample.group in ("g0", "g1") else "train" for sample in twelve}
    del parts["s11"]
    planned = make_split(Collection(twelve, {"official": parts}), SplitConfig(method="official"), 0)
    assert set(planned.test) == {"s0", "s1", "s2", "s3"}
    assert len(planned.validation) in (1, 2)
    used = {name for ids in planned.parts().values() for name in ids}
    assert used == {f"s{number}" for number in range(11)}


def test_a_cut_group_is_refused_unless_the_split_is_known_for_it(twelve):
    parts = {sample.id: ("train", "validation", "test")[number % 3] for number, sample in enumerate(twelve)}
    with pytest.raises(DataError, match=r"group g0 is split \(train: s0; validation: s1\)"):
        make_split(Collection(twelve, {"official": parts}), SplitConfig(method="official"), 0)
    known = Collection(twelve, {"old": parts}, leaks={"old": "frames of one video"})
    planned = make_split(known, SplitConfig(method="old"), 0)
    assert planned.leaks == "frames of one video"
    assert planned.train == ("s0", "s3", "s6", "s9")


def test_the_split_of_the_data_may_name_new_images_of_known_groups(twelve):
    parts = {sample.id: ("train", "validation", "test")[number // 4] for number, sample in enumerate(twelve)}
    planned = make_split(
        Collection(twelve, {"official": parts | {"s1": "known"}}), SplitConfig(method="official"), 0
    )
    assert (planned.train, planned.known) == (("s0", "s2", "s3"), ("s1",))
    with pytest.raises(DataError, match=r"group g5 has images in known \(s11\) and none in train"):
        make_split(
            Collection(twelve, {"official": parts | {"s11": "known"}}), SplitConfig(method="official"), 0
        )


def test_a_split_that_is_not_there(twelve):
    with pytest.raises(ConfigError, match=r"no split 'pranet'\. Known for it: random, stratified, kfold"):
        make_split(Collection(twelve), SplitConfig(method="pranet"), 0)
    only_train = Collection(twelve, {"official": dict.fromkeys((s.id for s in twelve), "train")})
    with pytest.raises(DataError, match="test is empty"):
        make_split(only_train, SplitConfig(method="official"), 0)


@pytest.mark.skipif(not (SHARED / "CVC-ClinicDB").is_dir(), reason="no CVC-ClinicDB here")
def test_pranets_split_of_cvc_clinicdb_is_marked():
    collection = load_collection("cvc-clinicdb", root=SHARED / "CVC-ClinicDB")
    planned = make_split(collection, SplitConfig(method="pranet"), 0)
    assert len(planned.test) == 62
    assert "same video sequences" in planned.leaks
    assert make_split(collection, SplitConfig(), 0).leaks == ""


# --- what a place holds, by content ----------------------------------------------------------------------


def test_names_and_contents_count_and_nothing_else(tmp_path):
    place = tmp_path / "data"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "a.png").write_bytes(b"a")
    first = listing(place)
    os.utime(place / "sub" / "a.png", (1, 1))
    (place / ".DS_Store").write_bytes(b"x")
    (place / "set.zip.unpacked-123").mkdir()
    (place / "set.zip.unpacked-123" / "b.png").write_bytes(b"b")
    assert listing(place) == first
    (place / "sub" / "a.png").write_bytes(b"b")
    second = listing(place)
    (place / "sub" / "a.png").rename(place / "a.png")
    assert len({first, second, listing(place)}) == 3
    assert listing(place / "a.png") != listing(place)


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    place, notes, read = tmp_path / "data", tmp_path / "cache" / "files.json", []
    place.mkdir()
    for name in "ab":
        (place / name).write_text(name)
    real = dataset.file_digest
    monkeypatch.setattr(dataset, "file_digest", lambda path: read.append(path.name) or real(path))
    first = listing(place, notes)
    assert listing(place, notes) == first == listing(place)
    assert read == ["a", "b", "a", "b"]  # the second call read nothing, the third has no notes
    read.clear()
    (place / "a").write_text("c")
    assert listing(place, notes) != first
    assert read == ["a"]
    notes.write_text("[")  # damaged notes are made again
    assert listing(place, notes) == listing(place)
