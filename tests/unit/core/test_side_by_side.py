"""Tasks in processes of their own: order, failures, killed workers, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from tests.helpers.progress import Recorder

from mcpmix.core.device import setup
from mcpmix.core.errors import DataError, TrainingError
from mcpmix.core.side_by_side import as_they_come, side_by_side

OPEN = partial(setup, "cpu", "float32", 1, True)


def work(number, *, runtime, progress):
    progress.say(f"at {number}")
    with progress.track(f"bar {number}", 2) as advance:
        advance(2)
    return number, runtime.device.type, torch.get_num_threads()


def fail(name, *, runtime, progress):
    raise DataError(f"no luck with {name}")


class OddError(Exception):
    """Cannot be rebuilt from its text."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail_oddly(*, runtime, progress):
    raise OddError(1, 2)


def die(*, runtime, progress):
    with progress.track("doomed", 3) as advance:
        advance()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(jobs):
    progress = Recorder()
    tasks = {f"task {number}": partial(work, number) for number in (3, 1, 2)}
    made = side_by_side(tasks, jobs, OPEN, progress)
    assert [number for number, _, _ in made.values()] == [3, 1, 2]
    assert list(made) == list(tasks)
    assert sorted(progress.lines) == ["at 1", "at 2", "at 3"]
    assert sorted(progress.titles) == ["bar 1", "bar 2", "bar 3"]
    assert side_by_side({}, jobs, OPEN, progress) == {}
    assert not active_children()


def test_every_failure_is_told_of_but_the_same_failure_once():
    progress = Recorder()
    tasks = {name: partial(fail, name.upper()) for name in "ab"} | {"c": partial(fail, "A"), "d": fail_oddly}
    with pytest.raises((DataError, RuntimeError)) as caught:
        side_by_side(tasks, 2, OPEN, progress)
    texts = {"no luck with A", "no luck with B", "OddError: 1 and 2"}
    told = {line.partition(" failed too: ")[2] for line in progress.lines}
    assert told | {str(caught.value)} == texts
    assert len(progress.lines) in (2, 3)  # 3 only if the two alike are not the first
    assert "in fail" in "".join(caught.value.__notes__)


def die_at_first(marker, *, runtime, progress):
    """Killed like a process for which there is no memory; the second time it works."""
    if not marker.exists():
        marker.write_text("been here")
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_a_task_whose_worker_was_killed_is_begun_again_as_often_as_asked_for(tmp_path):
    tasks = {"first": partial(die_at_first, tmp_path / "first"), "lost": die, "fine": partial(work, 1)}
    made = dict(as_they_come(tasks, 2, OPEN, Recorder(), retries=1))
    assert made["first"] == "done"
    assert made["fine"] == (1, "cpu", 1)
    assert isinstance(made["lost"], TrainingError)


def test_a_killed_worker_costs_its_task_alone_and_says_what_to_lower():
    progress, seen = Recorder(), []
    progress.say = seen.append
    tasks = {"segmenter a seed 0": die} | {f"task {n}": partial(work, n) for n in range(3)}
    with pytest.raises(
        TrainingError, match=r"segmenter a seed 0: its process was killed \(signal 9\).*lower runtime\.jobs"
    ):
        side_by_side(tasks, 2, OPEN, progress)
    assert sorted(seen) == ["at 0", "at 1", "at 2"]  # the others went on
    assert not active_children()


PARENT = """
    import os, sys, time
    from functools import partial
    from mcpmix.core.device import setup
    from mcpmix.core.progress import SILENT
    from mcpmix.core.side_by_side import side_by_side
    sys.path.insert(0, os.path.dirname(__file__))
    from sleeping import rest
    if __name__ == "__main__":
        tasks = {str(n): partial(rest, n) for n in range(2)}
        side_by_side(tasks, 2, partial(setup, "cpu", "float32", 1, True), SILENT)
"""
SLEEPING = """
    import os, time
    from pathlib import Path

    def rest(number, *, runtime, progress):
        Path(__file__).with_name(f"pid-{number}").write_text(str(os.getpid()))
        time.sleep(120)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_nothing_is_left_five_seconds_after_the_parent_is_killed(tmp_path):
    for name, text in (("parent.py", PARENT), ("sleeping.py", SLEEPING)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while len(pids := [p.read_text() for p in tmp_path.glob("pid-*")]) < 2 or "" in pids:
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    session = [path for path in Path("/proc").glob("[0-9]*") if session_of(path) == parent.pid]
    while any(alive(path.name) for path in session):
        assert time.monotonic() < deadline, [path.name for path in session]
        time.sleep(0.05)


def session_of(path):
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):
        return None
