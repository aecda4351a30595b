"""Scoring folders: the numbers, the notes and the messages, the files, pictures and settings."""

import csv
import json
import math

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import ConfigError, DataError, StorageError
from mcpmix.metrics import (
    EmptyRule,
    FolderOptions,
    score,
    score_class_folders,
    score_classes,
    score_folder,
    score_keys,
    summarise,
)
from mcpmix.metrics.folder import FOUND, INVENTED, MISSED, draw_case
from mcpmix.metrics.statistics import compare_methods


class TestNumbers:
    def test_scores_are_those_of_each_pair(self, study):
        root, masks = study
        report = score_folder(root / "truth", root / "good", tolerances=(1, 3), band=1)
        assert [image.files.name for image in report.method.images] == sorted(masks["truth"])
        for image in report.method.images:
            name = image.files.name
            expected = score(masks["truth"][name], masks["good"][name], (1, 3), 1)
            assert image.scores == pytest.approx(expected, nan_ok=True)

    def test_means_pooled_scores_and_undefined_counts(self, study):
        root, masks = study
        metrics = score_folder(str(root / "truth"), str(root / "good")).method.metrics
        rows = [score(masks["truth"][name], masks["good"][name]) for name in masks["truth"]]
        for key, expected in summarise(rows).items():
            found = metrics[key]
            assert (found.mean, found.sd, found.n) == (expected.mean, expected.sd, expected.n)
            assert found.undefined == (0 if key in ("miou", "pixel_accuracy") else 1)
            assert found.low <= found.mean <= found.high
        y = np.concatenate([mask.ravel() for mask in masks["truth"].values()])
        p = np.concatenate([mask.ravel() for mask in masks["good"].values()])
        assert metrics["dsc"].pooled == pytest.approx(200 * (y & p).sum() / (y.sum() + p.sum()))
        assert metrics["hd95"].pooled is None

    def test_frames(self, study):
        root, masks = study
        Image.fromarray(masks["truth"]["i00"]).save(root / "bad" / "i05.png")  # now a false alarm
        report = score_folder(root / "truth", root / "good", against=root / "bad")
        good, bad = report.method.frames, report.against.frames
        assert (good["with_lesion"], good["without_lesion"], good["missed"]) == (11, 1, 1)
        assert (good["false_alarms"], good["correctly_empty"]) == (0, 1)
        assert (bad["false_alarms"], bad["correctly_empty"]) == (1, 0)

    def test_paired_tests(self, study):
        root, masks = study
        report = score_folder(root / "truth", root / "good", against=root / "bad")
        rows = [
            [score(masks["truth"][name], masks[method][name]) for name in masks["truth"]]
            for method in ("good", "bad")
        ]
        assert list(report.tests) == compare_methods(*rows)
        dsc = next(test for test in report.tests if test.metric == "dsc")
        assert dsc.effect == 1.0
        assert dsc.p == pytest.approx(2 / 2**10)  # ten images differ, all in one direction
        assert dsc.p_holm > dsc.p
        assert dsc.excluded == 1

    def test_rule_reaches_the_scores(self, study):
        root, _ = study
        report = score_folder(root / "truth", root / "good", rule=EmptyRule("infinite", "perfect"))
        assert report.method.metrics["hd95"].mean == math.inf
        assert report.method.metrics["dsc"].undefined == 0
        assert math.isnan(report.method.metrics["hd95"].low)


class TestNotesAndMessages:
    def test_notes_say_what_happened(self, study):
        root, masks = study
        (root / "good" / "i01.png").unlink()
        Image.fromarray(masks["truth"]["i00"]).save(root / "good" / "stranger.png")
        soft = (masks["truth"]["i02"] * 200).astype(np.uint8)
        Image.fromarray(soft).save(root / "good" / "i02.png")
        report = score_folder(
            root / "truth", root / "good", against=root / "bad", missing="empty", threshold=0.5
        )
        notes = "\n".join(report.notes)
        assert "good: 1 images without lesion and without prediction are undefined" in notes
        assert "good: 1 predictions are missing and count as empty masks" in notes
        assert "good: 1 predictions have no truth and were ignored: stranger" in notes
        assert f"good: 1 pairs were not hard masks; the threshold decided {(soft > 0).sum()} pixels" in notes
        assert "the tests leave out up to 1 images" in notes
        assert report.method.images[1].scores["dsc"] == 0.0

    def test_a_clean_study_has_no_notes(self, study):
        root, _ = study
        for folder in ("truth", "good"):
            (root / folder / "i05.png").unlink()
        assert score_folder(root / "truth", root / "good").notes == []

    def test_every_bad_pair_is_listed(self, study):
        root, _ = study
        Image.fromarray(np.zeros((5, 5), bool)).save(root / "good" / "i00.png")
        Image.fromarray(np.full((40, 40), 7, np.uint8)).save(root / "good" / "i01.png")
        (root / "truth" / "i02.png").write_bytes(b"")
        with pytest.raises(DataError) as error:
            score_folder(root / "truth", root / "good")
        message = str(error.value)
        assert message.startswith("3 of 12 pairs cannot be scored:")
        assert (
            "i00: truth and prediction must have the same shape, but truth is 40 x 40 and prediction is 5 x 5"
            in message
        )
        assert "i01: " in message
        assert "a soft map" in message
        assert "i02.png cannot be read: the file is empty" in message

    def test_long_lists_of_bad_pairs_are_cut(self, tmp_path):
        (tmp_path / "truth").mkdir()
        for k in range(25):
            np.save(tmp_path / "truth" / f"{k:02d}.npy", np.array([[0.0, 0.5]]))
        with pytest.raises(DataError, match="and 5 more"):
            score_folder(tmp_path / "truth", tmp_path / "truth")

    def test_soft_predictions_need_a_threshold(self, study):
        root, masks = study
        (root / "soft").mkdir()
        for name, mask in masks["truth"].items():
            Image.fromarray((20 + mask * 200).astype(np.uint8)).save(root / "soft" / f"{name}.png")
        with pytest.raises(DataError, match="12 of 12 pairs cannot be scored"):
            score_folder(root / "truth", root / "soft")
        assert score_folder(root / "truth", root / "soft", threshold=0.5).method.metrics["dsc"].mean == 100.0

    def test_unknown_options_are_refused(self, study):
        root, _ = study
        with pytest.raises(TypeError, match="tolerance"):
            score_folder(root / "truth", root / "good", tolerance=3)


class TestFiles:
    def test_csv_and_json_hold_the_numbers(self, study):
        root, _ = study
        report = score_folder(
            root / "truth", root / "good", against=root / "bad", out=root / "out", conventions=True
        )
        with (root / "out" / "images.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 12
        for row, image in zip(rows, report.method.images, strict=True):
            assert row["name"] == image.files.name
            for key in score_keys():
                assert float(row[key]) == pytest.approx(image.scores[key], abs=0, nan_ok=True)
            assert int(row["tp"]) == image.counts.tp
        summary = json.loads((root / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
        assert summary["images"] == 12
        assert summary["method"]["metrics"]["dsc"]["mean"] == report.method.metrics["dsc"].mean
        assert summary["method"]["frames"]["missed"] == 1
        assert summary["options"]["rule"] == {"one_empty": "worst", "both_empty": "undefined"}
        assert len(summary["tests"]) == len(score_keys())
        assert len(summary["conventions"]) == len(report.conventions) > 10
        assert (root / "out" / "against.csv").is_file()

    def test_undefined_and_infinite_numbers_are_valid_json(self, study):
        root, _ = study
        report = score_folder(root / "truth", root / "good", rule=EmptyRule("infinite"))
        hd95 = json.loads(json.dumps(report.summary(), allow_nan=False))["method"]["metrics"]["hd95"]
        assert (hd95["mean"], hd95["low"]) == ("inf", None)

    def test_nothing_is_written_unless_asked_for(self, study):
        root, _ = study
        before = sorted(root.rglob("*"))
        score_folder(root / "truth", root / "good")
        assert sorted(root.rglob("*")) == before

    def test_an_earlier_report_is_replaced_and_other_files_are_not(self, study):
        root, _ = study
        score_folder(root / "truth", root / "good", against=root / "bad", out=root / "out")
        score_folder(root / "truth", root / "good", out=root / "out")
        assert sorted(path.name for path in (root / "out").iterdir()) == [
            "images.csv",
            "summary.json",
            "worst",
        ]
        assert len(list((root / "out" / "worst").iterdir())) == 8
        (root / "mine" / "worst").mkdir(parents=True)
        with pytest.raises(StorageError, match="has worst"):
            score_folder(root / "truth", root / "good", out=root / "mine")
        (root / "out" / "thesis.doc").write_text("mine")
        with pytest.raises(StorageError, match=r"has thesis\.doc\. Choose another folder"):
            score_folder(root / "truth", root / "good", out=root / "out")

    def test_the_table_has_a_row_per_metric(self, study):
        root, _ = study
        header, rows = score_folder(root / "truth", root / "good").table()
        assert header == ["metric", "mean ± sd", "95 % interval", "pooled", "n", "undefined"]
        assert [row[0] for row in rows] == list(score_keys())
        dsc = rows[list(score_keys()).index("dsc")]
        assert dsc[4:] == ["11", "1"]
        header, rows = score_folder(root / "truth", root / "good", against=root / "bad").table()
        assert all(len(row) == len(header) == 11 for row in rows)


class TestWorst:
    def test_worst_first_and_undefined_not_ranked(self, study):
        root, _ = study
        report = score_folder(root / "truth", root / "good")
        values = [image.scores["dsc"] for image in report.worst()]
        defined = sorted(image.scores["dsc"] for image in report.method.images if image.files.name != "i05")
        assert values == defined[:8]
        assert report.worst()[0].files.name == "i03"

    def test_pictures_are_numbered_and_painted_on_the_image(self, study):
        root, _ = study
        (root / "photos").mkdir()
        Image.new("RGB", (40, 40), (200, 0, 0)).save(root / "photos" / "i03.jpg", quality=100)
        second = score_folder(root / "truth", root / "good").worst()[1].files.name
        Image.new("RGB", (10, 10), (200, 0, 0)).save(root / "photos" / f"{second}.png")
        score_folder(root / "truth", root / "good", out=root / "out", images=root / "photos")
        pictures = sorted((root / "out" / "worst").iterdir())
        assert len(pictures) == 8
        assert pictures[0].name == "01_i03.png"
        painted = np.asarray(Image.open(pictures[0]))
        assert painted.shape == (40 + 16, 40, 3)
        assert painted[0, 0, 0] > 190
        assert np.asarray(Image.open(pictures[1]))[0, 0].tolist() == [0, 0, 0]

    def test_colours(self):
        truth, prediction = np.array([[1, 1, 0, 0]]), np.array([[1, 0, 1, 0]])
        painted = np.asarray(draw_case(truth, prediction))
        assert painted[0].tolist() == [list(FOUND), list(MISSED), list(INVENTED), [0, 0, 0]]
        over = np.asarray(draw_case(truth, prediction, np.full((1, 4, 3), 100, np.uint8)))
        assert over[0, 3].tolist() == [100, 100, 100]
        assert over[0, 1].tolist() == [165, 130, 50]


def test_all_wrong_options_come_at_once():
    with pytest.raises(ConfigError) as error:
        FolderOptions(threshold=2, missing="skip")
    for text in ("- threshold must be in (0, 1] or None, but is 2", "- missing must be", "but is 'skip'"):
        assert text in str(error.value)


def label_folders(tmp_path):
    """Label maps of three images, their predictions as palettes and arrays; and all of them in memory."""
    rng, maps = np.random.default_rng(8), []
    for name in ("a", "b", "c"):
        truth, found = (rng.integers(0, 3, (20, 24), dtype=np.uint8) for _ in range(2))
        if name == "c":
            truth[truth == 2], found[found == 2] = 0, 0
        maps.append((truth, found))
        for folder in ("truth", "found"):
            (tmp_path / folder).mkdir(exist_ok=True)
        Image.fromarray(truth).save(tmp_path / f"truth/{name}.png")
        if name == "a":
            np.save(tmp_path / "found/a.npy", found)
        else:
            coloured = Image.fromarray(found, "P")
            coloured.putpalette([0, 0, 0, 90, 250, 120, 255, 200, 40])
            coloured.save(tmp_path / f"found/{name}.png")
    return maps


def test_label_maps_by_class_and_their_mean(tmp_path):
    maps = label_folders(tmp_path)
    classes = ("adenoma", "cancer")
    reports, mean = score_class_folders(
        tmp_path / "truth", tmp_path / "found", classes, out=tmp_path / "out", images=None
    )
    scored = [score_classes(truth, found, classes) for truth, found in maps]
    for name in classes:
        for image, expected in zip(reports[name].method.images, scored, strict=True):
            assert image.scores == pytest.approx(expected.classes[name], nan_ok=True)
        assert (tmp_path / f"out/{name}/images.csv").is_file()
    for key, value in mean.items():
        assert value.mean == pytest.approx(np.mean([row.mean[key] for row in scored]))
    assert mean["dsc"].undefined == 0
    assert reports["cancer"].method.frames["without_lesion"] == 1
    stored = json.loads((tmp_path / "out/mean.json").read_text())
    assert stored["hd95"]["mean"] == mean["hd95"].mean


@pytest.mark.parametrize(
    ("classes", "options", "told"),
    [
        (("one", "one"), {}, "classes must be different names"),
        (("a/b", "c"), {}, "without a slash"),
        (("a", "b"), {"threshold": 0.5}, "threshold is for soft maps of one class"),
        (("a", "b"), {"conventions": True}, "masks of lesion and background only"),
        (("a",), {}, "must hold the labels 0 to 1 of the classes, not as a JPEG, but holds 0, 1, 2."),
    ],
)
def test_what_does_not_fit_label_maps(tmp_path, classes, options, told):
    label_folders(tmp_path)
    with pytest.raises((ConfigError, DataError)) as caught:
        score_class_folders(tmp_path / "truth", tmp_path / "found", classes, **options)
    assert told in str(caught.value)
