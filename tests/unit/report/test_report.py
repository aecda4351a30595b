"""The last stage: its files, its marks, what it depends on, and the page of a small run."""

import base64
import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from tests.helpers.finished_run import ARMS, FinishedRun, Outline

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import DataError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.sample import read_mask
from mcpmix.generator.ledger import Review, read_rows
from mcpmix.metrics import score_keys
from mcpmix.mixing.mcpmix import cosine_decay
from mcpmix.report import report

COUNTS = {
    "images": 30,
    "parents": 4,
    "tries": 41,
    "rejected": {"alignment": 10, "copy": 1},
    "scores": {
        "alignment": 0.61,
        "alignment_tried": 0.5,
        "alignment_real": 0.66,
        "distance_source": 0.9,
        "distance_train": 0.8,
        "distance_held_out": None,
        "diversity": 0.7,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return FinishedRun(tmp_path_factory.mktemp("runs"), warnings=["rho has collapsed <soon>"])


@pytest.fixture(scope="module")
def page(run):
    return run.page()


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


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


def test_known_groups_have_a_table_beside_that_of_unseen_ones(run, outline, tmp_path):
    made = run.report()
    known = json.loads((made / "table.json").read_text(encoding="utf-8"))["known"]
    means = {}
    for (arm, seed), evaluation in run.evaluations.items():
        with (evaluation / "scores-known.csv").open(encoding="utf-8") as file:
            scores = {row["id"]: float(row["dsc"]) for row in csv.DictReader(file)}
        assert scores.keys() == {record.id for record in run.index.part("known")}
        means[arm, str(seed)] = np.mean(list(scores.values()))
    for row in known["rows"]:
        for seed, value in row["metrics"]["dsc"]["values"].items():
            assert value == pytest.approx(means[row["arm"], seed])
    text = (made / "table.md").read_text(encoding="utf-8")
    unseen, _, rest = text.partition("## Results on new images of known patients\n")
    assert "## Results on unseen patients\n" in unseen
    assert unseen.count("| DSC ") == rest.count("| DSC ") == 2
    spread = known["rows"][2]["metrics"]["dsc"]["spread"]
    figure = f"{spread['mean']:.2f} ± {spread['sd']:.2f}"
    assert figure in rest
    assert figure in outline.text
    assert "mean over 4 new images of 2 known patients" in outline.text
    assert "known 4 images of 2 patients" in outline.text
    assert re.search(
        r"On new images of known patients: \+ MCPMix \+ RLA is .* in 2 of 2 known patients\.", outline.text
    )

    alone = FinishedRun(tmp_path, ["data.phantom.known_frames_per_patient=0"])
    page = Outline(alone.page())
    assert "known" not in json.loads((alone.report() / "table.json").read_text(encoding="utf-8"))
    assert "known patients" not in page.text
    assert page.headings[:2] == ["Results on unseen patients", "Boundaries"]


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
    review = Review((), reviewers=1, accepted=2)
    keys.append(report.key(run.config, *inputs, run.evaluations, review))
    assert len({key.digest for key in keys}) == 5


def test_the_page_says_what_people_have_judged_and_shows_what_training_took(tmp_path):
    run = FinishedRun(tmp_path)
    assert "reviewer" not in run.page()
    first = read_rows(run.pairs.folder)[0]["file"]
    review = Review(((first, False),), reviewers=2, accepted=3, rejected=1)
    page = Outline(run.page(review=review))
    assert "4 counterparts were judged by 2 reviewers: 3 accepted, 1 rejected." in page.text
    assert "1 of the admitted were left out" in page.text
    assert "all are used" not in page.text


@pytest.mark.parametrize("name", ["summary.json", "scores.csv", "predictions/p002_f00.png"])
def test_a_damaged_evaluation_is_named(tmp_path, name):
    run = FinishedRun(tmp_path, ["train.seeds=[0]", "data.phantom.test_patients=1"])
    path = run.evaluations["mcpmix", 0] / name
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=re.escape(str(path))):
        run.report()


def test_the_page_needs_neither_network_nor_scripts(page, outline):
    assert not outline.all("script")
    assert not outline.all("link")
    assert not re.search(r"@import|url\((?!#)", page)
    sources = [attrs[name] for _, attrs in outline.elements for name in ("src", "href") if name in attrs]
    outside = [source for source in sources if not source.startswith(("data:", "#"))]
    assert outside == []
    policy = next(attrs for attrs in outline.all("meta") if "http-equiv" in attrs)
    assert "default-src 'none'" in policy["content"]
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_every_picture_has_a_text_and_can_be_decoded(outline):
    images = outline.all("img")
    assert len(images) == 4 * (8 + 3) + 6 * 4  # strips of s = 0 ... 0.7 with 3 counterparts; cases
    for attrs in images:
        assert attrs["alt"]
        kind, data = attrs["src"].split(",", 1)
        assert kind == "data:image/jpeg;base64"
        Image.open(io.BytesIO(base64.b64decode(data))).load()
    charts = [attrs for attrs in outline.all("div") if attrs.get("class") == "chart"]
    assert len(charts) == 2 + 3 + 3
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)


def test_ids_are_unique(outline):
    assert outline.ids
    assert len(outline.ids) == len(set(outline.ids))


def test_sections_come_in_their_order(outline):
    assert outline.headings == [
        "Results on unseen patients",
        "Results on new images of known patients",
        "Boundaries",
        "Boundaries, known patients",
        "Unseen patients, one by one",
        "Real, mixed, synthetic: one mask",
        "What + MCPMix + RLA learnt: share, weight, discrepancy",
        "Training",
        "Predictions on test images",
        "Warnings",
        "Provenance",
    ]


def test_figures_of_the_page_are_those_of_the_evaluations(run, outline):
    """An independent way to the table: from scores.csv and predictions, with NumPy."""
    values, pooled = {}, {}
    for (arm, seed), evaluation in run.evaluations.items():
        records = run.index.part("test")
        truth = np.stack([read_mask(record.mask) > 0 for record in records])
        found = np.stack([read_mask(evaluation / f"predictions/{record.id}.png") > 0 for record in records])
        pooled[arm, seed] = 200 * (truth & found).sum() / (truth.sum() + found.sum())
        with (evaluation / "scores.csv").open(encoding="utf-8") as file:
            values[arm, seed] = np.mean([float(row["dsc"]) for row in csv.DictReader(file)])
    means, pools = (
        {arm: [v[arm, k] for k in run.config.train.seeds] for arm in ARMS} for v in (values, pooled)
    )
    for seeds in (*means.values(), *pools.values()):
        assert f"{np.mean(seeds):.2f} ± {np.std(seeds, ddof=1):.2f}" in outline.text
    gain = np.subtract(means["mcpmix-rla"], means["full-sup"])
    assert gain.mean() > 0
    assert (
        f"+ MCPMix + RLA is {gain.mean():.2f} ± {gain.std(ddof=1):.2f} points of DSC ahead of Full-Sup "
        "(mean ± standard deviation of the difference over 3 seeds): ahead in 3 of 3 seeds and in 3 of 3 "
        "test patients."
    ) in outline.text
    assert "3 seeds are few" in outline.text


def test_sizes_steps_warnings_and_curves_are_told(outline):
    assert "train 4 images of 2 patients" in outline.text
    assert "validation 2 images of 1 patient " in outline.text
    assert "test 6 images of 3 patients" in outline.text
    assert "the same 144 optimiser steps with 8 real images each" in outline.text
    assert "mean over 6 test images of 3 patients" in outline.text
    assert "+ MCPMix + RLA, seed 2 : rho has collapsed <soon>" in outline.text
    assert "Full-Sup, seed" not in outline.text
    first, last = cosine_decay(1, 12), cosine_decay(12, 12)
    assert f"share s from {0.35 * first:.3g} to {0.35 * last:.3g}" in outline.text


def test_names_of_users_are_escaped(page):
    assert "<soon>" not in page
    assert "&lt;soon&gt;" in page


def test_provenance_names_all_that_was_read(run, outline):
    artifacts = [run.dataset, run.pairs, *run.segmenters.values(), *run.evaluations.values()]
    assert all(artifact.digest in outline.text for artifact in artifacts)
    assert "evaluation/mcpmix-rla/seed-2" in outline.text
    assert f"torch {run.dataset.manifest['versions']['torch']}" in outline.text
    assert outline.text.count("Apache-2.0, trained by this project on phantom images") == 4
    assert "validate_every: 4" in outline.text


def test_a_segmenter_without_weights_was_trained_from_scratch(tmp_path):
    text = Outline(FinishedRun(tmp_path, ["train.seeds=[0]", "segmenter.weights=null"]).page()).text
    assert "trained from scratch" in text
    assert text.count("Apache-2.0, trained by this project on phantom images") == 3


def test_an_arm_behind_is_told_in_the_same_words(tmp_path):
    run = FinishedRun(tmp_path, ["train.seeds=[0,1]"], skill={"full-sup": 1, "mcpmix": 2, "mcpmix-rla": 3})
    text = Outline(run.page()).text
    verdict = re.search(
        r"\+ MCPMix \+ RLA is (\S+) ± (\S+) points of DSC behind Full-Sup \(mean ± standard "
        r"deviation of the difference over 2 seeds\): ahead in 0 of 2 seeds and in 0 of 3",
        text,
    )
    assert verdict is not None
    rows = json.loads((run.report() / "table.json").read_text(encoding="utf-8"))["rows"]
    delta = next(row for row in rows if row["arm"] == "mcpmix-rla")["metrics"]["dsc"]["delta"]
    assert float(verdict[1]) == pytest.approx(-delta["mean"], abs=0.005)


def test_one_arm_with_one_seed_and_no_pairs(tmp_path):
    run = FinishedRun(tmp_path, ["train.arms=[full-sup]", "train.seeds=[7]"])
    outline = Outline(run.page(pairs=None))
    assert "±" not in outline.text
    assert "One seed says nothing about chance" not in outline.text  # nothing is compared
    assert "ahead" not in outline.text.partition("Provenance")[0]  # a setting has that name
    assert "There is no bank of pairs" in outline.text
    assert "With seed 7, chosen by the DSC:" in outline.text
    assert "What" not in " ".join(outline.headings)
    assert "The trainings gave no warnings." in outline.text


def test_the_tail_of_a_run_and_its_own_tolerances_are_shown(tmp_path):
    run = FinishedRun(tmp_path, ["train.tail_epochs=3", "evaluation.tolerances=[1,3]", "train.seeds=[0]"])
    outline = Outline(run.page())
    assert all(f"{name}@{t}" in outline.text for name in ("BP", "BR", "BF1") for t in (1, 3))
    assert "BF1@2" not in outline.text
    assert "One seed says nothing about chance" in outline.text


def test_own_images_without_groups_come_with_a_caution(tmp_path, run):
    own = ["data.source=folder", "data.images=pictures", "data.masks=masks"]
    tree = run.config.model_dump(mode="json") | {"output": str(tmp_path)}
    config = resolve_config(tree, own)
    made = report.run(config, run.dataset, run.pairs, run.segmenters, run.evaluations, tmp_path / "report")
    text = Outline((made / "report.html").read_text(encoding="utf-8")).text
    assert "No groups were given, so every image is its own" in text
    assert "Results on unseen groups" in text


def test_trainings_of_different_length_are_called_unfair(tmp_path):
    run = FinishedRun(tmp_path, ["train.seeds=[0]"])
    longer = run.segmenters["mcpmix", 0]
    longer.manifest["counts"]["steps"] = 999
    text = Outline(run.page()).text
    assert "the comparison is not fair. Full-Sup: 144; + MCPMix: 999; + MCPMix + RLA: 144." in text
    assert "144 to 999" in text


JUDGED = [
    "30 counterparts of 4 masks were admitted, of 41 images tried",
    "alignment 10, copy 1",
    "admitted 0.61, of all tried 0.50; the same judge reaches 0.66",
    "held-out image unknown",
    "counterparts of one mask 0.70",
]


@pytest.mark.parametrize(
    ("counts", "told"),
    [(COUNTS, JUDGED), ({}, ["12 counterparts of 4 masks; admission judged none, all are used."])],
)
def test_the_bank_is_told_in_numbers_and_reasons(run, tmp_path, counts, told):
    folder = tmp_path / "pairs"
    shutil.copytree(run.pairs.folder, folder)
    Image.new("RGB", (8, 8)).save(folder / "sheet.png")
    manifest = {**run.pairs.manifest, "counts": run.pairs.manifest["counts"] | counts}
    pairs = Artifact(folder, manifest)
    made = report.run(run.config, run.dataset, pairs, run.segmenters, run.evaluations, tmp_path / "report")
    text = Outline((made / "report.html").read_text(encoding="utf-8")).text
    assert [part for part in told if part not in text] == []
