"""The figures of `benchmarks/synthesis.py swap`, by hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def swap(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("_swap")


MASKS = np.zeros((4, 4, 4), np.uint8)
MASKS[:2, :2, :2] = 1  # two upper left, two lower right
MASKS[2:, 2:, 2:] = 1


def test_partners_lie_elsewhere_and_are_of_the_same_fold(swap):
    free = swap.draw_partners(MASKS, [0, 0, 0, 0], "abcd", 0)
    assert all(partner in (2, 3) for partner in free[:2])
    assert all(partner in (0, 1) for partner in free[2:])
    # within these folds all masks overlap: the least of them, but never the frame itself
    assert swap.draw_partners(MASKS, [0, 0, 1, 1], "abcd", 0).tolist() == [1, 0, 3, 2]
    with pytest.raises(SystemExit, match="two training frames"):
        swap.draw_partners(MASKS, [0, 1, 1, 1], "abcd", 0)


def test_where_the_change_is(swap):
    one = np.zeros((1, 4, 4, 3), np.uint8)
    two = one.copy()
    two[0, :2, :2] = 30  # inside: 120 of 8 pixels
    two[0, 3, 0] = 15  # outside: 15 of 8 pixels
    for pair in ((one, two), (two, one)):  # no wrap-around of unsigned numbers
        found = swap.where_changed(*pair, MASKS[:1], MASKS[2:3])
        assert found == pytest.approx({"share": 120 / 135, "area": 0.5, "concentration": 8.0})


def test_where_nothing_changed_nothing_is_concentrated(swap):
    one = np.zeros((1, 4, 4, 3), np.uint8)
    found = swap.where_changed(one, one, MASKS[:1], MASKS[2:3])
    assert found == {"share": 0.5, "area": 0.5, "concentration": 1.0}
