import json
from functools import partial

import pytest
from filelock import FileLock
from tests.helpers.grids import Here, fails_with_seed_0, toy_grid
from tests.helpers.progress import Recorder

from mcpmix.bench import cells as cells_module
from mcpmix.bench.driver import claimed, forecast, look, run_grid, status_rows
from mcpmix.bench.grid import expand
from mcpmix.bench.state import listed_cells, relative
from mcpmix.core.errors import ConfigError, StorageError, TrainingError
from mcpmix.core.stage_folder import MANIFEST
from mcpmix.segmenter import train


def small(make_config, place, **changes):
    """Real images alone: no generator, seconds."""
    parts = {
        "labels": ["all"],
        "cells": [{}],
        "transfer": {},
        "tables": [],
        "figures": [],
        "arms": ["full-sup"],
    }
    return expand(toy_grid(make_config, place, **(parts | changes)), place / "toy")


def test_every_cell_is_trained_and_evaluated_once(finished):
    plan, outcome = finished
    assert outcome.cells.keys() == plan.cells.keys()
    assert len(plan.cells) == 4 * 2 + 2
    for cell, scored in outcome.cells.items():
        assert scored.segmenter.folder == plan.home(cell).stage("segmenter")
        assert set(scored.evaluations) == {"test", "elsewhere"}
        assert scored.evaluations["test"].manifest["counts"]["images"] == 3 * 2
        assert scored.evaluations["elsewhere"].manifest["counts"]["images"] == 2 + 2 + 2


def test_a_second_run_trains_nothing_and_finds_the_same(finished):
    plan, outcome = finished
    engine, before = Here(), {path: path.stat().st_mtime_ns for path in plan.out.rglob(MANIFEST)}
    again = run_grid(plan, engine)
    assert [name for name in engine.ran if "seed-" in name] == []
    assert {cell: scored.evaluations["test"].digest for cell, scored in again.cells.items()} == {
        cell: scored.evaluations["test"].digest for cell, scored in outcome.cells.items()
    }
    assert before == {path: path.stat().st_mtime_ns for path in plan.out.rglob(MANIFEST)}


def test_looking_finds_what_a_run_has_made_without_any_work(finished):
    plan, outcome = finished
    found = look(plan)
    assert found.cells.keys() == outcome.cells.keys()
    assert found.groups.keys() == plan.groups.keys()
    assert found.transfer["elsewhere"].digest == outcome.transfer["elsewhere"].digest
    heading, *rows = status_rows(plan)
    assert heading[-3:] == ["finished", "begun", "failed"]
    assert {tuple(row[-3:]) for row in rows} == {("2/2", "", "")}
    assert "10 cells: 10 finished and reused, 0 to train" in forecast(plan)[0]


def test_a_changed_setting_costs_only_the_cells_that_depend_on_it(finished):
    plan, _ = finished
    base = plan.grid.base | {"rla": plan.grid.base["rla"] | {"fixed_rho": 0.4}}
    changed = expand(plan.grid.model_copy(update={"base": base}), plan.out)
    left = set(changed.cells) - set(look(changed).cells)
    assert {cell.method for cell in left} == {"mcpmix"}
    base = plan.grid.base | {"seed": 8}
    assert look(expand(plan.grid.model_copy(update={"base": base}), plan.out)).cells == {}


def test_the_forecast_before_anything_is_there(make_config, tmp_path):
    plan = small(make_config, tmp_path)
    first, groups, disk, time = forecast(plan)
    assert first == "2 cells: 0 finished and reused, 2 to train (0 of them begun)"
    assert "1 input groups: 0 ready, 1 to make\n  data/all/generator" in groups
    assert "GB" in disk
    assert "of training" in time
    assert not plan.out.exists()


def test_a_failed_cell_is_reported_and_the_others_go_on(make_config, tmp_path):
    plan = small(make_config, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "run", fails_with_seed_0(train.run))
        progress = Recorder()
        outcome = run_grid(plan, Here(), progress)
    (name,) = outcome.failures
    assert name == "data/all/real/segmenter/full-sup/seed-0"
    assert outcome.failures[name] == "TrainingError: The loss is nan."
    assert f"{name} failed: The loss is nan." in progress.lines
    assert [cell.seed for cell in outcome.cells] == [1]
    home = plan.home(next(iter(outcome.cells)))
    assert [item.segmenter for item in listed_cells(plan.out)] == [
        None,
        relative(plan.out, home.stage("segmenter")),
    ]
    assert status_rows(plan)[1][-3:] == ["1/2", "", "1"]

    engine = Here()
    assert run_grid(plan, engine).failures == {}
    assert [task for task in engine.ran if "seed-" in task] == [name]
    assert status_rows(plan)[1][-3:] == ["2/2", "", ""]


def test_a_stopped_training_goes_on_where_it_was(make_config, tmp_path, monkeypatch):
    plan = small(make_config, tmp_path, seeds=[0])
    epoch, begun = train.Trainer._run_epoch, []

    def stop(self, number):
        begun.append(number)
        if begun == [1, 2]:
            raise TrainingError("killed")
        return epoch(self, number)

    monkeypatch.setattr(train.Trainer, "_run_epoch", stop)
    assert len(run_grid(plan, Here()).failures) == 1
    assert status_rows(plan)[1][-3:] == ["0/1", "seed 0: 1/2", "1"]
    assert "(1 of them begun)" in forecast(plan)[0]
    assert run_grid(plan, Here()).failures == {}
    assert begun == [1, 2, 2]


def test_inputs_that_fail_take_only_their_cells_with_them(make_config, tmp_path):
    lost = {"data": {"phantom": {"train_patients": 0}}}
    with pytest.raises(ConfigError, match="train_patients"):
        small(make_config, tmp_path, datasets={"fine": {}, "lost": lost})
    (tmp_path / "set").mkdir()
    lost = {"data": {"source": "folder", "images": str(tmp_path / "set"), "masks": str(tmp_path / "set")}}
    outcome = run_grid(small(make_config, tmp_path, datasets={"fine": {}, "lost": lost}, seeds=[0]), Here())
    assert [cell.dataset for cell in outcome.cells] == ["fine"]
    assert "DataError" in outcome.failures["inputs lost/all/generator"]
    assert (
        "its inputs lost/all/generator failed" in outcome.failures["lost/all/real/segmenter/full-sup/seed-0"]
    )


def test_a_folder_belongs_to_one_grid_and_one_driver(make_config, tmp_path):
    plan = small(make_config, tmp_path)
    with claimed(plan), pytest.raises(StorageError, match=r"toy is in use by another run"), claimed(plan):
        pass
    assert json.loads((plan.out / "status.json").read_text())["state"] == "finished"
    assert json.loads((plan.out / "grid.json").read_text())["name"] == "toy"
    with (
        FileLock(plan.out.with_name(".toy.lock")),
        pytest.raises(StorageError, match="in use"),
        claimed(plan),
    ):
        pass
    other = expand(plan.grid.model_copy(update={"name": "other"}), plan.out)
    with pytest.raises(StorageError, match=r"holds the results of the grid toy, not of other.*--out"):
        claimed(other).__enter__()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match="holds no results of a grid"):
        claimed(expand(plan.grid, tmp_path / "mine")).__enter__()


def test_a_share_of_the_labels_is_counted_when_the_images_are(make_config, tmp_path):
    from mcpmix.data.phantom_set import write_phantom_set

    counts = {"train_patients": 4, "validation_patients": 1, "test_patients": 1, "frames_per_patient": 1}
    write_phantom_set(tmp_path / "set", **counts, test_frames_per_patient=1, seed=5, size=32)
    data = {"source": "folder", "images": str(tmp_path / "set/images"), "masks": str(tmp_path / "set/masks")}
    plan = small(make_config, tmp_path, datasets={"own": {"data": data}}, labels=[0.5], seeds=[0])
    outcome = run_grid(plan, Here())
    assert outcome.failures == {}
    (made,) = outcome.groups.values()
    split = json.loads((plan.out / "inputs/own/50pc/generator-split/dataset" / MANIFEST).read_text())
    assert made.inputs["full-sup"].dataset.manifest["counts"]["train"] == round(split["counts"]["train"] / 2)
    assert look(plan).cells.keys() == plan.cells.keys()


def test_a_segmenter_of_the_group_s_own_run_is_taken_as_it_is(make_config, tmp_path):
    plan = small(make_config, tmp_path, seeds=[0])
    ((cell, task),) = plan.cells.items()
    made = cells_module.make_group(plan.groups[task.group], None)
    from mcpmix.core.device import setup

    runtime = setup("cpu", "float32", 1, True)
    place = task.config.folder / "segmenter" / "full-sup" / "seed-0"
    trained = train.run(task.config, made.inputs["full-sup"], "full-sup", 0, place, runtime)
    run = partial(cells_module.run_cell, task, 0, made, {}, plan.home(cell), runtime)
    assert run().segmenter.folder == trained.folder
    assert not plan.home(cell).stage("segmenter").exists()
