"""`kill -9` in the middle of a stage, then the same command again: the same bytes as without the kill."""

import hashlib
import signal
import subprocess
import sys
import time

import pytest

from mcpmix.core.config import to_yaml

EXTRA = {  # for one stage: what else must come out alike
    "train": (  # pairs made while it trains, by processes that the kill must take with it
        "synthesis.refresh=0.5",
        "synthesis.budget=true",
        "synthesis.workers=2",
    ),
    "finetune": (
        "finetune.unlock_decoder=true",
        "finetune.validation.every=15",
        "finetune.validation.images=1",
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


def digests(folder):
    """Content of all result files, without what depends on the clock."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in {".png", ".safetensors", ".jsonl", ".csv"}
    }


def kill_when(process, condition, seconds=120):
    """SIGKILL as soon as `condition` holds; fails if the process ends first."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the stage ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
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

    result = digests(folder)
    assert result
    assert result == digests(tmp_path / "whole" / "small" / place)
