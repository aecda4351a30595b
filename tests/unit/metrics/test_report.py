"""The report of a folder: its files, its table, its pictures and its settings."""

import csv
import json
import math

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import ConfigError, StorageError
from mcpmix.metrics import EmptyRule, FolderOptions, score_folder, score_keys
from mcpmix.metrics.report import FOUND, INVENTED, MISSED, draw_case


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
        score_folder(root / "truth", root / "good", against=root / "bad", out=root / "out", worst=5)
        score_folder(root / "truth", root / "good", out=root / "out", worst=2)
        assert sorted(path.name for path in (root / "out").iterdir()) == [
            "images.csv",
            "summary.json",
            "worst",
        ]
        assert len(list((root / "out" / "worst").iterdir())) == 2
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
        report = score_folder(root / "truth", root / "good", worst=20)
        values = [image.scores["dsc"] for image in report.worst()]
        assert values == sorted(values)
        assert report.worst()[0].files.name == "i03"
        assert len(values) == 11
        farthest = score_folder(root / "truth", root / "good", worst=3, worst_by="hd95").worst()
        values = [image.scores["hd95"] for image in farthest]
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(math.hypot(40, 40))

    def test_pictures_are_numbered_and_painted_on_the_image(self, study):
        root, _ = study
        (root / "photos").mkdir()
        Image.new("RGB", (40, 40), (200, 0, 0)).save(root / "photos" / "i03.jpg", quality=100)
        Image.new("RGB", (10, 10), (200, 0, 0)).save(root / "photos" / "i00.png")  # another size: not used
        score_folder(root / "truth", root / "good", out=root / "out", images=root / "photos", worst=11)
        pictures = sorted((root / "out" / "worst").iterdir())
        assert len(pictures) == 11
        assert pictures[0].name == "01_i03.png"
        painted = np.asarray(Image.open(pictures[0]))
        assert painted.shape == (40 + 16, 40, 3)
        assert painted[0, 0, 0] > 190
        other = next(path for path in pictures if path.name.endswith("i00.png"))
        assert np.asarray(Image.open(other))[0, 0].tolist() == [0, 0, 0]

    def test_no_pictures(self, study):
        root, _ = study
        score_folder(root / "truth", root / "good", out=root / "out", worst=0)
        assert not (root / "out" / "worst").exists()

    def test_colours(self):
        truth, prediction = np.array([[1, 1, 0, 0]]), np.array([[1, 0, 1, 0]])
        painted = np.asarray(draw_case(truth, prediction))
        assert painted[0].tolist() == [list(FOUND), list(MISSED), list(INVENTED), [0, 0, 0]]
        over = np.asarray(draw_case(truth, prediction, np.full((1, 4, 3), 100, np.uint8)))
        assert over[0, 3].tolist() == [100, 100, 100]
        assert over[0, 1].tolist() == [165, 130, 50]


def test_all_wrong_options_come_at_once():
    with pytest.raises(ConfigError) as error:
        FolderOptions(
            threshold=2, missing="skip", confidence=1, resamples=0, worst=-1, worst_by="x", workers=0
        )
    for name in ("threshold", "missing", "confidence", "resamples", "worst", "worst_by", "workers"):
        assert f"- {name} must be" in str(error.value)
    assert "but is 'skip'" in str(error.value)
