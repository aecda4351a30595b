import json
import os
import re
import shutil
import socket
import time

import pytest
from tests.unit.studio.conftest import SCRIPT, TOKEN

from mcpmix.bench.state import write_failures
from mcpmix.studio.runs import Runs
from mcpmix.studio.trainings import image_scores, new_rows, segmenters_of


@pytest.fixture
def look(runs, grid):
    """Looks at the grid anew."""
    return lambda: Runs(runs).grids()[0]


def say(grid, **status):
    known = {"state": "running", "pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
    (grid / "status.json").write_text(json.dumps(known | status))


def test_how_each_cell_stands(look):
    found = look()
    assert found.name == "bench/toy"
    states = [(each.cell.method, each.cell.seed, each.state) for each in found.standings.values()]
    assert states == [
        ("full-sup", 0, "finished"),
        ("full-sup", 1, "finished"),
        ("mcpmix", 0, "finished"),
        ("mcpmix", 1, "failed"),
        ("mcpmix-rla", 0, "begun"),
        ("mcpmix-rla", 1, "waiting"),
    ]
    assert [[each.note for each in row] for _, row in found.rows] == [
        ["", ""],
        ["", f"TrainingError: nan {SCRIPT}"],
        ["2/8", ""],
    ]
    assert found.progress == pytest.approx((3 + 2 / 8) / 6)
    assert found.axes == {"Generator": 2}


def test_the_state_of_a_grid(grid, look):
    assert look().state == ("failed", "1 failed. The same command tries again.")
    write_failures(grid, {})
    assert look().state[0] == "stopped"
    task = {"title": "cells", "total": 6, "first": 1, "done": 3, "since": 100}
    say(grid, now=120, tasks=[{"title": "mcpmix seed 0"}, task])
    assert (look().state, look().seconds_left) == (("running", ""), 30)
    say(grid, pid=2**22 + 1)
    assert look().state[0] == "stopped"
    say(grid, state="failed", message="train.epochs: too few")
    assert look().state == ("failed", "train.epochs: too few")
    say(grid, state="finished")
    assert look().state[0] == "stopped"  # cells are left
    listed = json.loads((grid / "cells.json").read_text())
    (grid / "cells.json").write_text(json.dumps(listed[:3]))
    assert look().state == ("finished", "")


def test_a_cell_that_was_trained_in_this_call_waits_for_its_evaluation(grid, look):
    shutil.copytree(grid / "cells/data/all/plain/net/segmenter/mcpmix/seed-0", grid / "x")
    say(grid, started=time.time() - 1000)
    (grid / "x" / "manifest.json").touch()
    (grid / "x").rename(grid / "cells/data/all/plain/net/segmenter/mcpmix-rla/seed-1")
    assert list(look().standings.values())[-1].note == "8/8"
    say(grid, started=time.time() + 1000)  # of other settings: it will be made again
    assert list(look().standings.values())[-1].state == "waiting"


def test_the_run_of_an_input_group_has_the_cells_as_its_trainings(runs, look):
    (run,) = Runs(runs).members(look())
    assert run.name == "bench/toy/data/all/plain"
    assert (run.arms, run.seeds) == (["full-sup", "mcpmix", "mcpmix-rla"], [0, 1])
    assert run.state == ("failed", "3 of 6 cells")
    assert [(stage.name, stage.note) for stage in run.stages[-2:]] == [
        ("segmenter", "3 of 6"),
        ("evaluation", "3 of 6"),
    ]
    assert [arm.label for arm in run.named_arms] == ["full-sup", "mcpmix <b>", "mcpmix-rla"]
    assert [row["epoch"] for row in new_rows(run, {})["mcpmix-rla:0"]["rows"]] == [1, 2]
    assert {arm for row in image_scores(run, "test", "dsc", "")["images"] for arm in row["values"]} == {
        "full-sup",
        "mcpmix",
    }
    assert segmenters_of(run)[2]["label"] == "bench/toy/data/all/plain: mcpmix <b>, seed 0"
    assert run.name not in [each.name for each in Runs(runs).all()]
    assert Runs(runs).get(run.id).lent.keys() == run.lent.keys()


def test_several_networks_are_told_apart(grid, look):
    listed = json.loads((grid / "cells.json").read_text())
    listed[0]["cell"]["segmenter"] = "other"
    (grid / "cells.json").write_text(json.dumps(listed))
    names = [name for name, _ in look().trainings("data/all/plain")]
    assert names[:2] == ["other/full-sup", "net/full-sup"]


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item.update(inputs="../../../outside"),
        lambda item: item.update(segmenter="../../../outside"),
        lambda item: item["cell"].update(dataset="../../../../outside"),
        lambda item: item.pop("epochs"),
    ],
)
def test_a_list_that_leads_elsewhere_or_is_damaged_shows_nothing(runs, grid, look, change):
    listed = json.loads((grid / "cells.json").read_text())
    change(listed[0])
    (grid / "cells.json").write_text(json.dumps(listed))
    assert (look().cells, Runs(runs).members(look())) == ([], [])
    write_failures(grid, {})
    assert look().state == ("stopped", "There is no list of its cells. The same command resumes it.")


def test_tables_are_laid_out_as_those_of_a_run(look):
    scores, pairs = look().tables()
    assert scores["title"] == "Ablation: data, 5 % labelled, tested on abroad"
    assert [row["metrics"]["dsc"]["best"] for row in scores["rows"]] == [False, True]
    assert pairs == {"title": "Synthetic images", "texts": [["pairs", "tried"], ["data/all/plain", "12"]]}


def test_a_verdict_is_found_in_its_run(runs, grid):
    grid.rename(runs / "trial" / "verdict")
    (found,) = Runs(runs).grids()
    assert found.name == "trial/verdict"
    assert [run.name for run in Runs(runs).all()] == ["trial"]


def test_the_pages_of_a_grid(own, grid):
    with own.client() as client:
        listing = client.get("/").text
        (identity,) = re.findall(r'href="/grids/(\w+)">bench/toy<', listing)
        assert "3 of 6" in listing
        page = client.get(f"/grids/{identity}").text
        assert page.index("TrainingError: nan &lt;script&gt;") < page.index("3 of 6 cells are finished")
        assert SCRIPT not in listing + page
        assert "55.50 ± 1.25" in page
        (run,) = set(re.findall(r'href="/runs/(\w+)/training"', page))
        for place in ("", "/pairs", "/training", "/results", "/flow", "/blind"):
            assert client.get(f"/runs/{run}{place}").status_code == 200, place
        assert f"/grids/{identity}" in client.get(f"/runs/{run}/results").text
        assert client.get(f"/api/runs/{run}/logs").json()["cells"]["mcpmix-rla:0"]["rows"][1]["epoch"] == 2
        assert "bench/toy/data/all/plain: full-sup, seed 0" in client.get("/try").text
        for path in ("/grids/x", "/grids/x/state", "/grids/x/page", f"/runs/{run}/report"):
            assert client.get(path).status_code == 404


def test_pages_that_runs_and_grids_have_made_can_run_nothing(own, grid):
    with own.client() as client:
        identity = re.findall(r'href="/grids/(\w+)"', client.get("/").text)[0]
        for path, text in ((f"/grids/{identity}/page", "all of it"), (f"/runs/{own.run}/report", "MCPMix")):
            answer = client.get(path)
            assert text in answer.text
            policy = answer.headers.get_list("content-security-policy")
            assert len(policy) == 1
            assert policy[0].startswith("sandbox; default-src 'none'")
            assert "script-src" not in policy[0]
            assert TOKEN not in answer.text
        (grid / "index.html").unlink()
        (grid / "index.html").symlink_to("/etc/passwd")
        assert client.get(f"/grids/{identity}/page").status_code == 404
