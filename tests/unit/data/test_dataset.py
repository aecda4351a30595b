import numpy as np
import pytest
from PIL import Image

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import DataError
from mcpmix.data import dataset
from mcpmix.data.index import DatasetIndex


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
