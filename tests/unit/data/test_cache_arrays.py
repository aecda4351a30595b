"""Arrays: what is in the files, at training size, in the order asked for."""

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.cache import load_arrays
from mcpmix.data.index import build_index
from mcpmix.data.sample import read_image, read_mask, resize_image, resize_mask
from mcpmix.data.splits import Split


@pytest.fixture
def records(make_pair):
    samples = [make_pair("a", side=8), make_pair("b", side=8), make_pair("c", side=14)]
    return build_index(samples, Split(("a",), ("b",), ("c",))).records


def test_order_shapes_and_content(records):
    arrays = load_arrays(records[::-1], 5)
    assert arrays.ids == ("c", "b", "a")
    assert len(arrays) == 3
    assert (arrays.images.shape, arrays.images.dtype) == ((3, 5, 5, 3), np.uint8)
    assert (arrays.masks.shape, arrays.masks.dtype) == ((3, 5, 5), np.uint8)
    for row, record in enumerate(records[::-1]):
        np.testing.assert_array_equal(arrays.images[row], resize_image(read_image(record.image), 5))
        np.testing.assert_array_equal(arrays.masks[row], resize_mask(read_mask(record.mask), 5))


def test_no_records_give_empty_arrays():
    assert load_arrays([], 4).images.shape == (0, 4, 4, 3)


def test_lost_and_changed_files_are_all_named(records):
    records[0].image.unlink()
    Image.fromarray(255 - np.asarray(Image.open(records[1].mask))).save(records[1].mask)
    Image.fromarray(255 - np.asarray(Image.open(records[2].image))).save(records[2].image)
    with pytest.raises(DataError) as caught:
        load_arrays(records, 5)
    assert str(caught.value).split("\n") == [
        "The data set is no longer what its index says. Restore the files, or delete the run's folder "
        "dataset to make the index again:",
        f"  - {records[0].image} does not exist. Check the path, or restore the file.",
        f"  - {records[1].mask} has changed since it was indexed.",
        f"  - {records[2].image} has changed since it was indexed.",
    ]
