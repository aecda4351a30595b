import json
import sys

import pytest
from tests.helpers.finished_run import Outline
from tests.helpers.grids import Here
from tests.helpers.progress import Recorder

from mcpmix.bench.driver import Outcome
from mcpmix.bench.page import require_packages, write_results
from mcpmix.core.errors import DependencyError


@pytest.fixture(scope="module")
def written(finished):
    plan, outcome = finished
    engine = Here()
    page = write_results(plan, outcome, engine)
    assert engine.ran == ["gradients"]
    return plan, outcome, page.read_text(encoding="utf-8")


def test_one_page_with_every_table_and_figure_and_nothing_from_outside(written):
    _, _, text = written
    page = Outline(text)
    for title in (
        "Comparison with mixing-based methods",
        "Boundary sensitivity",
        "Ablation",
        "Banks of pairs",
    ):
        assert title in page.headings
    for title in (
        "Distribution of mixed and real images during training",
        "Share and weight that RLA learns, against priors and fixed schedules",
        "Methods side by side on the same test images",
        "Label efficiency",
        "Cost against gain",
        "Gradients at boundary pixels",
    ):
        assert title in page.headings
    assert "10 of 10 cells are finished" in page.text
    assert "failed" not in page.text
    assert len(page.ids) == len(set(page.ids))
    assert not page.all("script")
    assert not page.all("link")
    assert all(image["src"].startswith("data:") for image in page.all("img"))
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_every_table_in_four_files_and_every_figure_as_a_picture(written):
    plan, _, _ = written
    names = {table.name or table.kind for table in plan.grid.tables}
    found = {path.name for path in (plan.out / "tables").iterdir()}
    assert found == {f"{name}.{kind}" for name in names for kind in ("md", "tex", "csv", "json")}
    pictures = {path.name for path in (plan.out / "figures").iterdir()}
    assert pictures == {f"{figure.kind}.png" for figure in plan.grid.figures}


def test_tables_of_other_parts_are_about_other_images(written):
    plan, outcome, _ = written
    read = {
        name: json.loads((plan.out / f"tables/{name}.json").read_text()) for name in ("mixing", "transfer")
    }
    known = json.loads((plan.out / "tables/boundary.json").read_text())
    assert [table["blocks"][0]["images"] for table in read.values()] == [3 * 2, 2 + 2 + 2]
    assert known["blocks"][0]["images"] == 2  # one new frame of each of two training patients
    for cell, scored in outcome.cells.items():
        if cell.labels == "all":
            mean = scored.evaluations["test"].manifest["counts"]["dsc"]
            lines = read["mixing"]["blocks"][0]["lines"]
            spread = next(line for line in lines if line["method"] == cell.method)["spreads"]["dsc"]
            assert abs(mean - spread["mean"]) <= 2 * (spread["sd"] or 0) + 1e-9


def test_the_bank_of_pairs_is_described(written):
    plan, _, _ = written
    (facts,) = json.loads((plan.out / "tables/pairs.json").read_text()).values()
    assert (facts["tried"], facts["admitted"], facts["masks"]) == (8, 8, 4)
    assert "alignment" not in facts  # nobody judged them
    assert set(facts["kid"]) == {"to training", "to held-out", "training to held-out"}


def test_the_second_time_no_analysis_is_trained(written):
    plan, outcome, _ = written
    recorder = Recorder()
    write_results(plan, outcome, Here(), recorder)
    assert "analyse gradients" not in recorder.titles


def test_what_is_not_there_is_said(finished, tmp_path):
    plan, outcome = finished
    elsewhere = type(plan)(plan.grid, tmp_path / "empty", plan.groups, plan.cells, plan.transfer)
    elsewhere.out.mkdir()
    nothing = Outcome(outcome.groups, outcome.transfer, {}, {"a/cell": "DataError: no luck"})
    text = write_results(elsewhere, nothing, Here()).read_text(encoding="utf-8")
    page = Outline(text)
    assert "a/cell failed. DataError: no luck" in page.text
    assert "0 of 10 cells are finished" in page.text
    assert "No cell of this table is finished." in page.text
    assert "gates: no finished cell has what it shows" in page.text


def test_a_missing_package_is_told_before_anything_is_trained(finished, monkeypatch):
    plan, _ = finished
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(DependencyError, match=r"pip install 'mcpmix\[analysis\]'"):
        require_packages(plan)
    require_packages(type(plan)(plan.grid.model_copy(update={"figures": ()}), plan.out, {}, {}, {}))
