"""Evaluation: refuses what was seen, resumes, and scores what was indexed."""

import json

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.device import setup
from mcpmix.core.errors import DataError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import images_of, matches, write_seen
from mcpmix.data.sample import read_mask
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.run import run
from mcpmix.segmenter import evaluate


class Setting:
    """A phantom data set, an untrained segmenter that says what it saw, and a generator's folder."""

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.dataset = run(config, until="dataset").dataset
        self.index = DatasetIndex.read(self.dataset)
        self.segmenter = self.network("segmenter", self.index.part("train"))
        self.generator = Artifact(folder / "generator", {"digest": "g", "key": {}, "counts": {"images": []}})

    def network(self, name, records):
        place = self.folder / name
        place.mkdir()
        network = build_segmenter("segformer", "nano")
        save_segmenter(
            network, place, {"name": "segformer", "variant": "nano", "size": 64, "arm": "full-sup"}
        )
        write_seen(place, images_of(records))
        return Artifact(place, {"digest": name, "key": {}, "counts": {}})

    def run(self, name="evaluation", config=None, dataset=None, segmenter=None, generator=None, search=None):
        return evaluate.run(
            config or self.config,
            dataset or self.dataset,
            segmenter or self.segmenter,
            generator,
            search,
            self.folder / name,
            setup("cpu", "float32", 1, True),
        )


@pytest.fixture(scope="module")
def setting(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    return Setting(make_config(folder, "train.arms=[full-sup]"), folder)


def marked(setting):
    evaluation = setting.config.evaluation.model_copy(update={"seen": "mark"})
    return setting.config.model_copy(update={"evaluation": evaluation})


def test_a_clean_chain_has_no_mark(setting):
    made = setting.run("clean", generator=setting.generator)
    assert "leaks" not in made.manifest["counts"]
    assert sorted(path.name for path in made.folder.iterdir() if path.suffix != ".lock") == [
        "manifest.json", "predictions",
        "scores-known.csv", "scores.csv", "summary-known.json", "summary.json",
    ]  # fmt: skip


def test_known_groups_have_scores_of_their_own(setting):
    made = setting.run("both")
    parts = {"scores.csv": setting.index.part("test"), "scores-known.csv": setting.index.part("known")}
    for name, records in parts.items():
        rows = (made / name).read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in rows] == [record.id for record in records]
    counts, known = made.manifest["counts"], json.loads((made / "summary-known.json").read_text())
    assert (counts["images"], counts["known"]["images"]) == (2, 2)
    assert counts["known"]["dsc"] == known["dsc"]["mean"]


def test_a_data_set_without_a_known_part_has_the_same_test_scores(setting, make_config):
    none = ("name=none", "train.arms=[full-sup]", "data.phantom.known_frames_per_patient=0")
    alone = setting.run(
        "alone-test", dataset=run(make_config(setting.folder, *none), until="dataset").dataset
    )
    both = setting.run("both-parts")
    assert not (alone / "summary-known.json").exists()
    assert "known" not in alone.manifest["counts"]
    for name in ("scores.csv", "summary.json"):
        assert (alone / name).read_bytes() == (both / name).read_bytes()


def test_known_images_that_were_seen_are_refused_too(setting):
    first = setting.index.part("known")[0]
    bad = setting.network("saw-known", [*setting.index.part("train"), first])
    with pytest.raises(
        DataError, match=f"1 of 4 test images[^\n]*\n  - {first.id} = {first.id}, seen by the seg"
    ):
        setting.run("refused", segmenter=bad)


def test_pooled_scores_stand_beside_the_means(setting):
    made = setting.run("pooled")
    pairs = [
        (read_mask(record.mask) > 0, read_mask(made / f"predictions/{record.id}.png") > 0)
        for record in setting.index.part("test")
    ]
    truth, found = (np.concatenate([mask.ravel() for mask in masks]) for masks in zip(*pairs, strict=True))
    summary = json.loads((made / "summary.json").read_text())
    dsc = 200 * (truth & found).sum() / (truth.sum() + found.sum())
    assert summary["dsc"]["pooled"] == pytest.approx(dsc)
    assert summary["pixel_accuracy"]["pooled"] == pytest.approx(100 * (truth == found).mean())
    assert "pooled" not in summary["hd95"]


def test_a_segmenter_that_saw_test_images_is_refused_with_their_names(setting):
    test = setting.index.part("test")
    bad = setting.network("bad", [*setting.index.part("train"), *test])
    with pytest.raises(DataError) as caught:
        setting.run("refused", segmenter=bad)
    assert f"{len(test)} of {len(test) + 2} test images were seen in training" in str(caught.value)
    assert "set evaluation.seen=mark" in str(caught.value)
    for record in test:
        assert f"  - {record.id} = {record.id}, seen by the segmenter" in str(caught.value)
    assert not (setting.folder / "refused").exists()
    made = setting.run("asked", config=marked(setting), segmenter=bad)
    assert made.manifest["counts"]["leaks"].startswith("2 of 4 test images were seen by")


def test_a_generator_is_asked_by_the_digests_of_its_manifest_alone(setting):
    first = setting.index.part("test")[0]
    manifest = {**setting.generator.manifest, "counts": {"images": [first.image_sha256]}}
    with pytest.raises(DataError, match=f"{first.id} = {first.id}, seen by the generator"):
        setting.run("refused", generator=Artifact(setting.generator.folder, manifest))


def test_a_split_asked_for_by_name_is_scored_and_marked(setting):
    bad = setting.network("pranet", setting.index.part("test"))
    manifest = {**setting.dataset.manifest, "counts": {"leaks": "frames of one video"}}
    made = setting.run("named", dataset=Artifact(setting.dataset.folder, manifest), segmenter=bad)
    assert "were seen by the segmenter" in made.manifest["counts"]["leaks"]


@pytest.mark.parametrize("done", [1, 3])
def test_a_killed_evaluation_goes_on_after_the_last_image(setting, monkeypatch, done):
    """With one image of the test part done, and with one of the known part."""
    whole = setting.run(f"whole-{done}")
    real, asked = evaluate._score, []

    def stop(config, record, *rest):
        if len(asked) == done:
            raise KeyboardInterrupt
        asked.append(record.id)
        return real(config, record, *rest)

    monkeypatch.setattr(evaluate, "_score", stop)
    with pytest.raises(KeyboardInterrupt):
        setting.run(f"killed-{done}")
    partial = setting.folder / f"killed-{done}.partial"
    with (partial / "scores.jsonl").open("a") as file:
        file.write('{"id": "p0')  # a row cut short
    monkeypatch.setattr(evaluate, "_score", lambda config, record, *rest: asked.append(record.id) or
                        real(config, record, *rest))  # fmt: skip
    again = setting.run(f"killed-{done}")
    assert asked == [record.id for part in ("test", "known") for record in setting.index.part(part)]
    for name in ("scores.csv", "summary.json", "scores-known.csv", "summary-known.json"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_a_test_image_that_has_changed_is_not_scored(setting, tmp_path):
    record = setting.index.part("test")[0]
    before = record.image.read_bytes()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(record.image)
    try:
        with pytest.raises(DataError, match=f"{record.id}.png has changed since it was indexed"):
            setting.run("changed")
    finally:
        record.image.write_bytes(before)


def test_a_run_that_evaluation_would_refuse_ends_before_training(setting, tmp_path):
    index = json.loads((setting.dataset / "index.json").read_text())
    test = next(row for row in index["samples"] if row["split"] == "test")
    train = next(row for row in index["samples"] if row["split"] == "train")
    train["look"] = test["look"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    leaking = Artifact(tmp_path, setting.dataset.manifest)
    with pytest.raises(DataError, match=rf"{test['id']} ~ {train['id']} \(0 of 256 signs differ"):
        evaluate.search_leaks(setting.config, leaking, with_generator=False)
    evaluate.search_leaks(marked(setting), leaking, with_generator=False)
    evaluate.search_leaks(setting.config, setting.dataset, with_generator=True)


def test_what_was_searched_before_training_is_not_searched_again(setting, monkeypatch):
    search = evaluate.search_leaks(setting.config, setting.dataset, with_generator=True)
    compared = []
    monkeypatch.setattr(
        "mcpmix.data.leakage.matches", lambda held, seen: compared.append(len(seen)) or matches(held, seen)
    )
    images = [record.image_sha256 for record in setting.index.part("train")]
    manifest = {**setting.generator.manifest, "counts": {"images": images}}
    generator = Artifact(setting.generator.folder, manifest)
    setting.run("searched", generator=generator, search=search)
    assert sum(compared) == 0
    setting.run("alone", generator=generator)
    assert sum(compared) > 0


def test_a_segmenter_that_lists_other_images_than_were_searched_is_refused(setting):
    search = evaluate.search_leaks(setting.config, setting.dataset, with_generator=False)
    first = setting.index.part("test")[0]
    other = setting.network("other", [*setting.index.part("train"), first])
    with pytest.raises(DataError, match=f"{first.id} = {first.id}, seen by the segmenter"):
        setting.run("refused", segmenter=other, search=search)
