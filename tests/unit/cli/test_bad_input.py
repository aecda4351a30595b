"""Bad input through the command line: one message, an exit code, and nothing finished is lost."""

import json

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.segmenter import train

SHORT = ("train.epochs=2", "train.validate_every=1", "train.seeds=[0]", "runtime.jobs=1", "runtime.threads=1")


def error_of(done, code):
    """The one message on stderr."""
    assert done.code == code, done.err
    assert done.err.count("Error: ") == 1
    assert "Traceback" not in done.err
    return done.err


@pytest.fixture
def run_folder(config):
    return config.parent / "runs" / "study"


def test_a_disk_that_fills_up_in_training_costs_nothing_that_was_finished(
    mcpmix, config, run_folder, monkeypatch
):
    saved, room = train.save_state, [True, False]

    def save(path, state):
        if not room.pop(0):  # as safetensors says it
            raise RuntimeError("I/O error: No space left on device (os error 28)")
        saved(path, state)

    monkeypatch.setattr(train, "save_state", save)
    message = error_of(mcpmix("train", config, *SHORT), 5)
    segmenter = run_folder / "segmenter" / "full-sup" / "seed-0"
    assert f"The disk that holds {segmenter} is full." in message
    assert "free some space and run the same command again" in message.replace("\n", " ")
    assert (run_folder / "dataset" / "manifest.json").exists()
    assert not segmenter.exists()

    monkeypatch.setattr(train, "save_state", saved)
    begun = []
    epoch = train.Trainer._run_epoch
    monkeypatch.setattr(
        train.Trainer, "_run_epoch", lambda self, number: begun.append(number) or epoch(self, number)
    )
    done = mcpmix("train", config, *SHORT)
    assert done.code == 0, done.err
    assert begun == [2]  # the first epoch was kept
    log = [json.loads(line) for line in (segmenter / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in log] == [1, 2]


@pytest.mark.parametrize("stage", ["dataset", "segmenter/full-sup/seed-0"])
def test_a_stage_in_use_by_another_run(mcpmix, config, run_folder, stage):
    folder = run_folder / stage
    folder.parent.mkdir(parents=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        message = error_of(mcpmix("train", config, *SHORT), 5)
    assert f"{folder} is in use by another run. Wait for it, or choose another name" in message


@pytest.mark.parametrize(
    ("network", "command"), [("segformer", "check"), ("segformer", "train"), ("segnet", "train")]
)
def test_weights_to_start_from_that_cannot_be_used(mcpmix, config, run_folder, tmp_path, network, command):
    variant = {"segformer": "nano", "segnet": "small"}
    other = {"segformer": "segnet", "segnet": "segformer"}[network]
    weights = tmp_path / "weights"
    description = {"name": other, "variant": variant[other], "size": 32}
    save_segmenter(build_segmenter(other, variant[other]), weights, description)
    chosen = (f"segmenter.name={network}", f"segmenter.variant={variant[network]}")

    def message(source):
        return error_of(mcpmix(command, config, *SHORT, *chosen, f"segmenter.weights={source}"), 4)

    assert f"segmenter.weights: {weights} is " in message(weights)  # of another architecture
    (weights / "model.safetensors").write_bytes(b"cut")
    assert "segmenter.weights: " in message(weights)
    (tmp_path / "empty").mkdir()
    assert "empty" in message(tmp_path / "empty")
    (weights / "model.pt").write_bytes(b"\x80\x04N.")
    assert "model.pt" in message(weights / "model.pt")
    assert not (run_folder / "segmenter").exists()


def make_alike(folder):
    """The first frame of every patient is a near-duplicate."""
    frames = sorted((folder / "images").glob("*_f00.png"))
    shown = np.asarray(Image.open(frames[0])).astype(int)
    for step, path in enumerate(frames):
        Image.fromarray(np.clip(shown + 3 * step, 0, 255).astype(np.uint8)).save(path)


def test_test_images_that_training_would_see_are_named_before_it_begins(
    mcpmix, config, phantom_folder, run_folder
):
    make_alike(phantom_folder)
    message = error_of(mcpmix("evaluate", config, *SHORT), 3)
    assert "1 of 2 test images were seen in training, or are near-duplicates" in message
    assert "_f00 ~ p0" in message
    assert ", seen by the segmenter" in message
    assert "set evaluation.seen=mark" in message
    assert not (run_folder / "segmenter").exists()


@pytest.mark.slow
def test_such_images_are_scored_on_demand_and_every_table_says_so(mcpmix, config, phantom_folder, run_folder):
    make_alike(phantom_folder)
    done = mcpmix("report", config, *SHORT, "evaluation.seen=mark")
    assert done.code == 0, done.err
    why = "1 of 2 test images were seen by the segmenter, or are near-duplicates of an image that was"
    assert f"the split of this table leaks ({why})" in done.out
    assert json.loads((run_folder / "report" / "table.json").read_text())["leaks"] == why
    for name in ("table.md", "report.html"):
        assert why in (run_folder / "report" / name).read_text(encoding="utf-8")
