import os
import signal
import sys
from functools import partial

import pytest
from tests.helpers.grids import toy_grid
from tests.helpers.progress import Recorder

from mcpmix.bench.driver import run_grid
from mcpmix.bench.engines import RayEngine, jobs_here, open_engine
from mcpmix.bench.grid import Resources, expand
from mcpmix.config import RuntimeConfig
from mcpmix.core.errors import DataError, DependencyError
from mcpmix.segmenter import train

CPU = RuntimeConfig(device="cpu", precision="float32")
ONE = Resources(jobs=1, retries=2)


@pytest.fixture(scope="module")
def ray_here():
    """A cluster of one node in this machine, for the tests of this file."""
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=1,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    return open_engine(request.param, ONE, CPU)


def threads(*, runtime, progress):
    import torch

    return runtime.device.type, torch.get_num_threads()


def refuse(*, runtime, progress):
    raise DataError("no such image")


def die_at_first(marker, *, runtime, progress):
    if not marker.exists():
        marker.write_text("been here")
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@pytest.mark.slow
def test_results_errors_and_killed_workers_of_ray(ray_here, tmp_path):
    """Those of local: tests/unit/core/test_processes.py."""
    engine = open_engine("ray", ONE, CPU)
    tasks = {"a": threads, "b": refuse, "c": partial(die_at_first, tmp_path / "c")}
    made = dict(engine.run(tasks, Recorder()))
    assert made["a"] == ("cpu", 1)
    assert made["c"] == "done"
    assert isinstance(made["b"], DataError)
    assert str(made["b"]) == "no such image"


def kill_once(marker, number, epoch, self):
    """In the second epoch of a training, and only once, the process is killed."""
    if number == 2 and not marker.exists():
        marker.write_text("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    return epoch(self, number)


def cell_that_dies(cell, marker, *, runtime, progress):
    """A cell in whose process the training is killed once."""
    epoch = train.Trainer._run_epoch
    train.Trainer._run_epoch = lambda self, number: kill_once(marker, number, epoch, self)
    try:
        return cell(runtime=runtime, progress=progress)
    finally:
        train.Trainer._run_epoch = epoch


class Deadly:
    """An engine whose cells are killed once each, in their second epoch."""

    def __init__(self, engine, place):
        self.engine, self.place = engine, place

    def run(self, tasks, progress, *, wide=False):
        if not wide:
            tasks = {
                name: partial(cell_that_dies, task, self.place / name.replace("/", "_"))
                for name, task in tasks.items()
            }
        yield from self.engine.run(tasks, progress, wide=wide)


def scores(plan, outcome):
    files = {cell: scored.evaluations["test"] / "scores.csv" for cell, scored in outcome.cells.items()}
    assert files.keys() == plan.cells.keys()
    return {cell: path.read_bytes() for cell, path in files.items()}


def test_cells_whose_process_was_killed_have_the_same_scores(engine, finished, make_config, tmp_path):
    plan, outcome = finished
    parts = {"labels": ["all"], "cells": [{}], "transfer": {}, "arms": ["full-sup"], "seeds": [1]}
    parts |= {"tables": [], "figures": []}
    again = expand(toy_grid(make_config, tmp_path, **parts), tmp_path / "toy")
    found = run_grid(again, Deadly(engine, tmp_path))
    assert found.failures == {}
    assert len(list(tmp_path.glob("*seed-1"))) == 1  # it was killed
    log = next(iter(found.cells.values())).segmenter / "log.jsonl"
    assert log.read_bytes().count(b"\n") == 2
    expected = {
        cell: plan_scores for cell, plan_scores in scores(plan, outcome).items() if cell in again.cells
    }
    assert scores(again, found) == expected


def test_cells_side_by_side(monkeypatch):
    monkeypatch.setattr("mcpmix.bench.engines.core_count", lambda: 6)
    assert jobs_here(Resources(cpus=2), CPU) == 3
    assert jobs_here(Resources(cpus=8), CPU) == 1
    assert jobs_here(Resources(jobs=5), CPU) == 5
    assert jobs_here(Resources(), CPU.model_copy(update={"jobs": 2})) == 2
    assert not isinstance(open_engine("local", ONE, CPU), RayEngine)


def test_without_its_package_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r"pip install 'mcpmix\[cluster\]'"):
        list(RayEngine(ONE, CPU).run({"a": threads}, Recorder()))
