"""The pairs of a run, opened for an own Dataset."""

import numpy as np
import pytest
from tests.helpers.finished_run import FinishedRun

import mcpmix
from mcpmix.core.errors import DataError
from mcpmix.data.sample import read_image, read_mask, resize_image, resize_mask


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = FinishedRun(tmp_path_factory.mktemp("runs"))
    from mcpmix.config_file import to_yaml

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
