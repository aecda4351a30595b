"""Tasks in processes of their own: order, threads, and what is said of failures."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from tests.helpers.progress import Recorder

from mcpmix.core import side_by_side as module
from mcpmix.core.device import setup
from mcpmix.core.errors import DataError
from mcpmix.core.side_by_side import side_by_side

CPU = setup("cpu", "float32", 1, True)


OPEN = partial(setup, "cpu", "float32", 1, True)


def work(number, *, runtime, progress):
    progress.say(f"at {number}")
    return number, runtime.device.type, torch.get_num_threads()


def fail(name, *, runtime, progress):
    raise DataError(f"no luck with {name}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(jobs):
    progress = Recorder()
    tasks = {f"task {number}": partial(work, number) for number in (3, 1, 2)}
    made = side_by_side(tasks, jobs, OPEN, progress)
    assert [number for number, _, _ in made.values()] == [3, 1, 2]
    assert list(made) == list(tasks)
    assert sorted(progress.lines) == ["at 1", "at 2", "at 3"]
    assert side_by_side({}, jobs, OPEN, progress) == {}


def test_every_failure_is_told_of_but_the_same_failure_once(monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setitem(module._here, "runtime", CPU)
    monkeypatch.setitem(module._here, "progress", Recorder())
    progress = Recorder()
    with pytest.raises(DataError) as caught:
        side_by_side({"a": partial(fail, "a"), "b": partial(fail, "b")}, 2, OPEN, progress)
    first, second = "ab" if "with a" in str(caught.value) else "ba"
    assert str(caught.value) == f"no luck with {first}"
    assert progress.lines == [f"{second} failed too: no luck with {second}"]

    progress.lines.clear()
    with pytest.raises(DataError, match="no luck with a"):
        side_by_side({"a": partial(fail, "a"), "b": partial(fail, "a")}, 2, OPEN, progress)
    assert progress.lines == []
