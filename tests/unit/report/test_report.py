"""The last stage: its files, its marks, and what it depends on."""

import json
import re

import pytest
from tests.helpers.finished_run import ARMS, FinishedRun

from mcpmix.core.errors import DataError
from mcpmix.core.stage_folder import Artifact
from mcpmix.metrics import score_keys
from mcpmix.report import report


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return FinishedRun(tmp_path_factory.mktemp("runs"))


def test_table_files(run):
    made = run.report()
    content = json.loads((made / "table.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert content["run"] == "trial"
    assert [row["arm"] for row in content["rows"]] == list(ARMS)
    assert content["images"] == 6
    markdown = (made / "table.md").read_text(encoding="utf-8")
    assert markdown.startswith("# trial\n")
    for heading in (
        "| Recall ↑ (%) | Precision ↑ (%) | DSC ↑ (%) | pooled mIoU ↑ (%) | pooled DSC ↑ (%) |",
        "| HD95 ↓ (px) | ASSD ↓ (px) | BF1@2 ↑ (%) | BF1@5 ↑ (%) | BF1@10 ↑ (%) | BIoU ↑ (%) |",
        "| BP@2 ↑ (%) | BR@2 ↑ (%) | BP@5 ↑ (%) | BR@5 ↑ (%) | BP@10 ↑ (%) | BR@10 ↑ (%) |",
    ):
        assert heading in markdown
    keys = {column["key"] for column in content["columns"]}
    assert keys == {*score_keys(run.config.evaluation.tolerances), "pooled_miou", "pooled_dsc"}
    assert all(row["metrics"].keys() == keys for row in content["rows"])
    assert "No value was undefined (18 for each arm and metric)." in markdown


def test_the_artefact_is_reusable_and_the_page_the_same_each_time(run, tmp_path):
    made = run.report()
    again = report.run(
        run.config, run.dataset, run.pairs, run.segmenters, run.evaluations, tmp_path / "again"
    )
    wanted = report.key(run.config, run.dataset, run.pairs, run.evaluations)
    assert made.digest == wanted.digest
    assert made.manifest["counts"] == {"arms": 3, "seeds": 3, "images": 6}
    for name in ("report.html", "table.json", "table.md"):
        assert (made / name).read_bytes() == (again / name).read_bytes()


def test_a_leaking_split_is_marked_in_page_table_and_manifest(tmp_path):
    run = FinishedRun(tmp_path)
    manifest = {**run.dataset.manifest, "counts": {"leaks": "frames of one video"}}
    made = run.report(dataset=Artifact(run.dataset.folder, manifest))
    for name in ("report.html", "table.md"):
        text = (made / name).read_text(encoding="utf-8")
        assert "this split leaks (frames of one video), so the figures are too good" in text
    assert "none of whose images" not in (made / "report.html").read_text(encoding="utf-8")
    assert made.manifest["counts"]["leaks"] == "frames of one video"
    assert "unseen " not in (made / "report.html").read_text(encoding="utf-8").lower()
    assert json.loads((made / "table.json").read_text())["leaks"] == "frames of one video"


def test_test_images_that_networks_have_seen_are_marked_once(tmp_path):
    run = FinishedRun(tmp_path)
    why = "2 of 4 test images were seen by the segmenter"
    for name, item in run.evaluations.items():
        counts = {**item.manifest.get("counts", {}), "leaks": why}
        run.evaluations[name] = Artifact(item.folder, {**item.manifest, "counts": counts})
    made = run.report()
    assert json.loads((made / "table.json").read_text())["leaks"] == why
    assert f"this split leaks ({why})" in (made / "table.md").read_text(encoding="utf-8")


def test_the_key_changes_with_an_evaluation_and_with_the_configuration(run):
    inputs = (run.dataset, run.pairs)
    base = report.key(run.config, *inputs, run.evaluations)
    fewer = dict(list(run.evaluations.items())[:-1])
    renamed = run.config.model_copy(update={"name": "another"})
    keys = [base, report.key(run.config, *inputs, fewer), report.key(renamed, *inputs, run.evaluations)]
    keys.append(report.key(run.config, run.dataset, None, run.evaluations))
    assert len({key.digest for key in keys}) == 4


@pytest.mark.parametrize("name", ["summary.json", "scores.csv", "predictions/p002_f00.png"])
def test_a_damaged_evaluation_is_named(tmp_path, name):
    run = FinishedRun(tmp_path, ["train.seeds=[0]", "data.phantom.test_patients=1"])
    path = run.evaluations["mcpmix", 0] / name
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=re.escape(str(path))):
        run.report()
