import json

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


# --- analyse gradients -----------------------------------------------------------------------------------

FEWEST = 4  # epochs that the command takes


@pytest.fixture
def analyse(mcpmix, config, tmp_path):
    def run(*arguments):
        return mcpmix(
            "analyse", "gradients", "--config", config, "--epochs", FEWEST, "--out", tmp_path / "out",
            *arguments, "train.batch_size=2", "runtime.threads=1",
        )  # fmt: skip

    return run


def test_files_and_table(analyse, tmp_path):
    done = analyse("--strategies", "full-sup, mixup")
    assert done.code == 0, done.err
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("*.*")) == [
        "gradients.json",
        "gradients.md",
        "gradients.png",
    ]
    assert sorted(path.name for path in (out / "trainings").iterdir()) == ["full-sup", "mixup"]
    assert (out / "gradients.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((out / "gradients.json").read_text())
    assert record["epochs"] == FEWEST
    assert set(record["arms"]) == {"full-sup", "mixup"}
    own, other = record["arms"]["full-sup"], record["arms"]["mixup"]
    assert (own["flips"], own["drift"]) == (0, 0)
    assert other["drift"] > 0
    table = (out / "gradients.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| Full-Sup", "| Mixup"]
    assert f"| Mixup | {other['flips']:.1f} | {other['mean']:.3f} |" in rows[2]
    assert all(row in done.out for row in rows)
    assert f"written: {out / 'gradients.json'}" in done.out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--strategies", "full-sup,cutmx"), "no strategy 'cutmx'; known: full-sup, "),
        (("--strategies", " , "), "--strategies is empty; expected names separated by commas"),
        (
            ("--strategies", "full-sup", "--epochs", "1"),
            "'--epochs': Input should be greater than or equal to 4",
        ),
        (("--strategies", "full-sup", "train.batchsize=2"), "batch_size"),
        (("--strategies", "full-sup", "--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_mistakes(analyse, tmp_path, arguments, text):
    done = analyse(*arguments)
    assert done.code == 2, done.err
    assert text in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()
