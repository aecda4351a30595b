import json
import subprocess
import sys

import pytest

from mcpmix.core.stage_folder import digest_of


@pytest.mark.parametrize("text", ["p000_f01", "p000_f01:", ":2", "p000_f01:two", "p000_f01:-1"])
def test_only_takes_an_id_and_a_replica(mcpmix, config, text):
    ended = mcpmix("synthesize", config, "--only", text)
    assert ended.code != 0
    assert f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    "command",
    ["run", "depth", "adapt adapt.steps=2", "finetune", "synthesize", "synthesize --only a:0", "train",
     "evaluate", "report"],
)  # fmt: skip
def test_every_stage_checks_the_settings_before_anything_is_made(mcpmix, config, command):
    name, *options = command.split()
    ended = mcpmix(name, config, "train.arms=[full-sup, mixupp]", *options)
    assert ended.code == 2
    assert "no strategy 'mixupp'" in ended.err
    assert not list(config.parent.rglob("dataset"))


def test_an_unknown_checklist_is_refused_before_anything_is_made(mcpmix, config):
    ended = mcpmix("report", config, "--checklist", "clam")
    assert ended.code == 2
    assert "unknown checklist clam: did you mean claim?" in ended.err
    assert not list(config.parent.rglob("dataset"))


def test_adapt_without_steps_says_which_setting_to_give(mcpmix, config):
    ended = mcpmix("adapt", config)
    assert ended.code == 2
    assert "adapt.steps is 0" in ended.err
    assert not list(config.parent.rglob("dataset"))


SMALL = (
    "train.arms=[full-sup]",  # needs no weights
    "train.seeds=[0]",
    "train.epochs=1",
    "data.size=32",
    "data.phantom.train_patients=1",
    "data.phantom.validation_patients=1",
    "data.phantom.test_patients=1",
    "data.phantom.frames_per_patient=2",
    "data.phantom.test_frames_per_patient=2",
    "runtime.jobs=1",
)


def test_demo_says_what_it_does_and_shows_the_table(mcpmix, tmp_path):
    done = mcpmix("demo", "--fast", "--out", tmp_path, *SMALL)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert any("4. 1 segmenters" in line for line in lines)
    assert any("about two minutes" in line for line in lines)
    heading = next(line for line in lines if "mIoU" in line)
    for metric in ("PA", "Recall", "Precision", "DSC"):
        assert metric in heading
    assert any("Full-Sup" in line for line in lines)
    page = tmp_path / "demo-fast" / "report" / "report.html"
    assert f"report: {page}" in lines
    assert page.exists()
    assert lines[-1].startswith("elapsed: 0:00:")
    again = mcpmix("demo", "--fast", "--out", tmp_path, *SMALL)
    assert again.code == 0, again.err
    assert "to do" not in again.out  # everything is reused
    assert f"report: {page}" in again.out


def test_demo_with_a_typing_mistake(mcpmix, tmp_path):
    done = mcpmix("demo", "--out", tmp_path, "train.epoch=3")
    assert done.code == 2
    assert done.err.startswith("Error: preset demo: 1 problem")
    assert "did you mean epochs?" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_worker_processes_report_to_the_parent_and_say_nothing_themselves(config):
    settings = ("train.seeds=[0, 1]", "train.epochs=2", "runtime.jobs=2")
    done = subprocess.run(
        [sys.executable, "-m", "mcpmix", "train", config, *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for seed in (0, 1):
        assert f"full-sup seed {seed}: 2 to do" in done.stdout
        assert f"full-sup seed {seed}: 2 done in" in done.stdout
        assert f"full-sup, seed {seed}: validation DSC " in done.stdout


def test_report_takes_the_settings_of_the_run_and_asks_before_it_repeats_long_work(mcpmix, config):
    done = mcpmix("run", config, "train.epochs=1", "train.seeds=[0]", "runtime.jobs=1")
    assert done.code == 0, done.err
    assert "one seed, so without a spread" in done.out
    again = mcpmix("report", config)
    assert again.code == 0, again.err
    assert "settings of this run, from `mcpmix run`: train.epochs=1" in again.out
    assert "recomputed" not in again.out
    assert "full-sup seed 0: 1 to do" not in again.out
    manifest = next(config.parent.rglob("segmenter/full-sup/seed-0/manifest.json"))
    made = json.loads(manifest.read_text()) | {"seconds": 3700}
    del made["seal"]
    manifest.write_text(json.dumps({**made, "seal": digest_of(made)}))
    refused = mcpmix("report", config, "train.epochs=2")
    assert refused.code == 2
    message = "took 1:01:40 and would be made again, because train.epochs is 2, was 1. Give the settings"
    assert message in refused.err
    assert "--yes" in refused.err
