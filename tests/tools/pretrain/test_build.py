"""`python -m tools.pretrain`: what it refuses, builds and resumes; which images a base lists."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tools.pretrain.__main__ import main
from tools.pretrain.build import OwnImages, Training, build_weights
from tools.pretrain.corpus import image_corpus

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.data.leakage import SeenImage, read_seen, write_seen
from mcpmix.data.likeness import look_of
from mcpmix.data.sample import pixel_digest, read_image
from tools.pretrain import build as building


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


@pytest.fixture
def photographs(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for name in "abc":
        pixels = rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.png")
    return tmp_path / "images"


def test_build_refuses_what_own_images_cannot_teach(pretrain, tmp_path):
    done = pretrain("depth", "--images", tmp_path, "--out", tmp_path / "weights")
    assert done.code == 2
    assert "depth cannot be built from --images" in done.err


def test_build_refuses_images_and_a_number_of_phantom_frames(pretrain, tmp_path):
    done = pretrain("autoencoder", "--images", tmp_path, "--corpus", 4, "--out", tmp_path / "w")
    assert done.code == 2
    assert "--corpus" in done.err


def test_build_of_an_empty_folder(pretrain, tmp_path):
    done = pretrain("autoencoder", "--images", tmp_path, "--out", tmp_path / "weights")
    assert done.code == 3
    assert "No images below" in done.err


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
    done = pretrain("control", "--steps", 1, "--corpus", 8, "--size", 64, "--out", out)
    assert done.code == 2
    assert f"there is none in {out / 'pipeline'}" in done.err
    assert "--start embedded" in done.err
    arguments = ("control", "--start", random_models / "pipeline", "--out", out)
    done = pretrain(*arguments, "--steps", 1, "--corpus", 32, "--size", 64)
    assert done.code == 0, done.err
    assert f"finished: {out / 'control'}" in done.out
    config = json.loads((out / "control" / "config.json").read_text())
    assert config["conditioning_channels"] == 2
    done = pretrain(*arguments, "--steps", 2, "--size", 64)
    assert done.code == 5
    assert "control steps: 1 there, 2 now" in done.err
    done = pretrain("control", "--steps", 1, "--batch-size", 2, "--out", tmp_path / "w")
    assert done.code == 2
    assert "--batch-size: of the base, which is not built here" in done.err


def test_phantom_frames_and_own_images_do_not_share_a_folder(pretrain, photographs, tmp_path):
    own = ("autoencoder", "--images", photographs, "--size", 32, "--steps", 1)
    phantom = ("features", "--steps", 2, "--corpus", 32, "--size", 32)
    for number, (first, second, held) in enumerate(((own, phantom, "own images"), (phantom, own, "phantom"))):
        out = tmp_path / str(number)
        assert pretrain(*first, "--out", out).code == 0
        done = pretrain(*second, "--out", out)
        assert done.code == 5
        assert f"holds {held}" in done.err


def test_base_from_own_images_is_kept_and_another_build_refused(
    pretrain, photographs, random_models, tmp_path
):
    (tmp_path / "train.txt").write_text("a\nc\n")
    out = tmp_path / "weights"
    fixed = ("--images", photographs, "--list", tmp_path / "train.txt", "--size", 32, "--out", out)
    fixed += ("--start", random_models / "pipeline", "--autoencoder-steps", 1, "--batch-size", 2)
    done = pretrain("base", *fixed, "--steps", 1)
    assert done.code == 0, done.err
    assert f"finished: {out / 'pipeline'}" in done.out
    assert "images: 2 to do" in done.out
    done = pretrain("base", *fixed, "--steps", 1)  # there is nothing left to do
    assert done.code == 0, done.err
    (tmp_path / "train.txt").write_text("a\nb\n")
    done = pretrain("base", *fixed, "--steps", 2)
    assert done.code == 5
    assert "holds another build" in done.err
    assert "images: " in done.err
    assert "base steps: 1 there, 2 now" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("base", "--caption", "text"), "belong to --images"),
        (("base", "--images", ".", "--caption", "a", "--captions", "b.csv"), "exclude each other"),
        (("all", "--start", "embedded"), "--start is a pipeline"),
        (("base", "--images", "{images}", "--autoencoder-steps", "0"), "there is none"),
        (("base", "--images", "{images}", "--size", "40"), "multiple of 32"),
    ],
)
def test_build_refuses_what_does_not_go_together(pretrain, photographs, tmp_path, arguments, message):
    given = [str(photographs) if text == "{images}" else text for text in arguments]
    done = pretrain(*given, "--out", tmp_path / "weights")
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "weights").exists()


def test_build_uses_only_the_training_part_of_a_configuration(photographs, tmp_path):
    (tmp_path / "masks").mkdir()
    for name in "abc":
        Image.new("L", (50, 40)).save(tmp_path / "masks" / f"{name}.png")
    split = {"train": ["b"], "validation": ["a"], "test": ["c"]}
    (tmp_path / "split.json").write_text(json.dumps(split))
    data = {"images": photographs, "masks": tmp_path / "masks", "split": {"file": tmp_path / "split.json"}}
    config = resolve_config({"preset": "tiny", "data": {"source": "folder", **data}}, ())
    assert OwnImages(split_of=config).paths() == [photographs / "b.png"]
    with pytest.raises(ConfigError, match="draws a phantom"):
        OwnImages(split_of=resolve_config({"preset": "tiny"}, ())).paths()


# --- the list of images, so that test images among them are found years later ------------------------------


def listed(folder, *names):
    images = {name: read_image(folder / name) for name in names}
    return [SeenImage(name, pixel_digest(image), look_of(image)) for name, image in images.items()]


def test_a_base_lists_its_images_before_it_is_trained(photographs, tmp_path, monkeypatch):
    found = []

    def train(name, corpus, folder, *_):
        found.append((name, read_seen(folder / "pipeline")))

    monkeypatch.setattr(building, "train_part", train)
    for _ in range(2):  # the second time from the decoded corpus
        build_weights("base", tmp_path / "out", own=OwnImages(folder=photographs), training=Training(steps=1))
    wanted = listed(photographs, "a.png", "b.png", "c.png")
    assert found == [(name, wanted) for name in ("autoencoder", "base")] * 2


def test_the_images_of_a_start_are_listed_as_well(photographs, tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    write_seen(start, [SeenImage("older", "0" * 64), *listed(photographs, "a.png")])
    corpus = image_corpus([photographs / "b.png"], [""], tmp_path / "corpus", 32)
    building.list_images(tmp_path / "pipeline", corpus, start)
    assert [image.id for image in read_seen(tmp_path / "pipeline")] == ["older", "a.png", "b.png"]
