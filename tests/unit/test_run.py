import json

import numpy as np
import pytest
from PIL import Image
from tests.architecture.test_imports import loaded_by
from tests.helpers.progress import Recorder

from mcpmix.core.errors import DataError
from mcpmix.core.files import file_digest
from mcpmix.core.stage_folder import MANIFEST
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import matches
from mcpmix.run import run
from mcpmix.segmenter.predict import load_segmenter


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """One whole run, shared by the tests that only look at it."""
    config = make_config(tmp_path_factory.mktemp("runs"))
    run(config)
    return config


def test_every_stage_leaves_a_manifest(finished):
    folder = finished.folder
    for stage in ("dataset", "depth", "generator", "pairs", "report", "segmenter/mcpmix-rla/seed-0"):
        manifest = json.loads((folder / stage / MANIFEST).read_text())
        assert len(manifest["digest"]) == 64
        assert manifest["versions"]["torch"]
    assert not list(folder.rglob("*.partial"))
    assert not list(folder.rglob("checkpoint*"))


def test_nothing_is_made_of_unlabelled_images_without_any(finished):
    made = {path.name for path in finished.folder.iterdir()}
    assert {"dataset", "depth", "generator", "pairs"} <= made
    assert not made & {"unlabelled", "base", "pseudo", "judge"}
    rows = (finished.folder / "depth" / "maps.jsonl").read_text().splitlines()
    assert len(rows) == 4  # the training images


def test_each_segmenter_has_a_card_with_its_data_and_test_scores(finished):
    index = DatasetIndex.read(finished.folder / "dataset")
    for arm in finished.train.arms:
        card = (finished.folder / "evaluation" / arm / "seed-0" / "README.md").read_text(encoding="utf-8")
        summary = finished.folder / "evaluation" / arm / "seed-0" / "summary.json"
        dsc = json.loads(summary.read_text())["dsc"]["mean"]
        assert "dsc (%)" not in (finished.folder / "segmenter" / arm / "seed-0" / "README.md").read_text()
        assert index.digest in card
        assert f"trained with {arm}, seed 0" in card
        assert f"| dsc (%) | {dsc:.2f} |" in card


def test_everything_is_reused_the_second_time(finished):
    recorder = Recorder()
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob(MANIFEST)}
    run(finished, recorder)
    assert recorder.titles == []
    assert before == {path: path.stat().st_mtime_ns for path in finished.folder.rglob(MANIFEST)}


def test_showing_a_finished_run_loads_no_library_that_it_does_not_need(finished):
    shown = f"from mcpmix.cli.app import main\ntry: main(['run', {str(finished.folder / 'config.yaml')!r}])"
    loaded = loaded_by(f"{shown}\nexcept SystemExit as end: assert not end.code")
    assert {"torch", "mcpmix.generator.finetune", "mcpmix.report.report"} <= loaded
    slow = {"diffusers", "transformers", "torchvision", "torch._dynamo", "scipy", "numba", "matplotlib"}
    assert not loaded & slow


def test_no_stage_writes_into_a_finished_folder(finished):
    for manifest in finished.folder.rglob(MANIFEST):
        finished_at = manifest.stat().st_mtime_ns
        late = [path for path in manifest.parent.rglob("*") if path.stat().st_mtime_ns > finished_at]
        # The folder itself changes when the marks of unfinished work are taken away.
        assert [path for path in late if path.is_file()] == [], manifest


def test_leaks_are_searched_once(make_config, tmp_path, monkeypatch):
    made, compared = make_config(tmp_path, "train.arms=[full-sup, mixup]"), []
    monkeypatch.setattr(
        "mcpmix.data.leakage.matches", lambda held, seen: compared.append(len(seen)) or matches(held, seen)
    )
    run(made)
    assert [count for count in compared if count] == [4 + 2]  # the training and validation images


def test_pairs_have_a_ledger_row_each_and_say_that_they_are_synthetic(finished):
    pairs = finished.folder / "pairs"
    rows = [json.loads(line) for line in (pairs / "ledger.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 2
    assert len({row["seed"] for row in rows}) == len(rows)
    for row in rows:
        assert file_digest(pairs / row["file"]) == row["image_sha256"]
        with Image.open(pairs / row["file"]) as image:
            assert str(row["seed"]) in image.text["Synthetic"]


def test_generator_lists_its_images_and_no_test_image_is_among_them(finished):
    index = json.loads((finished.folder / "dataset" / "index.json").read_text())["samples"]
    seen = json.loads((finished.folder / "generator" / MANIFEST).read_text())["counts"]["images"]
    assert seen == sorted(s["image_sha256"] for s in index if s["split"] == "train")


def test_gates_start_at_half_of_their_bounds(finished):
    log = (finished.folder / "segmenter" / "mcpmix-rla" / "seed-0" / "log.jsonl").read_text().splitlines()
    first = json.loads(log[0])
    assert first["s"] == pytest.approx(0.35, abs=0.2)
    assert first["mu"] == finished.rla.mu
    assert first["tau"] == pytest.approx(first["tau0"] / 2)  # half-way: the first of two epochs
    assert set(first) >= {
        "epoch",
        "loss",
        "loss_real",
        "loss_mixed",
        "s",
        "rho",
        "tau",
        "discrepancy",
        "s_prior",
    }


def test_run_folder_gives_a_predictor_for_any_size(finished):
    predictor = load_segmenter(finished.folder)
    probabilities = predictor.predict(np.zeros((50, 70, 3), np.uint8))
    assert probabilities.shape == (50, 70)
    assert 0 <= probabilities.min() <= probabilities.max() <= 1
    with pytest.raises(DataError, match="H,W,3 uint8"):
        predictor.predict(np.zeros((50, 70)))


def test_a_changed_setting_is_named_and_only_what_depends_on_it_is_made_again(make_config, tmp_path):
    config = make_config(tmp_path, "train.arms=[full-sup]")
    run(config, until="segmenter")
    recorder = Recorder()
    changed = make_config(tmp_path, "train.arms=[full-sup]", "train.epochs=3")
    run(changed, recorder, until="segmenter")
    assert recorder.lines[1:] == ["segmenter/full-sup/seed-0: recomputed, because train.epochs is 3, was 2"]
    assert recorder.titles == ["full-sup seed 0"]
    assert list((config.folder / "segmenter" / "full-sup" / "superseded").iterdir())


def test_more_images_of_known_patients_cost_an_evaluation_and_no_training(make_config, tmp_path):
    settings = ("train.arms=[full-sup, mcpmix]", "data.phantom.known_frames_per_patient")
    run(make_config(tmp_path, settings[0], f"{settings[1]}=1"))
    first, recorder = (tmp_path / "small/evaluation/mcpmix/seed-0/scores.csv").read_bytes(), Recorder()
    made = run(make_config(tmp_path, settings[0], f"{settings[1]}=2"), recorder)
    assert [title for title in recorder.titles if "Rendering" not in title and "Indexing" not in title] == [
        "evaluate full-sup seed 0",
        "evaluate mcpmix seed 0",
        "report",
    ]
    assert made.evaluations["mcpmix", 0].manifest["counts"]["known"]["images"] == 4
    assert (made.evaluations["mcpmix", 0] / "scores.csv").read_bytes() == first


def test_the_reference_arm_needs_no_generator(make_config, tmp_path):
    config = make_config(tmp_path, "train.arms=[full-sup]", "generator.base=no/such-thing")
    run(config, until="segmenter")
    assert not (config.folder / "generator").exists()


def test_arms_of_one_seed_start_from_the_same_weights_and_see_the_same_order(finished):
    losses = {}
    for arm in ("full-sup", "mcpmix"):
        text = (finished.folder / "segmenter" / arm / "seed-0" / "log.jsonl").read_text()
        losses[arm] = json.loads(text.splitlines()[0])
    # after one epoch of two small steps the real loss still shows the common start
    assert losses["full-sup"]["loss_real"] == pytest.approx(losses["mcpmix"]["loss_real"], rel=0.05)


@pytest.mark.slow
def test_workers_give_the_same_weights_as_one_process(make_config, tmp_path):
    overrides = ("train.arms=[full-sup,mcpmix]",)
    one = make_config(tmp_path / "one", *overrides)
    # Threads stay at one: with two, the generator before them would differ in its last bits.
    two = make_config(tmp_path / "two", *overrides, "runtime.jobs=2")
    recorder = Recorder()
    run(one, until="segmenter")
    run(two, recorder, until="segmenter")
    assert set(recorder.titles) >= {"full-sup seed 0", "mcpmix seed 0"}
    for arm in ("full-sup", "mcpmix"):
        name = f"small/segmenter/{arm}/seed-0/model.safetensors"
        assert file_digest(tmp_path / "one" / name) == file_digest(tmp_path / "two" / name)


@pytest.mark.slow
def test_pairs_on_the_fly(make_config, tmp_path):
    config = make_config(tmp_path, "train.arms=[mcpmix-rla]", "synthesis.source=on-the-fly")
    made = run(config, until="segmenter").segmenters
    assert made["mcpmix-rla", 0].manifest["counts"]["epochs"] == 2
    assert not (config.folder / "pairs").exists()
