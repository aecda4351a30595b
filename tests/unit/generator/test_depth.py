"""Stage 1: what is computed, what is kept after a kill, what is taken over from earlier folders."""

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.unlabelled import store_unlabelled

from mcpmix.config_file import resolve_config
from mcpmix.core.device import Runtime
from mcpmix.core.training import JsonLines
from mcpmix.data import dataset
from mcpmix.generator import depth
from mcpmix.generator.depth import read_depths

RUNTIME = Runtime(torch.device("cpu"), torch.float32, "test")


class CountingNetwork:
    """Brightness as depth; counts the images that it sees."""

    seen = 0
    dies_at = None

    def __init__(self, folder, near, device):
        pass

    def __call__(self, images):
        if CountingNetwork.dies_at is not None and CountingNetwork.seen >= CountingNetwork.dies_at:
            raise KeyboardInterrupt
        CountingNetwork.seen += len(images)
        return images.mean(axis=3).astype(np.float32) / 255


@pytest.fixture(autouse=True)
def _counting(monkeypatch):
    monkeypatch.setattr(depth, "DepthNetwork", CountingNetwork)
    CountingNetwork.seen, CountingNetwork.dies_at = 0, None


@pytest.fixture
def run(tmp_path, random_models):
    """Index the images and run the stage: `run(*overrides)` gives its artefact; `more` are unlabelled."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()

    def go(*overrides, more=None):
        tree = {
            "preset": "tiny",
            "data": {
                "source": "folder",
                "images": str(tmp_path / "images"),
                "masks": str(tmp_path / "masks"),
                "size": 16,
                "split": {"file": str(tmp_path / "split.json")},
            },
            "depth": {"model": str(random_models / "depth"), "batch_size": 2},
        }
        config = resolve_config(tree, overrides)
        index = dataset.run(config, tmp_path / "run" / "dataset")
        return depth.run(config, index, more, tmp_path / "run" / "depth", RUNTIME)

    return go


def write(folder, levels):
    """One grey image per level, all of which but the two last are for training."""
    names = []
    for number, level in enumerate(levels):
        names.append(f"s{number}")
        pixels = np.full((20, 20, 3), level, np.uint8)
        pixels[0, 0] = number
        Image.fromarray(pixels).save(folder / "images" / f"s{number}.png")
        mask = np.zeros((20, 20), np.uint8)
        mask[5:9, 5:9] = 255
        Image.fromarray(mask).save(folder / "masks" / f"s{number}.png")
    parts = {"train": names[:-2], "validation": names[-2:-1], "test": names[-1:]}
    (folder / "split.json").write_text(str(parts).replace("'", '"'))


def test_every_training_image_has_a_map_and_a_row(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    made = run()
    rows = JsonLines(made / depth.MAPS).rows()
    assert [row["id"] for row in rows] == ["s0", "s1", "s2", "s3"]
    assert read_depths(made.folder, ["s1"])[0, 8, 8] == pytest.approx(60 / 255, abs=1e-4)
    assert CountingNetwork.seen == 4
    assert made.manifest["counts"] == {"maps": 4, "reused": 0}


def test_where_fine_tuning_is_validated_the_images_it_looks_at_have_maps_too(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    before = run()
    made = run("finetune.validation.every=5")
    assert [row["id"] for row in JsonLines(made / depth.MAPS).rows()] == ["s0", "s1", "s2", "s3", "s4"]
    assert made.manifest["counts"] == {"maps": 5, "reused": 4}
    assert CountingNetwork.seen == 5
    assert before.digest != made.digest
    assert run("finetune.validation.every=9").digest == made.digest  # how often does not matter


def test_unlabelled_images_have_maps_only_where_fine_tuning_begins_with_them_and_sees_depth(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    levels = np.array([30, 90, 200], np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (3, 16, 16, 3)).copy()
    more = store_unlabelled(tmp_path / "run" / "unlabelled", images, ["unlabelled/0/a/x.jpg", "y", "z"])
    plain = run(more=more)
    assert plain.manifest["counts"]["maps"] == 4
    assert run().digest == plain.digest
    begun = ("data.unlabelled=more", "finetune.start=pseudo")
    assert run(*begun, "finetune.condition=mask", more=more).digest == plain.digest
    made = run(*begun, more=more)
    assert made.manifest["counts"] == {"maps": 7, "reused": 4}
    found = read_depths(made.folder, ["unlabelled/0/a/x.jpg", "z", "s1"])[:, 8, 8]
    assert found == pytest.approx(np.array([30, 200, 60]) / 255, abs=1e-4)
    assert CountingNetwork.seen == 7


def test_a_killed_stage_keeps_whole_maps_and_makes_damaged_ones_again(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    CountingNetwork.dies_at = 2
    with pytest.raises(KeyboardInterrupt):
        run()
    partial = tmp_path / "run" / "depth.partial"
    assert sorted(path.name for path in partial.glob("*.png")) == ["s0.png", "s1.png"]
    (partial / "s1.png").write_bytes((partial / "s1.png").read_bytes()[:-5])  # cut short
    kept = (partial / "s0.png").stat().st_mtime_ns
    CountingNetwork.seen, CountingNetwork.dies_at = 0, None
    made = run()
    assert CountingNetwork.seen == 4  # whole batches, as in an uninterrupted run
    assert (made / "s0.png").stat().st_mtime_ns == kept  # but what was whole is not written again
    assert read_depths(made.folder, ["s1"])[0, 8, 8] == pytest.approx(60 / 255, abs=1e-4)
    assert len(JsonLines(made / depth.MAPS).rows()) == 4


def test_a_changed_data_set_computes_only_changed_images(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    run()
    CountingNetwork.seen = 0
    write(tmp_path, [10, 61, 110, 160, 210, 250])
    made = run()
    assert CountingNetwork.seen == 2  # the batch of the changed image
    assert made.manifest["counts"] == {"maps": 4, "reused": 3}
    assert read_depths(made.folder, ["s1"])[0, 8, 8] == pytest.approx(61 / 255, abs=1e-4)
    write(tmp_path, [10, 60, 110, 160, 210, 250])  # back again: the map is on the shelf
    CountingNetwork.seen = 0
    assert read_depths(run().folder, ["s1"])[0, 8, 8] == pytest.approx(60 / 255, abs=1e-4)
    assert CountingNetwork.seen == 0


def test_maps_of_another_convention_or_size_are_not_taken_over(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    run()
    for override in ("depth.near=small", "data.size=8"):
        CountingNetwork.seen = 0
        run(override)
        assert CountingNetwork.seen == 4, override


def test_naming_the_convention_that_auto_finds_changes_nothing(run, tmp_path):
    write(tmp_path, [10, 60, 110, 160, 210, 250])
    assert run().digest == run("depth.near=large").digest
