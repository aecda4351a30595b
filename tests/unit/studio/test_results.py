import csv
import json

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.studio.results import image_scores, new_rows
from mcpmix.studio.runs import Runs


@pytest.fixture
def run(runs):
    return Runs(runs).all()[0]


def test_logs_are_read_on_from_where_the_last_answer_ended(run):
    first = new_rows(run, {})
    assert set(first) == {f"{arm}:{seed}" for arm in run.arms for seed in run.seeds}
    rows = first["mcpmix-rla:1"]["rows"]
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[0]["discrepancy"] is None  # NaN is not JSON
    assert [row["epoch"] for row in rows if "dsc" in row] == [4, 8]
    marks = {name: answer["mark"] for name, answer in first.items()}
    again = new_rows(run, marks)
    assert all(not answer["rows"] and not answer["fresh"] for answer in again.values())
    log = run.folder / "segmenter" / "mcpmix-rla" / "seed-1" / "log.jsonl"
    with log.open("a") as file:
        file.write('{"epoch": 9, "s": 0.25}\n{"epoch": 10, ')
    grown = new_rows(run, marks)["mcpmix-rla:1"]
    assert (grown["rows"], grown["fresh"]) == ([{"epoch": 9, "s": 0.25}], False)
    json.dumps(first, allow_nan=False)


def test_a_rewritten_log_starts_over(run):
    marks = {name: answer["mark"] for name, answer in new_rows(run, {}).items()}
    log = run.folder / "segmenter" / "full-sup" / "seed-0" / "log.jsonl"
    rows = log.read_text().splitlines(keepends=True)
    new = log.with_name("log.tmp")
    new.write_text("".join(rows[:2]))
    new.replace(log)  # as a resumed training does
    found = new_rows(run, marks)["full-sup:0"]
    assert found["fresh"]
    assert [row["epoch"] for row in found["rows"]] == [1, 2]


@pytest.mark.parametrize("mark", ["", "x", "1-2-3", "9-999999999", "-"])
def test_a_mark_that_is_none_starts_over(run, mark):
    assert new_rows(run, {"full-sup:0": mark})["full-sup:0"]["fresh"]


def test_a_training_under_way_is_shown(run):
    cell = run.folder / "segmenter" / "mcpmix" / "seed-0"
    (cell / "manifest.json").unlink()
    cell.rename(cell.with_name("seed-0.partial"))
    assert len(new_rows(run, {})["mcpmix:0"]["rows"]) == 8


@pytest.mark.parametrize("part", ["test", "known"])
def test_scores_are_those_of_the_tables(run, part):
    found = image_scores(run, part, "dsc", "")
    name = "scores.csv" if part == "test" else "scores-known.csv"
    expected = {}
    for arm in run.arms:
        for seed in run.seeds:
            path = run.folder / "evaluation" / arm / f"seed-{seed}" / name
            for row in csv.DictReader(path.read_text().splitlines()):
                expected.setdefault((row["id"], arm), []).append(float(row["dsc"]))
    assert {(row["id"], arm): value for row in found["images"] for arm, value in row["values"].items()} == {
        key: pytest.approx(np.mean(values)) for key, values in expected.items()
    }
    assert "hd95" in found["metrics"]
    one = image_scores(run, part, "dsc", "1")["images"][0]
    assert one["values"]["mcpmix"] == pytest.approx(expected[one["id"], "mcpmix"][1])


def test_an_undefined_score_is_null_and_wrong_names_are_named(run):
    path = run.folder / "evaluation" / "mcpmix" / "seed-0" / "scores.csv"
    lines = path.read_text().splitlines()
    column = lines[0].split(",").index("dsc")
    cells = lines[1].split(",")
    cells[column] = "nan"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    assert image_scores(run, "test", "dsc", "0")["images"][0]["values"]["mcpmix"] is None
    with pytest.raises(DataError, match="'train'; expected one of test, known"):
        image_scores(run, "train", "dsc", "")
    with pytest.raises(DataError, match=r"'dice'; expected one of .*dsc"):
        image_scores(run, "test", "dice", "")
