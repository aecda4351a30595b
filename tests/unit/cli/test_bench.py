"""`mcpmix bench` and `mcpmix verdict` through the command line: messages, exit codes, and a killed driver."""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml
from filelock import FileLock
from tests.helpers.grids import fails_with_seed_0, toy_grid

from mcpmix.segmenter import train


@pytest.fixture
def grid(make_config, tmp_path):
    """A file with two seeds of one arm, which needs no generator."""
    parts = {"labels": ["all"], "cells": [{}], "transfer": {}, "arms": ["full-sup"], "figures": []}
    made = toy_grid(make_config, tmp_path, **parts, tables=["ablation"], engine={"jobs": 1})
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(made.model_dump(mode="json")))
    return file


def test_dry_run_and_status_make_nothing(mcpmix, grid, tmp_path):
    out = tmp_path / "out"
    done = mcpmix("bench", grid, "--out", out, "--dry-run", "seeds=[0, 1, 2]")
    assert done.code == 0, done.err
    assert "3 cells: 0 finished and reused, 3 to train" in done.out
    done = mcpmix("bench", grid, "--out", out, "--status")
    assert done.code == 0, done.err
    assert "0/2" in done.out
    assert "0 of 2 cells finished, 0 failed" in done.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["arms=[full-su]"], 2, "unknown arm 'full-su'; did you mean full-sup?"),
        (["seeds=[]"], 2, "no cell: each of"),
        (["arms=[mcpmix]", "generators={none: null}"], 2, "trains on counterparts, and the generator none"),
        (["train.epoch=3"], 2, "unknown key train.epoch: did you mean epochs?"),
        (["--engine", "slurm"], 2, "--engine takes local or ray, got slurm."),
    ],
)
def test_wrong_grids(mcpmix, grid, tmp_path, arguments, code, message):
    done = mcpmix("bench", grid, "--out", tmp_path / "out", *arguments)
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_a_failure_ends_with_its_exit_code_after_all_others_are_done(mcpmix, grid, tmp_path, run_here):
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "run", fails_with_seed_0(train.run))
        done = mcpmix("bench", grid, "--out", out)
    assert done.code == 7
    assert "1 of 2 cells finished" in done.out
    assert "1 failed; the others are finished. The same command tries again:" in done.err
    assert "data/all/real/segmenter/full-sup/seed-0: TrainingError: The loss is nan." in done.err
    assert "seed-0 failed" in (out / "index.html").read_text(encoding="utf-8")

    done = mcpmix("bench", grid, "--out", out)
    assert done.code == 0, done.err
    assert "2 of 2 cells finished" in done.out
    other = grid.with_name("other.yaml")
    other.write_text(grid.read_text().replace("name: toy", "name: other"))
    done = mcpmix("bench", other, "--out", out)
    assert (done.code, "holds the results of the grid toy, not of other" in done.err) == (5, True)


@pytest.fixture
def run_here(monkeypatch):
    """The local engine without processes of its own, so that a test can change what they do."""
    from tests.helpers.grids import Here

    monkeypatch.setattr("mcpmix.bench.engines.open_engine", lambda *_: Here())


@pytest.mark.slow
def test_a_killed_driver_goes_on_and_ends_with_the_same_table(mcpmix, grid, tmp_path, run_here):
    """Killed with -9 in the middle of a training, with a worker of its own."""
    settings = ["seeds=[0]", "train.epochs=14"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "mcpmix", "bench", str(grid), "--out", str(killed), *settings]
    stage = killed / "cells/data/all/real/segmenter/segmenter/full-sup"
    log = stage / "seed-0.partial/log.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as driver:
        while driver.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
    with FileLock(stage / ".seed-0.lock", timeout=30):  # its worker ends by itself
        assert not (stage / "seed-0").exists()

    begun, epoch = [], train.Trainer._run_epoch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            train.Trainer, "_run_epoch", lambda self, number: begun.append(number) or epoch(self, number)
        )
        done = mcpmix("bench", grid, "--out", killed, *settings)
    assert done.code == 0, done.err
    assert begun[0] >= 2  # the second epoch was logged; its checkpoint may not have been written yet
    assert begun[-1] == 14
    assert mcpmix("bench", grid, "--out", whole, *settings).code == 0
    tables = [json.loads((out / "tables/ablation.json").read_text()) for out in (killed, whole)]
    assert tables[0] == tables[1]


def test_a_verdict_from_a_configuration(mcpmix, make_config, tmp_path, run_here):
    from mcpmix.config_file import to_yaml

    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(make_config(tmp_path / "runs")))
    done = mcpmix("verdict", file, "train.epochs=1")
    assert done.code == 0, done.err
    assert "No benefit shown" in done.out or "Synthetic images" in done.out
    assert str(tmp_path / "runs/small/verdict/verdict.html") in done.out
