"""The silent default of progress reports, and the status of a run."""

import json
import os

import pytest
from tests.helpers.progress import Recorder

from mcpmix.core.progress import SILENT, RecordedProgress, recorded


def test_silent_progress_accepts_everything_and_says_nothing(capfd):
    with SILENT.track("training", total=10, done=3) as advance:
        advance()
        advance(2, "loss 0.5")
        advance(steps=1, note="loss 0.4")
    SILENT.say("finished")

    assert capfd.readouterr() == ("", "")


def test_silent_progress_lets_errors_of_the_work_pass():
    with pytest.raises(KeyError, match="inside"), SILENT.track("training", total=1):
        raise KeyError("inside")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "status.json"


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_open_tasks_are_recorded_and_passed_on(path):
    inner = Recorder()
    with RecordedProgress(inner, path, "report") as progress:
        with progress.track("train", 10, 4) as advance:
            (task,) = read(path)["tasks"]
            assert (task["title"], task["total"], task["first"], task["done"]) == ("train", 10, 4, 4)
            advance(2, "loss 1")
            progress.say("a line")
        found = read(path)
        assert (found["state"], found["until"], found["pid"]) == ("running", "report", os.getpid())
    assert read(path)["state"] == "finished"
    assert read(path)["tasks"] == []
    assert (inner.tasks, inner.steps, inner.lines) == ([("train", 10, 4)], [(2, "loss 1")], ["a line"])


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (ValueError("no such thing"), "failed", "no such thing"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
    ],
)
def test_the_end_is_recorded_and_the_error_passes(path, error, state, message):
    with pytest.raises(type(error)), RecordedProgress(Recorder(), path, "report"):
        raise error
    assert (read(path)["state"], read(path)["message"]) == (state, message)


def test_a_folder_that_cannot_be_written_to_does_not_stop_the_run(tmp_path):
    with RecordedProgress(Recorder(), tmp_path / "absent" / "status.json", "report") as progress:
        progress.say("still here")
    assert not (tmp_path / "absent").exists()


def test_one_process_of_several_writes(tmp_path):
    inner = Recorder()
    with recorded(inner, tmp_path / "other", "generator", writes=False) as progress:
        assert progress is inner
    with recorded(inner, tmp_path / "run", "generator"):
        assert read(tmp_path / "run" / "status.json")["state"] == "running"
    assert not (tmp_path / "other").exists()
