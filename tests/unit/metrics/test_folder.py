"""Scoring folders: the numbers, the notes and the messages."""

import math

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.metrics import EmptyRule, score, score_folder, summarise
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
        assert (good.with_lesion, good.without_lesion, good.missed) == (11, 1, 1)
        assert (good.false_alarms, good.correctly_empty) == (0, 1)
        assert (bad.false_alarms, bad.correctly_empty) == (1, 0)

    def test_threads_change_nothing(self, study):
        root, _ = study
        one, two = (score_folder(root / "truth", root / "good", workers=workers) for workers in (1, 2))
        assert repr(one.method) == repr(two.method)

    def test_paired_tests(self, study):
        root, masks = study
        report = score_folder(root / "truth", root / "good", against=root / "bad", resamples=300)
        rows = [
            [score(masks["truth"][name], masks[method][name]) for name in masks["truth"]]
            for method in ("good", "bad")
        ]
        assert list(report.tests) == compare_methods(*rows, resamples=300)
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
        assert score_folder(root / "truth", root / "good").notes == ()

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
