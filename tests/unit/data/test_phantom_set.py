"""The phantom: files, disjoint patients, another world than pretraining, resumable."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcpmix.data import dataset, phantom_set
from mcpmix.data.dataset import (
    build_index,
)
from mcpmix.data.index import training_digest
from mcpmix.data.leakage import LeakSearch, SeenImage, images_of, look_of
from mcpmix.data.phantom_set import PRETRAINING_SEED, world_seed, write_phantom_set
from mcpmix.data.sample import Sample, read_image, read_mask
from mcpmix.data.splits import Split
from mcpmix.phantom import render

COUNTS = {
    "train_patients": 2,
    "validation_patients": 1,
    "test_patients": 2,
    "frames_per_patient": 2,
    "test_frames_per_patient": 1,
}


def write_phantom(folder: Path, **changes: int) -> tuple[list[Sample], Split]:
    return write_phantom_set(folder, **{**COUNTS, "seed": 3, "size": 32, **changes})


def test_files_ids_groups_and_split(tmp_path):
    samples, split = write_phantom(tmp_path)
    assert split == Split(
        train=("p000_f00", "p000_f01", "p003_f00", "p003_f01"),
        validation=("p001_f00", "p001_f01"),
        test=("p002_f00", "p005_f00"),
    )
    assert [sample.id for sample in samples] == [name for ids in split.parts().values() for name in ids]
    sample = samples[3]
    assert (sample.group, sample.source) == ("p003", "phantom")
    frame = render(world_seed(3), 3, 1, 32)
    np.testing.assert_array_equal(read_image(sample.image), frame.image)
    np.testing.assert_array_equal(read_mask(sample.mask), frame.mask)
    assert set(np.unique(np.asarray(Image.open(sample.mask)))) == {0, 255}
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {f"{sample.id}.png" for sample in samples}  # no temporary file stays


def test_parts_keep_their_patients_when_others_grow(tmp_path):
    _, split = write_phantom(tmp_path / "a")
    _, larger = write_phantom(tmp_path / "b", train_patients=5)
    assert larger.test == split.test
    assert larger.validation == split.validation
    assert set(split.train) < set(larger.train)
    patients = [{name[:4] for name in ids} for ids in larger.parts().values()]
    assert sum(len(part) for part in patients) == len(set().union(*patients))


def test_known_are_the_next_frames_of_training_patients(tmp_path):
    samples, split = write_phantom(tmp_path / "a")
    more, larger = write_phantom(tmp_path / "b", known_frames_per_patient=2)
    assert larger.known == ("p000_f02", "p000_f03", "p003_f02", "p003_f03")
    assert dataclasses.replace(larger, known=()) == split
    assert [item.group for item in more[len(samples) :]] == ["p000", "p000", "p003", "p003"]
    for before, after in zip(samples, more, strict=False):
        assert before.image.read_bytes() == after.image.read_bytes()
        assert before.mask.read_bytes() == after.mask.read_bytes()


def test_frames_that_evaluation_would_refuse_are_passed_over(tmp_path):
    """Patient 6 of seed 0: frame 5 is a near-duplicate of frame 1, by the rule of the audit."""
    counts = {"train_patients": 3, "frames_per_patient": 2, "known_frames_per_patient": 4}
    samples, split = write_phantom(tmp_path, **counts, seed=0, size=128)
    frames = [int(name[-2:]) for name in split.known if name.startswith("p006")]
    assert frames == [2, 3, 4, 6]
    index = build_index(samples, split)
    assert not LeakSearch(images_of(index.part("known"))).copies(images_of(index.part("train")))
    refused = SeenImage("p006_f05", "", look_of(render(world_seed(0), 6, 5, 128).image))
    assert LeakSearch([refused]).copies(images_of(index.part("train")))["p006_f05"].startswith("~ p006_f01 (")


def test_more_known_frames_are_another_data_set_but_the_same_for_training(make_config, tmp_path):
    made = [
        dataset.run(config, config.folder / "dataset")
        for config in (
            make_config(tmp_path, f"name=with-{count}", f"data.phantom.known_frames_per_patient={count}")
            for count in (0, 1, 2)
        )
    ]
    assert len({item.digest for item in made}) == 3
    assert len({training_digest(item) for item in made}) == 1
    assert [item.manifest["counts"].get("known") for item in made] == [None, 2, 4]
    # As before there were any: finished runs of then are reused.
    assert "known_frames_per_patient" not in made[0].manifest["key"]["settings"]["phantom"]


def test_seed_decides_the_world(tmp_path):
    same, other = write_phantom(tmp_path / "a")[0], write_phantom(tmp_path / "b", seed=4)[0]
    again = write_phantom(tmp_path / "c")[0]
    assert same[0].image.read_bytes() == again[0].image.read_bytes()
    assert not np.array_equal(read_image(same[0].image), read_image(other[0].image))


def test_world_is_never_that_of_pretraining(monkeypatch):
    assert PRETRAINING_SEED == 1_000_003
    monkeypatch.setattr(phantom_set, "seed_for", lambda *identity: PRETRAINING_SEED + 5 * 2**31)
    assert world_seed(0) == PRETRAINING_SEED + 1
    monkeypatch.setattr(phantom_set, "seed_for", lambda *identity: 17 + 5 * 2**31)
    assert world_seed(0) == 17


def test_repeated_call_renders_only_what_is_missing(tmp_path, monkeypatch):
    samples, split = write_phantom(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.png")}
    samples[0].image.unlink()
    samples[4].mask.unlink()
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments[1:3])
        return render(*arguments, **options)

    monkeypatch.setattr("mcpmix.phantom.render", counted)
    assert write_phantom(tmp_path) == (samples, split)
    assert calls == [(0, 0), (1, 0)]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.png")} == contents


def test_killed_write_leaves_no_half_file_under_the_final_name(tmp_path, monkeypatch):
    def killed(picture, path, **options):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Image.Image, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            write_phantom(tmp_path)
    assert list(tmp_path.rglob("*.png")) == []
    samples, _ = write_phantom(tmp_path)
    assert read_image(samples[0].image).shape == (32, 32, 3)
    assert list(tmp_path.rglob("*.tmp")) == []


def test_two_kinds_of_lesion_are_stored_as_labels_in_every_part(tmp_path):
    samples, split = write_phantom(tmp_path, test_frames_per_patient=2, labels=3)
    assert {sample.labels for sample in samples} == {3}
    stored = {sample.id: np.unique(np.array(Image.open(sample.mask))).tolist() for sample in samples}
    for ids in (split.train, split.validation, split.test):
        assert sorted(stored[name] for name in ids[:2]) == [[0, 1], [0, 2]]
