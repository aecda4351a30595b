"""`kill -9` in the middle of a stage, then the same command again: the same bytes as without the kill."""

import json
import signal
import subprocess
import sys
import time

import pytest
from tests.helpers.results import differences, digests

from mcpmix.config_file import to_yaml

EXTRA = {  # for one stage: what else must come out alike
    "train": (  # pairs made while it trains, by processes that the kill must take with it
        "synthesis.refresh=0.5",
        "synthesis.budget=true",
        "synthesis.workers=2",
    ),
    "finetune": (
        "finetune.unlock_decoder=true",
        "finetune.validation.every=15",
        "finetune.validation.images=2",
        "finetune.validation.use=best",
    ),
    "synthesize": (
        "synthesis.admission.enabled=true",
        "synthesis.admission.judge.steps=2",
        "synthesis.admission.judge.batch_size=2",
    ),
}


def command(stage, config_file):
    return [sys.executable, "-m", "mcpmix", stage, str(config_file)]


def kill_when(process, condition, seconds=250):
    """SIGKILL as soon as `condition` holds; fails if the process ends first, and leaves none behind."""
    deadline = time.monotonic() + seconds
    try:
        while not condition():
            assert process.poll() is None, "the stage ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "place", "log", "after"),
    [
        ("train", "segmenter/mcpmix-rla/seed-0", "log.jsonl", 3),
        ("synthesize", "pairs", "ledger.jsonl", 5),
        ("finetune", "generator", "log.jsonl", 2),
    ],
)
def test_killed_stage_continues_to_the_same_result(make_config, tmp_path, stage, place, log, after):
    configs = {}
    for name in ("whole", "killed"):
        config = make_config(
            tmp_path / name,
            "train.arms=[mcpmix-rla]",
            "train.epochs=12",
            "synthesis.replicas=6",
            "finetune.steps=60",
            "finetune.save_every=10",
            *EXTRA.get(stage, ()),
        )
        configs[name] = tmp_path / f"{name}.yaml"
        configs[name].write_text(to_yaml(config))
    subprocess.run(command(stage, configs["whole"]), check=True, capture_output=True)

    folder = tmp_path / "killed" / "small" / place
    partial = folder.with_name(folder.name + ".partial")
    process = subprocess.Popen(command(stage, configs["killed"]), stdout=subprocess.DEVNULL)
    kill_when(process, lambda: lines(partial / log) >= after)
    assert not folder.exists()
    subprocess.run(command(stage, configs["killed"]), check=True, capture_output=True)

    assert digests(folder)
    assert differences(folder, tmp_path / "whole" / "small" / place) == []


def kills(run):
    """For each stage: its folder, and when it is in the middle of its work."""
    names = ("dataset", "depth", "generator", "pairs", "report")
    dataset, depth, generator, pairs, report = (run / f"{name}.partial" for name in names)
    segmenter, evaluation = (
        run / stage / "mcpmix-rla" / "seed-0.partial" for stage in ("segmenter", "evaluation")
    )
    return [
        (dataset, lambda: len(list(dataset.glob("images/*.png"))) >= 3),
        (depth, lambda: lines(depth / "maps.jsonl") >= 1),
        (generator, lambda: (generator / "checkpoint.safetensors").exists()),
        (pairs, lambda: lines(pairs / "ledger.jsonl") >= 3),
        (segmenter, lambda: lines(segmenter / "log.jsonl") >= 2),
        (evaluation, lambda: lines(evaluation / "scores.jsonl") >= 2),
        (report, lambda: (report / "table.json").exists()),
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_killed_in_every_stage_ends_with_the_same_table(make_config, tmp_path):
    """One command, killed seven times, each time in the middle of another stage."""
    configs = {}
    for name in ("whole", "killed"):
        config = make_config(
            tmp_path / name,
            "train.arms=[mcpmix-rla]",
            "train.epochs=5",
            "data.phantom.frames_per_patient=4",
            "data.phantom.test_frames_per_patient=10",
            "depth.batch_size=3",
            "finetune.steps=20",
            "finetune.save_every=5",
        )
        configs[name] = tmp_path / f"{name}.yaml"
        configs[name].write_text(to_yaml(config))
    subprocess.run(command("run", configs["whole"]), check=True, capture_output=True)

    run = tmp_path / "killed" / "small"
    for folder, reached in kills(run):
        process = subprocess.Popen(
            command("run", configs["killed"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        kill_when(process, reached)
        assert folder.exists(), f"{folder.name} was finished before the kill"
    subprocess.run(command("run", configs["killed"]), check=True, capture_output=True)

    assert (run / "report" / "table.json").exists()
    assert differences(run, tmp_path / "whole" / "small") == []
    assert not list(run.rglob("*.partial"))
    pairs, generator = (
        json.loads((run / stage / "manifest.json").read_text())["counts"] for stage in ("pairs", "generator")
    )
    assert pairs["seen"]["the generator"] == generator["images"]
