"""Prints: equal on all machines, shared by near-duplicates only, found by sorting as by comparing all."""

from itertools import product

import numpy as np
import pytest
from scipy import ndimage

from mcpmix.data.prints import BYTES, HASHES, SIDE, alike_prints, hashes_of, print_of


def blobs(seed):
    """A smooth picture, as a 32 x 32 grey version is."""
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((SIDE, SIDE)), 3)
    return (255 * (noise - noise.min()) / np.ptp(noise)).astype(np.uint8).ravel()


def shaken(grey, strength):
    noise = np.random.default_rng(1).normal(0, strength, grey.size)
    return np.clip(np.round(grey * 0.8 + 20 + noise), 0, 255).astype(np.uint8)


def test_a_print_is_the_same_everywhere():
    ramp = np.arange(SIDE * SIDE, dtype=np.uint16).astype(np.uint8)
    hashes = hashes_of([print_of(ramp)])
    assert hashes.shape == (1, HASHES)
    assert hashes.nbytes == BYTES
    assert hashes[0, :4].tolist() == [62803, 3415, 32418, 422]


def test_brightness_and_contrast_do_not_change_it():
    dark = (blobs(3) // 2).astype(np.uint8)
    assert print_of(dark) == print_of(dark * 2 + 1)


def test_a_single_grey_has_none():
    assert print_of(np.full(SIDE * SIDE, 7, np.uint8)) == ""


def test_near_duplicates_share_hashes_and_others_do_not():
    known = [print_of(blobs(seed)) for seed in range(40)]
    asked = [print_of(shaken(blobs(seed), 4)) for seed in (5, 30)]
    found = {(row, column): count for row, column, count in alike_prints(asked, known)}
    assert set(found) == {(0, 5), (1, 30)}
    assert all(count > 20 for count in found.values())


@pytest.mark.parametrize("strength", [3, 6, 12])
def test_what_is_found_is_what_comparing_all_finds(strength):
    first = [print_of(shaken(blobs(seed), strength)) for seed in range(12)]
    second = [print_of(blobs(seed)) for seed in (3, 1, 4, 1, 5)]
    one, other = hashes_of(first), hashes_of(second)
    counts = {(a, b): int((one[a] == other[b]).sum()) for a, b in product(range(12), range(5))}
    wanted = [(*place, count) for place, count in sorted(counts.items()) if count >= 3]
    assert list(alike_prints(first, second)) == wanted
    assert strength > 6 or wanted


def test_nothing_is_alike_in_an_empty_list():
    assert list(alike_prints([], [print_of(blobs(0))])) == []
    assert list(alike_prints([print_of(blobs(0))], [])) == []
