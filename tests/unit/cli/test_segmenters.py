import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.finished_run import FinishedRun

from mcpmix.config_file import to_yaml
from mcpmix.networks.segmenter import build_segmenter, save_segmenter


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


def test_label_maps_of_any_tool(mcpmix, tmp_path):
    labels = np.zeros((8, 8), np.uint8)
    labels[:4], labels[6:] = 1, 2
    for kind, shown in (("truth", labels), ("prediction", np.where(labels == 2, 0, labels))):
        (tmp_path / kind).mkdir()
        Image.fromarray(shown.astype(np.uint8)).save(tmp_path / kind / "a.png")
    done = mcpmix(
        "evaluate", "--truth", tmp_path / "truth", "--prediction", tmp_path / "prediction",
        "--classes", "adenoma, cancer", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "adenoma: 1 images" in done.out
    assert "cancer: 1 images" in done.out
    assert "Mean over the classes" in done.out
    assert "50.00" in done.out  # DSC: 100 and 0
    assert json.loads((tmp_path / "out/mean.json").read_text())["dsc"]["mean"] == 50


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


# --- export-pairs ----------------------------------------------------------------------------------------


def test_pairs_go_to_the_folders_that_nnunet_knows(mcpmix, tmp_path, monkeypatch):
    run = FinishedRun(tmp_path).config
    (run.folder / "config.yaml").write_text(to_yaml(run))
    for kind in ("raw", "preprocessed"):
        monkeypatch.setenv(f"nnUNet_{kind}", str(tmp_path / kind))
    done = mcpmix("export-pairs", run.folder, "Dataset501_Toy", "--to", "nnunet")
    assert done.code == 0, done.err
    assert "train: 4, validation: 2, test: 6, known: 4, counterparts: 12" in done.out
    assert "left out: known" in done.out
    assert (tmp_path / "raw/Dataset501_Toy/dataset.json").exists()
    assert (tmp_path / "preprocessed/Dataset501_Toy/splits_final.json").exists()
    (trainers,) = re.findall("export nnUNet_extTrainer=(.+)", done.out)
    assert [file.name for file in Path(trainers).glob("*.py")] == ["mcpmix_trainers.py"]


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


@pytest.fixture
def segmenter(tmp_path):
    folder = tmp_path / "segmenter" / "full-sup" / "seed-0"
    description = {"name": "segformer", "variant": "nano", "size": 32, "validation_dsc": 50.0}
    save_segmenter(build_segmenter("segformer", "nano"), folder, description)
    return folder


def test_predict_a_folder_and_again(mcpmix, segmenter, phantom_folder, tmp_path):
    arguments = (
        "predict",
        segmenter,
        phantom_folder / "images",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    )
    done = mcpmix(*arguments)
    assert done.code == 0, done.err
    assert "8 images segmented: " in done.out
    files = sorted((tmp_path / "out" / "masks").iterdir())
    assert len(files) == 8
    times = [file.stat().st_mtime_ns for file in files]
    files[3].unlink()
    done = mcpmix(*arguments)
    assert "predict: resuming at 7/8" in done.out
    assert "1 image segmented, 7 were there already" in done.out
    again = [file.stat().st_mtime_ns for file in files]
    assert [old == new for old, new in zip(times, again, strict=True)] == [True] * 3 + [False] + [True] * 4


def test_predict_with_everything(mcpmix, segmenter, phantom_folder, tmp_path):
    image = sorted((phantom_folder / "images").iterdir())[0]
    done = mcpmix(
        "predict", segmenter, image, "--out", tmp_path / "out", "--probabilities", "--overlay", "--threshold",
        "0.4", "--device", "cpu",
    )  # fmt: skip
    assert done.code == 0, done.err
    mask, probability = (
        np.asarray(Image.open(tmp_path / "out" / kind / image.name)) for kind in ("masks", "probabilities")
    )
    assert np.array_equal(mask == 255, probability / 65535 >= 0.4)
    assert Image.open(tmp_path / "out" / "overlays" / image.name).size == (32, 32)


def test_predict_without_a_segmenter_or_images(mcpmix, segmenter, phantom_folder, tmp_path):
    done = mcpmix(
        "predict", tmp_path, phantom_folder / "images", "--out", tmp_path / "run", "--device", "cpu"
    )
    assert done.code == 0  # a run's folder stands for its best segmenter
    (segmenter / "model.safetensors").unlink()
    done = mcpmix(
        "predict", tmp_path, phantom_folder / "images", "--out", tmp_path / "out", "--device", "cpu"
    )
    assert done.code == 4
    assert "has no finished segmenter" in done.err
    done = mcpmix("predict", segmenter, tmp_path / "none", "--out", tmp_path / "out")
    assert done.code == 3
    assert "does not exist" in done.err
    assert not (tmp_path / "out").exists()


def test_predict_into_a_file_is_refused(mcpmix, segmenter, phantom_folder, tmp_path):
    file = tmp_path / "notes.csv"
    file.write_text("mine")
    done = mcpmix("predict", segmenter, phantom_folder / "images", "--out", file, "--device", "cpu")
    assert done.code == 5, done.err
    assert f"Error: {file} cannot be used as a path: File exists. Choose another." in done.err
    assert file.read_text() == "mine"


def test_a_fourth_channel_is_told(mcpmix, segmenter, tmp_path):
    image = tmp_path / "in" / "a.png"
    image.parent.mkdir()
    Image.fromarray(np.full((20, 30, 4), 200, np.uint8)).save(image)
    done = mcpmix("predict", segmenter, image, "--out", tmp_path / "out", "--device", "cpu")
    assert done.code == 0, done.err
    text = "1 image has an alpha channel (a.png): composited over black, as in training"
    assert text in (done.out + done.err).replace("\n", " ")


# --- export -----------------------------------------------------------------------------------------------


def test_a_run_is_exported_and_the_difference_printed(mcpmix, segmenter, phantom_folder, tmp_path):
    file = tmp_path / "out" / "model.onnx"
    done = mcpmix("export", tmp_path, "--out", file, "--verify", phantom_folder / "images")
    assert done.code == 0, done.err
    assert f"exported from {segmenter}" in done.out
    assert "on 8 images: probabilities differ by at most " in done.out
    assert f"masks in 0 of {8 * 32 * 32} pixels" in done.out
    assert file.stat().st_size > 1e6
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_mistakes_of_export(mcpmix, segmenter, tmp_path):
    done = mcpmix("export", segmenter, "--out", tmp_path / "model.pt")
    assert (done.code, "ends in .onnx" in done.err) == (2, True)
    (tmp_path / "empty").mkdir()
    done = mcpmix("export", segmenter, "--out", tmp_path / "m.onnx", "--verify", tmp_path / "empty")
    assert (done.code, "holds no images" in done.err) == (3, True)
    done = mcpmix("export", segmenter, "--out", tmp_path / "m.onnx")
    assert (done.code, "--verify FOLDER" in done.err) == (3, True)
