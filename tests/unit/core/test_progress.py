"""The silent default of progress reports."""

import pytest

from mcpmix.core.progress import SILENT


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
