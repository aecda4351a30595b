import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def folders(tmp_path):
    """Two truths of 10 lesion pixels; the prediction finds 5 of them and invents none."""
    for kind, width in (("truth", 10), ("prediction", 5)):
        (tmp_path / kind).mkdir()
        for name in ("a", "b"):
            mask = np.zeros((20, 20), np.uint8)
            mask[4, :width] = 255
            Image.fromarray(mask).save(tmp_path / kind / f"{name}.png")
    return tmp_path


def test_masks_of_any_tool(mcpmix, folders):
    done = mcpmix(
        "evaluate", "--truth", folders / "truth", "--prediction", folders / "prediction", "--out",
        folders / "scores", "--conventions",
    )  # fmt: skip
    assert done.code == 0, done.err
    row = next(line.split() for line in done.out.splitlines() if line.split()[:1] == ["recall"])
    assert row[1:4] == ["50.00", "±", "0.00"]
    row = next(line.split() for line in done.out.splitlines() if line.split()[:1] == ["dsc"])
    assert row[1] == "66.67"
    assert "As other evaluations would report it" in done.out
    assert (folders / "scores" / "summary.json").exists()


def test_a_missing_prediction_is_an_error_unless_it_counts_as_empty(mcpmix, folders):
    (folders / "prediction" / "a.png").unlink()
    arguments = ("evaluate", "--truth", folders / "truth", "--prediction", folders / "prediction")
    done = mcpmix(*arguments)
    assert done.code == 3
    assert "1 of 2 truths" in done.err
    done = mcpmix(*arguments, "--missing", "empty")
    assert done.code == 0, done.err
    row = next(line.split() for line in done.out.splitlines() if line.split()[:1] == ["recall"])
    assert row[1] == "25.00"


@pytest.mark.parametrize("arguments", [(), ("--truth", "x"), ("x.yaml", "--truth", "x", "--prediction", "y")])
def test_either_a_run_or_two_folders(mcpmix, arguments):
    done = mcpmix("evaluate", *arguments)
    assert done.code == 2
    assert "--truth" in done.err
