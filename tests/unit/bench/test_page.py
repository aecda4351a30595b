import json
import sys
from dataclasses import replace

import pytest
from tests.helpers.finished_run import Outline
from tests.helpers.grids import Here
from tests.helpers.progress import Recorder

from mcpmix.bench.page import require_packages, to_latex, to_markdown, write_results
from mcpmix.bench.tables import Item, Sheet
from mcpmix.core.errors import DependencyError


@pytest.fixture(scope="module")
def written(finished):
    plan, outcome = finished
    engine = Here()
    page = write_results(outcome, engine)
    assert engine.ran == ["gradients"]
    return plan, outcome, page.read_text(encoding="utf-8")


def test_one_page_with_every_table_and_figure_and_nothing_from_outside(written):
    _, _, text = written
    page = Outline(text)
    for title in (
        "Comparison with mixing-based methods",
        "Boundary sensitivity",
        "Ablation",
        "Synthetic images",
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
    _, outcome, _ = written
    recorder = Recorder()
    write_results(outcome, Here(), recorder)
    assert "analyse gradients" not in recorder.titles


def test_what_is_not_there_is_said(finished, tmp_path):
    plan, outcome = finished
    elsewhere = replace(plan, out=tmp_path)
    nothing = replace(outcome, plan=elsewhere, cells={}, failures={"a/cell": "DataError: no luck"})
    text = write_results(nothing, Here()).read_text(encoding="utf-8")
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
    require_packages(replace(plan, grid=plan.grid.model_copy(update={"figures": ()})))


SHEET = Sheet(
    "Title & more",
    ["method", "DSC ↑", "p"],
    [
        [Item("set_1: 3 images", "head")],
        [Item("a|b"), Item("70.0 ± 1.0", "best"), Item("−1")],
        [Item("c"), Item("60.0 ± 1.0", "second"), Item("50 %", "theirs")],
        [Item("set_2", "head")],
        [Item("d"), Item(""), Item("–")],
    ],
    ["A note, 95 %."],
)


def test_markdown():
    lines = to_markdown(SHEET).splitlines()
    assert lines[0] == "### Title & more"
    table = [line for line in lines if line.startswith("|")]
    assert table[1] == "| --- | ---: | ---: |"
    assert table[2] == "| **set_1: 3 images** |  |  |"
    assert table[3] == r"| a\|b | **70.0 ± 1.0** | −1 |"
    assert table[4] == "| c | <u>60.0 ± 1.0</u> | *50 %* |"
    assert lines[-1] == "A note, 95 %."


def test_latex_for_booktabs():
    text = to_latex(SHEET, "mixing")
    assert r"\caption{Title \& more}" in text
    assert r"\label{tab:mixing}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"method & DSC $\uparrow$ & p \\" in text
    assert r"\multicolumn{3}{l}{\textbf{set\_1: 3 images}} \\" in text
    assert r"a|b & \textbf{70.0 $\pm$ 1.0} & $-$1 \\" in text
    assert r"c & \underline{60.0 $\pm$ 1.0} & \textit{50 \%} \\" in text
    for rule, count in ((r"\toprule", 1), (r"\bottomrule", 1), (r"\midrule", 4)):
        assert text.count(rule) == count
    assert text.count("{") == text.count("}")
