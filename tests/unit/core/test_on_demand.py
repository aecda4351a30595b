"""Values made when they are asked for: the first are kept, the others made again."""

import numpy as np
import pytest

from mcpmix.core import on_demand
from mcpmix.core.on_demand import OnDemand


def test_values_are_made_once_as_long_as_there_is_room(monkeypatch):
    monkeypatch.setattr(on_demand, "_MOST_KEPT", 20)
    made = []
    values = OnDemand(range(4), lambda key: made.append(key) or np.full(8, key, np.uint8))
    assert (len(values), list(values), 3 in values, 4 in values) == (4, [0, 1, 2, 3], True, False)
    assert made == []
    for _ in range(2):
        assert [int(values[key][0]) for key in (2, 0, 1)] == [2, 0, 1]
    assert made == [2, 0, 1, 1]  # two of 8 bytes have room


def test_a_key_that_cannot_be_made_is_an_error():
    with pytest.raises(KeyError):
        OnDemand({1}, {1: np.zeros(1)}.__getitem__)[2]
