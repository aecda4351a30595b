import base64
import csv
import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.phantom import render
from mcpmix.segmenter.predict import load_segmenter
from mcpmix.studio.reading import AbsentError
from mcpmix.studio.runs import Runs
from mcpmix.studio.trainings import Predictions, image_scores, new_rows, segmenters_of


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


def encoded(pixels, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **{"format": "PNG", **options})
    return buffer.getvalue()


def decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


@pytest.fixture(scope="module")
def runs_of(studio_run):
    return Runs(studio_run.config.output)


def test_the_answer_is_what_the_segmenter_says(runs_of, studio_run):
    image = np.ascontiguousarray(render(3, 7, 0, 64).image[:, :50])
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    found = Predictions(runs_of).predict(name, encoded(image), "x.png")
    expected = load_segmenter(studio_run.config.folder / "segmenter" / "full-sup" / "seed-0").predict(image)
    assert (found["width"], found["height"]) == (50, 64)
    assert np.array_equal(decoded(found["mask"]), (expected >= 0.5) * 255)
    assert np.abs(decoded(found["probabilities"]) / 255 - expected).max() <= 0.5 / 255 + 1e-6
    assert found["share"] == pytest.approx((expected >= 0.5).mean())


def bomb():
    """A PNG of 900 million pixels in a few kilobytes: its head is all that anybody should read."""
    content = bytearray(encoded(np.zeros((1, 1), np.uint8)))
    content[16:24] = (30_000).to_bytes(4) * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Nothing was sent"),
        (b"<svg onload=alert(1)>", "not a PNG, JPEG, TIFF or BMP"),
        (b"GIF89a" + bytes(100), "not a PNG"),
        (encoded(np.zeros((40, 40, 3), np.uint8))[:60], "cannot be read"),
        (encoded(np.zeros((4, 4), np.uint16)), "more than 8 bits"),
        (bomb(), "million pixels"),
    ],
)
def test_what_is_not_an_image_is_refused_in_the_usual_words(runs_of, content, message):
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    with pytest.raises(DataError, match=message):
        Predictions(runs_of).predict(name, content, "../../x.png")


def test_the_limit_is_stricter_than_that_of_files(runs_of, monkeypatch):
    monkeypatch.setattr("mcpmix.studio.trainings._MOST_PIXELS", 99)
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    with pytest.raises(DataError, match="larger than 0 million"):
        Predictions(runs_of).predict(name, encoded(np.zeros((10, 10, 3), np.uint8)), "x.png")


def test_unknown_segmenters_are_not_looked_for(runs_of):
    for name in ("", "x:full-sup:0", f"{runs_of.all()[0].id}:../..:0", runs_of.all()[0].id):
        with pytest.raises(AbsentError):
            Predictions(runs_of).predict(name, b"x", "x.png")


def test_uploads_leave_nothing_behind(own):
    before = sorted(own.runs.rglob("*"))
    with own.client() as client:
        for content in (encoded(render(3, 7, 0, 32).image), bomb()):
            client.post(f"/api/predict?segmenter={own.run}:full-sup:0&name=x.png", content=content)
    assert sorted(own.runs.rglob("*")) == before
