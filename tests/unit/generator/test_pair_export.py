"""The pairs of a run, opened for an own Dataset, and written in the layout of nnU-Net."""

import numpy as np
import pytest
from tests.helpers.finished_run import FinishedRun

import mcpmix
from mcpmix.config_file import to_yaml
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.files import read_json
from mcpmix.data.dataset import load_collection
from mcpmix.data.layouts import GIVEN
from mcpmix.data.sample import read_image, read_mask, resize_image, resize_mask
from mcpmix.generator.pair_export import export_to_nnunet

NAME = "Dataset501_Toy"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = FinishedRun(tmp_path_factory.mktemp("runs"))
    (run.config.folder / "config.yaml").write_text(to_yaml(run.config))
    return run


def test_every_training_image_comes_with_its_mask_and_counterparts(finished):
    pairs = mcpmix.open_pairs(finished.config.folder)
    records = finished.index.part("train")
    assert [pair.id for pair in pairs] == [record.id for record in records]
    for pair, record in zip(pairs, records, strict=True):
        np.testing.assert_array_equal(pair.image, resize_image(read_image(record.image), 32))
        np.testing.assert_array_equal(pair.mask, resize_mask(read_mask(record.mask), 32))
        assert pair.group == record.group
        assert pair.counterparts.shape == (3, 32, 32, 3)
        first = read_image(finished.pairs / f"images/{record.id}/0.png")
        np.testing.assert_array_equal(pair.counterparts[0], first)
    assert [pair.id for pair in pairs[1:3]] == [record.id for record in records[1:3]]


def test_a_run_without_pairs_is_named(tmp_path):
    with pytest.raises(DataError, match="dataset is not finished, so there are no pairs to open"):
        mcpmix.open_pairs(tmp_path)


@pytest.fixture
def export(finished, tmp_path):
    """Exports the run under a name."""

    def write(name=NAME):
        places = {"raw": tmp_path / "raw", "preprocessed": tmp_path / "preprocessed"}
        return export_to_nnunet(finished.config.folder, name, **places)

    return write


def test_images_masks_groups_and_split_are_those_of_the_run(finished, export, tmp_path):
    assert export() == {"train": 4, "validation": 2, "test": 6, "known": 4, "counterparts": 12}
    back = load_collection("nnunet", root=tmp_path / "raw" / NAME)
    records = {record.id: record for record in finished.index.records if record.split != "known"}
    assert {sample.id for sample in back.samples} == set(records)
    for sample in back.samples:
        record = records[sample.id]
        np.testing.assert_array_equal(read_image(sample.image), read_image(record.image))
        np.testing.assert_array_equal(read_mask(sample.mask), read_mask(record.mask))
        assert (sample.group, back.splits[GIVEN][sample.id]) == (record.group, record.split)


def test_the_split_is_fold_0_and_counterparts_have_the_size_of_their_images(finished, export, tmp_path):
    export()
    folder = tmp_path / "preprocessed" / NAME
    parts = {"train": "train", "val": "validation"}
    fold = {name: [record.id for record in finished.index.part(part)] for name, part in parts.items()}
    assert read_json(folder / "splits_final.json") == [fold]
    assert read_json(folder / "counterparts/rla.json") == finished.config.rla.model_dump(mode="json")
    for pair in mcpmix.open_pairs(finished.config.folder):
        files = sorted((folder / "counterparts" / pair.id).iterdir())
        assert [file.name for file in files] == ["0.png", "1.png", "2.png"]
        for file, pixels in zip(files, pair.counterparts, strict=True):
            np.testing.assert_array_equal(read_image(file), pixels)


def test_counterparts_grow_to_images_of_any_size(tmp_path):
    run = FinishedRun(tmp_path / "runs", ["data.size=32"])
    folder = run.config.folder
    (folder / "config.yaml").write_text(to_yaml(run.config))
    index = read_json(folder / "dataset/index.json")
    sample = index["samples"][0]
    sample["width"], sample["height"] = 48, 40
    from mcpmix.core.files import write_json

    write_json(folder / "dataset/index.json", index)
    export_to_nnunet(folder, NAME, raw=tmp_path / "raw", preprocessed=tmp_path / "preprocessed")
    grown = read_image(tmp_path / "preprocessed" / NAME / "counterparts" / sample["id"] / "0.png")
    assert grown.shape == (40, 48, 3)
    small = read_image(run.pairs / f"images/{sample['id']}/0.png")
    assert np.abs(resize_image(grown, 32).astype(int) - small).mean() < 8


def test_what_cannot_be_written_leaves_nothing(export, tmp_path):
    with pytest.raises(DataError, match="nnU-Net would not find a data set in polyps"):
        export("polyps")
    assert not list(tmp_path.rglob("*.png"))
    export()
    with pytest.raises(StorageError, match="not empty"):
        export()
