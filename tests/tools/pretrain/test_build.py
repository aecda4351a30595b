"""`python -m tools.pretrain`: what it refuses, builds and resumes."""

import json
import shutil
from types import SimpleNamespace

import pytest
from tools.pretrain.__main__ import main


@pytest.fixture
def pretrain(capsys):
    """Runs the command in this process."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=captured.out, err=captured.err)

    return run


def test_build_trains_goes_on_and_keeps_its_corpus(pretrain, tmp_path):
    arguments = ("features", "--out", tmp_path / "weights")
    done = pretrain(*arguments, "--steps", 2, "--corpus", 32)
    assert done.code == 0, done.err
    assert f"finished: {tmp_path / 'weights' / 'features'}" in done.out
    assert (tmp_path / "weights" / "features" / "model.safetensors").exists()
    done = pretrain(*arguments, "--steps", 2)
    assert done.code == 0, done.err
    assert "phantom frames: 32 to do" not in done.out
    assert "features: resuming at 2/2" in done.out
    done = pretrain(*arguments, "--steps", 2, "--corpus", 40)
    assert done.code == 5
    assert "corpus of 32 frames, not of 40" in done.err


def test_control_is_built_for_a_base_and_goes_on(pretrain, random_models, tmp_path):
    out = tmp_path / "weights"
    arguments = ("control", "--out", out, "--size", 64)
    done = pretrain(*arguments, "--steps", 1, "--corpus", 8)
    assert done.code == 2
    assert f"there is none in {out / 'pipeline'}" in done.err
    shutil.copytree(random_models / "pipeline", out / "pipeline")
    done = pretrain(*arguments, "--steps", 1, "--corpus", 32)
    assert done.code == 0, done.err
    assert f"finished: {out / 'control'}" in done.out
    assert json.loads((out / "control" / "config.json").read_text())["conditioning_channels"] == 2
    done = pretrain(*arguments, "--steps", 2)
    assert done.code == 5
    assert "control steps: 1 there, 2 now" in done.err


def test_the_base_is_built_with_its_autoencoder(pretrain, tmp_path):
    done = pretrain("base", "--steps", 1, "--corpus", 4, "--size", 32, "--out", tmp_path / "weights")
    assert done.code == 0, done.err
    assert (tmp_path / "weights" / "pipeline" / "model_index.json").exists()


def test_sides_must_fit_the_networks(pretrain, tmp_path):
    done = pretrain("base", "--size", 40, "--out", tmp_path / "weights")
    assert done.code == 2
    assert "multiple of 32" in done.err
    assert not (tmp_path / "weights").exists()
