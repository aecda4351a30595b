import json
import os
import socket
import time

import pytest
from tests.unit.studio.conftest import SCRIPT

from mcpmix.studio.reading import AbsentError
from mcpmix.studio.runs import Runs, flat


@pytest.fixture
def look(runs):
    """Looks at the run anew."""
    return lambda: Runs(runs).all()[0]


def say(runs, **status):
    known = {
        "state": "running",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.time() - 100,
    }
    (runs / "trial" / "status.json").write_text(json.dumps(known | status))


def test_a_finished_run(look):
    run = look()
    assert (run.name, run.state, run.progress, run.seconds_left) == ("trial", ("finished", ""), 1.0, None)
    assert (run.data, run.config["seed"], run.arms, run.seeds) == (
        "phantom",
        0,
        ["full-sup", "mcpmix", "mcpmix-rla"],
        [0, 1],
    )
    assert [stage.name for stage in run.stages] == [
        "dataset",
        "depth",
        "pairs",
        "segmenter",
        "evaluation",
        "report",
    ]
    assert {stage.state for stage in run.stages} == {"finished"}
    assert run.stages[3].note == "6 of 6"
    assert ("pairs", f"look {SCRIPT}") in run.warnings


def test_stages_from_before_the_last_call_were_reused(runs, look):
    say(runs, state="finished", started=time.time() + 10)
    assert all(stage.reused for stage in look().stages)
    say(runs, state="finished", started=0)
    assert not any(stage.reused for stage in look().stages)


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({}, "running", ""),
        ({"pid": 2**22 + 1}, "stopped", "resumes"),  # no such process
        ({"pid": "x"}, "stopped", "resumes"),
        ({"host": "another"}, "running", ""),  # wrote a moment ago
        ({"state": "stopped"}, "stopped", "resumes"),
        ({"state": "failed", "message": "The disk is full."}, "failed", "The disk is full."),
        ({"state": "finished", "until": "report"}, "finished", ""),
    ],
)
def test_the_state_is_what_the_run_said_if_its_process_lives(runs, look, status, state, message):
    say(runs, **status)
    found = look().state
    assert found[0] == state
    assert message in found[1]


def test_a_run_elsewhere_that_is_silent_has_stopped(runs, look):
    say(runs, host="another")
    long_ago = time.time() - 3600
    os.utime(runs / "trial" / "status.json", (long_ago, long_ago))
    assert look().state[0] == "stopped"


def test_progress_and_time_left_by_hand(runs, look):
    """One of six trainings is open, at 3 of 8 epochs after 30 s; it resumed at epoch 1; none is finished."""
    for cell in (runs / "trial" / "segmenter").glob("*/seed-*"):
        (cell / "manifest.json").unlink()
    for stage in ("evaluation", "report"):
        for manifest in (runs / "trial" / stage).rglob("manifest.json"):
            manifest.unlink()
    now = time.time()
    task = {"title": "full-sup seed 0", "total": 8, "first": 1, "done": 3, "since": now - 30}
    say(runs, tasks=[task], now=now)
    run = look()
    assert run.progress == pytest.approx((3 + 3 / 8) / (3 + 6 + 6 + 1))
    assert run.seconds_left == pytest.approx(15 * 5 + 5 * 15 * 8)  # 15 s an epoch; five trainings wait
    task["done"] = 1
    say(runs, tasks=[task], now=now)
    assert look().seconds_left is None  # no pace yet


def test_the_best_arm_by_its_mean_over_seeds(runs, look):
    assert look().best is None  # the helper's manifests have no figures
    for name, values in {"full-sup": (50, 60), "mcpmix": (90, 10)}.items():
        for seed, value in enumerate(values):
            path = runs / "trial" / "evaluation" / name / f"seed-{seed}" / "manifest.json"
            content = json.loads(path.read_text())
            path.write_text(json.dumps({**content, "counts": {"dsc": value}}))
    assert look().best == (55.0, "Full-Sup, test")


def test_settings_are_compared_with_the_nearest_preset(look):
    preset, differences = look().nearest_preset
    assert preset == "tiny"
    assert ("train.epochs", 8) in [(name, given) for name, _, given in differences]
    assert not {"name", "output"} & {name for name, _, _ in differences}
    assert dict(flat({"a": {"b": 1, "c": {}}, "d": [2]})) == {"a.b": 1, "a.c": {}, "d": [2]}


def test_runs_are_found_at_any_depth_but_not_through_links(runs, tmp_path):
    (runs / "grid" / "deep").mkdir(parents=True)
    (runs / "trial").rename(runs / "grid" / "deep" / "one")
    (tmp_path / "elsewhere").mkdir()
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    for folder in (runs / ".hidden", tmp_path / "elsewhere", runs / "no-run"):
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text("name: x")
        if folder.name != "no-run":
            (folder / "status.json").write_text("{}")
    (found,) = Runs(runs).all()
    assert found.name == "grid/deep/one"
    assert Runs(runs).get(found.id).folder == found.folder
    assert [run.name for run in Runs(found.folder).all()] == ["one"]  # a run itself may be named
    with pytest.raises(AbsentError):
        Runs(runs).get("../grid")


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
def test_half_written_files_are_not_errors(runs, look, content):
    for name in ("status.json", "config.yaml", "pairs/manifest.json", "report/manifest.json"):
        (runs / "trial" / name).write_text(content, errors="surrogateescape")
    run = look()
    assert run.state[0] in ("running", "stopped")
    assert (run.arms, run.warnings, run.best) == ([], [], None)
    assert run.nearest_preset == ("none", [])
