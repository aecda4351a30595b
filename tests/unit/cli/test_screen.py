import io
import json
import re
import threading

import pytest
from rich.console import Console

from mcpmix.cli.screen import BarProgress, LineProgress, _bars, duration, show_report, shown_progress
from mcpmix.core.stage_folder import Artifact
from mcpmix.report.tables import REGION, build_table


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00:00"), (125, "0:02:05"), (3600, "1:00:00")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_lines_at_start_and_end_and_at_most_every_ten_seconds():
    lines, clock = [], Clock()
    progress = LineProgress(lines.append, clock=clock)
    with progress.track("train", 100) as advance:
        for _ in range(100):
            clock.now += 0.5
            advance(1, "loss 0.1")
    assert lines == [
        "train: 100 to do",
        "train: 20/100 (20 %), 0:00:10 gone, about 0:00:40 left, loss 0.1",
        "train: 40/100 (40 %), 0:00:20 gone, about 0:00:30 left, loss 0.1",
        "train: 60/100 (60 %), 0:00:30 gone, about 0:00:20 left, loss 0.1",
        "train: 80/100 (80 %), 0:00:40 gone, about 0:00:10 left, loss 0.1",
        "train: 100 done in 0:00:50",
    ]


def test_time_left_of_a_resumed_task_goes_by_this_runs_pace():
    lines, clock = [], Clock()
    with LineProgress(lines.append, clock=clock).track("train", 100, 50) as advance:
        clock.now = 10
        advance(10)
    # 10 steps in 10 seconds, 40 to go; the 50 of the earlier run took no time of this one.
    assert lines == [
        "train: resuming at 50/100",
        "train: 60/100 (60 %), 0:00:10 gone, about 0:00:40 left",
        "train: stopped at 60/100 after 0:00:10",
    ]


def test_an_error_leaves_the_place_where_it_stopped():
    lines = []

    def work():
        with LineProgress(lines.append, clock=Clock()).track("depth", 3) as advance:
            advance()
            raise ValueError

    with pytest.raises(ValueError):
        work()
    assert lines[-1] == "depth: stopped at 1/3 after 0:00:00"


def test_empty_task():
    lines = []
    with LineProgress(lines.append, clock=Clock()).track("nothing", 0):
        pass
    assert lines[-1] == "nothing: 0 done in 0:00:00"


def test_a_stream_that_is_no_terminal_gets_lines(capsys):
    with shown_progress() as progress, progress.track("depth", 2) as advance:
        advance(2)
        progress.say("a message with [brackets]")
    assert capsys.readouterr().out.splitlines() == [
        "depth: 2 to do",
        "a message with [brackets]",
        "depth: 2 done in 0:00:00",
    ]


def shown(stream: io.StringIO) -> list[str]:
    """Lines without escape sequences and without what was overwritten."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    return [line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]


def test_bars_of_several_threads_leave_one_line_each():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)

    def work(progress, number):
        with progress.track(f"task [{number}]", 50) as advance:
            for step in range(50):
                advance(1, f"loss {step}")

    with _bars(console) as bars:
        progress = BarProgress(bars)
        threads = [threading.Thread(target=work, args=(progress, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        progress.say("[b]plain[/b]")
        assert bars.tasks == []
    lines = shown(stream)
    for number in range(8):
        assert lines.count(f"task [{number}]: 50 done in 0:00:00") == 1
    assert "[b]plain[/b]" in lines


def test_a_bar_shows_percentage_count_and_note():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    with _bars(console) as bars, BarProgress(bars).track("train", 200, 30) as advance:
        advance(20, "loss 0.5")
        bars.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert re.search(r"train .* 50/200 0:00:0\d left .* loss 0\.5", text.rsplit("\r", 1)[-1])


@pytest.fixture
def report(tmp_path):
    """Two arms with two seeds; DSC 60 and 62 against 70 and 74."""

    def summary(value):
        return {column["key"]: {"mean": value, "n": 5, "undefined": 0} for column in REGION}

    scores = {("full-sup", 0): 60.0, ("full-sup", 1): 62.0, ("mcpmix-rla", 0): 70.0, ("mcpmix-rla", 1): 74.0}
    table = build_table({run: summary(value) for run, value in scores.items()}, REGION)
    (tmp_path / "table.json").write_text(json.dumps(table))
    return Artifact(tmp_path, {})


def cells(line):
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_table_has_an_arm_per_row(report, capsys):
    show_report(report)
    out = capsys.readouterr().out
    assert "5 test images, mean ± standard deviation over 2 seeds" in out
    row = next(cells(line) for line in out.splitlines() if "RLA" in line)
    assert row == ["+ MCPMix + RLA", *["72.00 ± 2.83 *"] * 5, "+11.00 ± 1.41"]
    assert f"report: {report.folder / 'report.html'}" in out


def test_known_groups_have_a_table_below(report, capsys):
    table = json.loads((report / "table.json").read_text())
    (report / "table.json").write_text(json.dumps(table | {"known": {**table, "images": 3}}))
    show_report(report)
    out = capsys.readouterr().out
    assert out.index("5 test images, mean ±") < out.index("3 new images of known groups, mean ±")
    assert out.count("72.00 ± 2.83 *") == 2 * 5


def test_table_is_turned_on_a_narrow_terminal(report, capsys, monkeypatch):
    monkeypatch.setattr("mcpmix.cli.screen._columns", lambda: 60)
    show_report(report)
    out = capsys.readouterr().out
    row = next(cells(line) for line in out.splitlines() if line.split()[:1] == ["DSC"])
    assert row == ["DSC ↑ (%)", "61.00 ± 1.41", "72.00 ± 2.83 *"]
    assert all(len(line) <= 60 for line in out.splitlines() if "±" in line and "images" not in line)
