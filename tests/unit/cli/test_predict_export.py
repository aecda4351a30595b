import pytest

from mcpmix.networks.segmenter import build_segmenter, save_segmenter


@pytest.fixture
def segmenter(tmp_path):
    folder = tmp_path / "segmenter" / "full-sup" / "seed-0"
    description = {"name": "segformer", "variant": "nano", "size": 32, "validation_dsc": 50.0}
    save_segmenter(build_segmenter("segformer", "nano"), folder, description)
    return folder


def test_a_run_is_exported_and_the_difference_printed(mcpmix, segmenter, phantom_folder, tmp_path):
    file = tmp_path / "out" / "model.onnx"
    done = mcpmix("export", tmp_path, "--out", file, "--verify", phantom_folder / "images")
    assert done.code == 0, done.err
    assert f"made of {segmenter}" in done.out
    assert "on 8 images: probabilities differ by at most " in done.out
    assert f"masks in 0 of {8 * 32 * 32} pixels" in done.out
    assert file.stat().st_size > 1e6
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_mistakes(mcpmix, segmenter, tmp_path):
    done = mcpmix("export", segmenter, "--out", tmp_path / "model.pt")
    assert (done.code, "ends in .onnx" in done.err) == (2, True)
    (tmp_path / "empty").mkdir()
    done = mcpmix("export", segmenter, "--out", tmp_path / "m.onnx", "--verify", tmp_path / "empty")
    assert (done.code, "holds no images" in done.err) == (3, True)
    done = mcpmix("export", segmenter, "--out", tmp_path / "m.onnx")
    assert (done.code, "--verify FOLDER" in done.err) == (3, True)
