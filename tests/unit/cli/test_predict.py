import numpy as np
import pytest
from PIL import Image

from mcpmix.networks.segmenter import build_segmenter, save_segmenter


@pytest.fixture
def segmenter(tmp_path):
    folder = tmp_path / "segmenter" / "full-sup" / "seed-0"
    description = {"name": "segformer", "variant": "nano", "size": 32, "validation_dsc": 50.0}
    save_segmenter(build_segmenter("segformer", "nano"), folder, description)
    return folder


def test_predict_a_folder_and_again(mcpmix, segmenter, phantom_folder, tmp_path):
    arguments = (
        "predict",
        segmenter,
        phantom_folder / "images",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    )
    done = mcpmix(*arguments)
    assert done.code == 0, done.err
    assert "8 images segmented: " in done.out
    files = sorted((tmp_path / "out" / "masks").iterdir())
    assert len(files) == 8
    times = [file.stat().st_mtime_ns for file in files]
    files[3].unlink()
    done = mcpmix(*arguments)
    assert "predict: going on at 7/8" in done.out
    assert "1 image segmented, 7 were there already" in done.out
    again = [file.stat().st_mtime_ns for file in files]
    assert [old == new for old, new in zip(times, again, strict=True)] == [True] * 3 + [False] + [True] * 4


def test_predict_with_everything(mcpmix, segmenter, phantom_folder, tmp_path):
    image = sorted((phantom_folder / "images").iterdir())[0]
    done = mcpmix(
        "predict", segmenter, image, "--out", tmp_path / "out", "--probabilities", "--overlay", "--threshold",
        "0.4", "--device", "cpu",
    )  # fmt: skip
    assert done.code == 0, done.err
    mask, probability = (
        np.asarray(Image.open(tmp_path / "out" / kind / image.name)) for kind in ("masks", "probabilities")
    )
    assert np.array_equal(mask == 255, probability / 65535 >= 0.4)
    assert Image.open(tmp_path / "out" / "overlays" / image.name).size == (32, 32)


def test_predict_without_a_segmenter_or_images(mcpmix, segmenter, phantom_folder, tmp_path):
    done = mcpmix(
        "predict", tmp_path, phantom_folder / "images", "--out", tmp_path / "run", "--device", "cpu"
    )
    assert done.code == 0  # a run's folder stands for its best segmenter
    (segmenter / "model.safetensors").unlink()
    done = mcpmix(
        "predict", tmp_path, phantom_folder / "images", "--out", tmp_path / "out", "--device", "cpu"
    )
    assert done.code == 4
    assert "has no finished segmenter" in done.err
    done = mcpmix("predict", segmenter, tmp_path / "none", "--out", tmp_path / "out")
    assert done.code == 3
    assert "does not exist" in done.err
    assert not (tmp_path / "out").exists()


def test_a_fourth_channel_is_told(mcpmix, segmenter, tmp_path):
    image = tmp_path / "in" / "a.png"
    image.parent.mkdir()
    Image.fromarray(np.full((20, 30, 4), 200, np.uint8)).save(image)
    done = mcpmix("predict", segmenter, image, "--out", tmp_path / "out", "--device", "cpu")
    assert done.code == 0, done.err
    text = "1 image has an alpha channel (a.png): laid over black, as in training"
    assert text in (done.out + done.err).replace("\n", " ")
