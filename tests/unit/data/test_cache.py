"""The decoded cache: made once, shared, checked, made again if it is damaged."""

import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.helpers.progress import Recorder

from mcpmix.core.errors import DataError, StorageError
from mcpmix.data.cache import cached, load_arrays, reopen
from mcpmix.data.index import build_index
from mcpmix.data.splits import Split


def rows(count=3, size=5):
    rng = np.random.default_rng(7)
    return [
        (
            rng.integers(0, 256, (size, size, 3), dtype=np.uint8),
            rng.integers(0, 2, (size, size), dtype=np.uint8),
        )
        for _ in range(count)
    ]


DIGESTS = [("a", "x"), ("b", "y"), ("c", "z")]


def never():
    raise AssertionError("decoded although it is cached")


def test_made_once_then_mapped(tmp_path):
    made = rows()
    first = cached(tmp_path, DIGESTS, 5, lambda: made)
    again = cached(tmp_path, DIGESTS, 5, never)
    assert first.place == again.place
    for pixels in (first, again, reopen(again.place)):
        assert (pixels.images.dtype, pixels.images.shape) == (np.uint8, (3, 5, 5, 3))
        for row, (image, mask) in enumerate(made):
            np.testing.assert_array_equal(pixels.images[row], image)
            np.testing.assert_array_equal(pixels.masks[row], mask)
    assert isinstance(again.images.base, np.memmap)
    torch.from_numpy(again.images)  # no warning about arrays that cannot be written


@pytest.mark.parametrize(
    "other", [([("a", "x"), ("b", "Y"), ("c", "z")], 5), (DIGESTS[::-1], 5), (DIGESTS, 4)]
)
def test_other_digests_order_or_size_are_another_cache(tmp_path, other):
    mine = cached(tmp_path, DIGESTS, 5, rows)
    theirs = cached(tmp_path, *other, lambda: rows(size=other[1]))
    assert theirs.place != mine.place


def test_writing_to_an_array_leaves_the_file_alone(tmp_path):
    pixels = cached(tmp_path, DIGESTS, 5, rows)
    before = reopen(pixels.place).images.copy()
    pixels.images[:] = 0
    np.testing.assert_array_equal(cached(tmp_path, DIGESTS, 5, never).images, before)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


DAMAGE = {
    "a wrong bit": (lambda place: flip_a_bit(place / "images.npy"), "1 of 3 images are not what was written"),
    "a wrong mask": (lambda place: flip_a_bit(place / "masks.npy"), "1 of 3 images are not what was written"),
    "cut short": (lambda place: cut(place / "images.npy"), "images.npy|mmap length"),
    "lost": (lambda place: (place / "masks.npy").unlink(), "No such file"),
    "no header": (lambda place: (place / "masks.npy").write_bytes(b""), "magic string"),
    "bad manifest": (lambda place: (place / "manifest.json").write_text("{"), "is damaged"),
    "foreign manifest": (
        lambda place: (place / "manifest.json").write_text('{"digest": "", "key": {}, "counts": {}}'),
        "checksums",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_told_and_made_good(tmp_path, kind):
    damage, reason = DAMAGE[kind]
    place = cached(tmp_path, DIGESTS, 5, rows).place
    damage(place)
    said = Recorder()
    pixels = cached(tmp_path, DIGESTS, 5, rows, said)
    np.testing.assert_array_equal(pixels.images, np.stack([image for image, _ in rows()]))
    assert len(said.lines) == 1
    assert said.lines[0].startswith(f"{place} is damaged (")
    assert said.lines[0].endswith("); it is made again.")
    assert any(part in said.lines[0] for part in reason.split("|"))
    cached(tmp_path, DIGESTS, 5, never)


def test_what_a_kill_left_is_written_anew(tmp_path):
    def killed():
        yield rows()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, DIGESTS, 5, killed)
    assert len(list(tmp_path.glob("*.partial"))) == 1
    np.testing.assert_array_equal(cached(tmp_path, DIGESTS, 5, rows).images[0], rows()[0][0])
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_disk_has_a_message(tmp_path):
    def full():
        yield rows()[0]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError, match="is full"):
        cached(tmp_path, DIGESTS, 5, full)


ONE_OF_MANY = """
import sys, time
from pathlib import Path
import numpy as np
from mcpmix.data.cache import cached

def decode():
    with open(sys.argv[1] + "/decoded", "a") as file:
        file.write("x")
    time.sleep(0.3)
    for value in range(3):
        yield np.full((5, 5, 3), value, np.uint8), np.zeros((5, 5), np.uint8)

pixels = cached(Path(sys.argv[1]), [("a", "x"), ("b", "y"), ("c", "z")], 5, decode)
print(pixels.images[:, 0, 0, 0].tolist())
"""


def test_processes_that_ask_at_once_decode_once(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", ONE_OF_MANY, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in processes] == ["[0, 1, 2]"] * 3
    assert (tmp_path / "decoded").read_text() == "x"


# --- as part of the arrays ---------------------------------------------------------------------------------


@pytest.fixture
def records(make_pair):
    samples = [make_pair("a"), make_pair("b"), make_pair("c", side=14)]
    return build_index(samples, Split(("a",), ("b",), ("c",))).records


def test_cached_arrays_are_those_of_the_files(records, tmp_path):
    plain = load_arrays(records, 6)
    for _ in range(2):
        arrays = load_arrays(records, 6, cache=tmp_path / "cache")
        assert arrays.ids == plain.ids
        np.testing.assert_array_equal(arrays.images, plain.images)
        np.testing.assert_array_equal(arrays.masks, plain.masks)


def test_cached_arrays_need_no_files(records, tmp_path):
    load_arrays(records, 6, cache=tmp_path / "cache")
    for record in records:
        record.image.unlink()
    assert len(load_arrays(records, 6, cache=tmp_path / "cache")) == 3


def test_arrays_travel_to_workers_by_name_and_not_by_content(records, tmp_path):
    mapped = load_arrays(records, 200, cache=tmp_path / "cache")
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert received.ids == mapped.ids
    np.testing.assert_array_equal(received.images, mapped.images)
    plain = pickle.loads(pickle.dumps(load_arrays(records, 6)))
    np.testing.assert_array_equal(plain.masks, load_arrays(records, 6).masks)


def test_bad_files_leave_no_cache(records, tmp_path):
    records[1].image.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(DataError, match=r"b\.png cannot be read"):
            load_arrays(records, 6, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("manifest.json"))
