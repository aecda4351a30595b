"""What `benchmarks/demo.py` writes into the README, from a finished run."""

import importlib
import json
from pathlib import Path

import pytest
from tests.helpers.finished_run import FinishedRun

from mcpmix.report.tables import spread_text


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("demo")


def test_unseen_and_known_patients_have_their_tables(demo, tmp_path):
    run = FinishedRun(tmp_path)
    table = json.loads((run.report() / "table.json").read_text(encoding="utf-8"))
    text = demo.markdown(demo.collect(run.config.folder, [], None))
    unseen, _, rest = text.partition("On 4 new frames of the annotated patients:")
    known, _, again = rest.partition("DSC on the unseen patients of this and of further runs")
    assert "4 annotated frames" in unseen
    assert "On 6 frames of unseen patients:" in unseen
    for place, part in ((unseen, table), (known, table["known"])):
        for row in part["rows"]:
            figure = spread_text(row["metrics"]["dsc"]["spread"])
            assert figure in place
            assert figure in again
    assert again.count("| seed=0 |") == 2
