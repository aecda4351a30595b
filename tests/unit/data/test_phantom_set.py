"""The phantom set: files, disjoint patients, another world than pretraining, resumable."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcpmix.data import phantom_set
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


def write(folder: Path, **changes: int) -> tuple[list[Sample], Split]:
    return write_phantom_set(folder, **{**COUNTS, "seed": 3, "size": 32, **changes})


def test_files_ids_groups_and_split(tmp_path):
    samples, split = write(tmp_path)
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
    _, split = write(tmp_path / "a")
    _, larger = write(tmp_path / "b", train_patients=5)
    assert larger.test == split.test
    assert larger.validation == split.validation
    assert set(split.train) < set(larger.train)
    patients = [{name[:4] for name in ids} for ids in larger.parts().values()]
    assert sum(len(part) for part in patients) == len(set().union(*patients))


def test_seed_decides_the_world(tmp_path):
    same, other = write(tmp_path / "a")[0], write(tmp_path / "b", seed=4)[0]
    again = write(tmp_path / "c")[0]
    assert same[0].image.read_bytes() == again[0].image.read_bytes()
    assert not np.array_equal(read_image(same[0].image), read_image(other[0].image))


def test_world_is_never_that_of_pretraining(monkeypatch):
    assert PRETRAINING_SEED == 1_000_003
    monkeypatch.setattr(phantom_set, "seed_for", lambda *identity: PRETRAINING_SEED + 5 * 2**31)
    assert world_seed(0) == PRETRAINING_SEED + 1
    monkeypatch.setattr(phantom_set, "seed_for", lambda *identity: 17 + 5 * 2**31)
    assert world_seed(0) == 17


def test_repeated_call_renders_only_what_is_missing(tmp_path, monkeypatch):
    samples, split = write(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.png")}
    samples[0].image.unlink()
    samples[4].mask.unlink()
    calls = []

    def counted(*arguments):
        calls.append(arguments[1:3])
        return render(*arguments)

    monkeypatch.setattr(phantom_set, "render", counted)
    assert write(tmp_path) == (samples, split)
    assert calls == [(0, 0), (1, 0)]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.png")} == contents


def test_killed_write_leaves_no_half_file_under_the_final_name(tmp_path, monkeypatch):
    def killed(picture, path, **options):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Image.Image, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path)
    assert list(tmp_path.rglob("*.png")) == []
    samples, _ = write(tmp_path)
    assert read_image(samples[0].image).shape == (32, 32, 3)
    assert list(tmp_path.rglob("*.tmp")) == []
