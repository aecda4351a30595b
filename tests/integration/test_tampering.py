"""Whatever is changed in a finished run is found and named, or has no effect: the table of tamperings."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image
from tests.helpers.progress import Recorder
from tests.helpers.read_only import forbid_writing

from mcpmix.core.errors import ModelError, StorageError
from mcpmix.core.files import file_digest
from mcpmix.core.progress import STATUS
from mcpmix.core.stage_folder import MANIFEST
from mcpmix.core.training import load_state, save_state
from mcpmix.run import run
from mcpmix.segmenter.predict import load_segmenter

ARMS = ("full-sup", "mcpmix")
SEGMENTER, EVALUATION = (f"{stage}/full-sup/seed-0" for stage in ("segmenter", "evaluation"))


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    config = make_config(
        tmp_path_factory.mktemp("runs"),
        f"train.arms=[{', '.join(ARMS)}]",
        "synthesis.admission.enabled=true",
        "synthesis.admission.judge.steps=2",
        "synthesis.admission.judge.batch_size=2",
    )
    run(config)
    return config


def results(folder):
    """Digests of all files but the one that says what the run is doing."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {name: file_digest(path) for name, path in found.items() if name.name != STATUS}


@pytest.fixture
def copy(finished, tmp_path):
    """The finished run, which a test may change; all is as before at the end."""
    kept = tmp_path / "kept"
    shutil.copytree(finished.folder, kept)
    yield finished.folder
    shutil.rmtree(finished.folder)
    shutil.copytree(kept, finished.folder)


def edit(change):
    """Change the value of a JSON file in place."""

    def tamper(path):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content, indent=1))

    return tamper


def setting(*keys, value):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        assert content[keys[-1]] != value
        content[keys[-1]] = value

    return edit(change)


def to_training(content):
    next(row for row in content["samples"] if row["split"] == "test")["split"] = "train"


def flip_last_byte(path):
    """Same size, other content, and the times of before."""
    state, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def invert(path):
    with Image.open(path) as image:
        Image.fromarray(255 - np.asarray(image)).save(path)


def remove(path):
    path.unlink()


def add_line(path):
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


def take_from(name):
    return lambda path: shutil.copyfile(path.parent / name, path)


def take_from_other_arm(path):
    other = path.parents[2] / ARMS[1] / "seed-0" / path.name
    content, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(content)


def create(text):
    return lambda path: path.write_text(text)


LATE = ("segmenter", "evaluation", "report")
TABLE = [  # what is deleted first, the file, what is done to it
    (LATE, "dataset/index.json", edit(to_training)),
    ((), "dataset/index.json", setting("samples", 0, "group", value="another")),
    (("evaluation", "report"), "dataset/index.json", setting("samples", 0, "mask_sha256", value="0" * 64)),
    ((), "dataset/split.json", flip_last_byte),
    (("depth",), "dataset/images/p000_f00.png", invert),
    (("evaluation", "report"), "dataset/masks/p002_f00.png", invert),
    (LATE, "dataset/manifest.json", setting("counts", "training", value="0" * 64)),
    ((), "dataset/manifest.json", setting("counts", "leaks", value="asked for")),
    ((), "dataset/manifest.json", edit(lambda content: content.pop("files"))),
    (("pairs",), "depth/p000_f00.png", take_from("p000_f01.png")),
    (("pairs",), "depth/p000_f00.png", remove),
    ((), "depth/maps.jsonl", add_line),
    (("pairs",), "judge/fold-0/model.safetensors", flip_last_byte),
    (("pairs",), "judge/fold-0/config.json", setting("size", value=8)),
    (("pairs",), "judge/judge.json", setting("chance", value=0.0)),
    (("pairs",), "generator/controlnet/diffusion_pytorch_model.safetensors", flip_last_byte),
    (("pairs",), "generator/controlnet/config.json", setting("conditioning_channels", value=3)),
    (("pairs",), "generator/images.json", setting("images", value=[])),
    (("pairs",), "generator/manifest.json", setting("counts", "images", value=[])),
    (("pairs",), "generator/controlnet/diffusion_pytorch_model.safetensors.index.json", create("{}")),
    (LATE, "pairs/ledger.jsonl", add_line),
    ((), "pairs/sheet.png", invert),
    ((), "pairs/manifest.json", setting("counts", "warnings", value=["none"])),
    (("evaluation",), f"{SEGMENTER}/model.safetensors", take_from_other_arm),
    (("evaluation",), f"{SEGMENTER}/config.json", setting("size", value=32)),
    (("evaluation",), f"{SEGMENTER}/images.json", setting("images", value=[])),
    (("report",), f"{SEGMENTER}/log.jsonl", add_line),
    ((), f"{SEGMENTER}/README.md", create("approved for clinical use")),
    ((), f"{SEGMENTER}/manifest.json", setting("counts", "validation_dsc", value=99.0)),
    (("report",), f"{EVALUATION}/summary.json", setting("dsc", "mean", value=99.0)),
    (("report",), f"{EVALUATION}/scores.csv", add_line),
    (("report",), f"{EVALUATION}/predictions/p002_f00.png", invert),
    ((), f"{EVALUATION}/manifest.json", setting("counts", "dsc", value=99.0)),
    ((), "report/table.json", setting("rows", value=[])),
    ((), "report/report.html", create("<html>")),
]


@pytest.mark.parametrize(
    ("deleted", "name", "tamper"), TABLE, ids=[f"{n}-{row[1]}" for n, row in enumerate(TABLE)]
)
def test_a_change_is_found_and_named_before_anything_is_made(finished, copy, deleted, name, tamper):
    for stage in deleted:
        shutil.rmtree(copy / stage)
    tamper(copy / name)
    recorder = Recorder()
    with pytest.raises(StorageError, match=r"Restore the file|to redo") as caught:
        run(finished, recorder)
    assert os.path.basename(name) in str(caught.value)  # noqa: PTH119
    assert "delete the folder" in str(caught.value)
    assert not set(recorder.titles) & {"depth", "report", "full-sup seed 0", "evaluate full-sup seed 0"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_segmenter_that_was_changed_predicts_nothing(finished, copy, name):
    (flip_last_byte if name.endswith("s") else setting("size", value=32))(copy / SEGMENTER / name)
    with pytest.raises(StorageError, match=f"{name} was changed"):
        load_segmenter(copy / SEGMENTER)


def stray(folder):
    for name in ("dataset/.DS_Store", "generator/Thumbs.db", f"{SEGMENTER}/._model.safetensors"):
        (folder / name).write_text("x")


def touch(folder):
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


def damage_pair(folder):
    flip_last_byte(next((folder / "pairs").glob("*/*/*.png")))


def lose_pair(folder):
    next((folder / "pairs").glob("*/*/*.png")).unlink()


@pytest.mark.parametrize("tamper", [stray, touch, damage_pair, lose_pair])
def test_what_has_no_effect(finished, copy, tamper):
    before = results(copy)
    tamper(copy)
    run(finished)
    after = results(copy)
    assert {path: digest for path, digest in after.items() if path in before} == before


def test_pixels_changed_in_the_cache_are_decoded_again(finished, copy):
    for path in (copy / "cache").glob("*/images.npy"):
        flip_last_byte(path)
    before = file_digest(copy / SEGMENTER / "model.safetensors")
    shutil.rmtree(copy / SEGMENTER)
    recorder = Recorder()
    run(finished, recorder, until="segmenter")
    assert file_digest(copy / SEGMENTER / "model.safetensors") == before


def test_a_checkpoint_of_another_seed_or_fold_is_refused(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}.partial"
        (folder / "fold").mkdir(parents=True)
        (folder / "key.json").write_text(json.dumps({"digest": f"{seed}" * 64}))
        save_state(folder / "checkpoint.safetensors", {"epoch": seed})
    mine, other = (tmp_path / f"seed-{seed}.partial" / "checkpoint.safetensors" for seed in (0, 1))
    assert load_state(mine) == {"epoch": 0}
    for place in (mine, other.parent / "fold" / other.name):
        shutil.copyfile(other, place)
        with pytest.raises(ModelError, match=r"belongs to another stage.*delete it to start over"):
            load_state(place)


def test_a_finished_run_on_read_only_storage_shows_its_table(finished, monkeypatch):
    forbid_writing(monkeypatch, finished.folder)
    with pytest.raises(OSError, match="Read-only"):
        (finished.folder / "x").write_text("x")
    made = run(finished)
    assert made.report is not None
    assert made.report.folder == finished.folder / "report"
    other = finished.model_copy(update={"train": finished.train.model_copy(update={"epochs": 3})})
    with pytest.raises(StorageError, match=r"Cannot write to .*Read-only file system"):
        run(other)


def test_a_manifest_without_its_list_and_seal_is_refused(finished, copy):
    path = copy / "report" / MANIFEST
    content = json.loads(path.read_text())
    for name in ("files", "seal"):
        del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(StorageError, match="no digest, key, list of files or seal"):
        run(finished)
