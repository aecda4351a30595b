from collections import deque
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.generator.light_makers import Light, picture
from tests.unit.generator.test_counterparts import make_maker

from mcpmix.core.errors import DataError
from mcpmix.generator.bank import make_filled
from mcpmix.generator.counterparts import Request
from mcpmix.generator.pair_source import BankPlan, FreshPlan, OnTheFly, PairBank
from mcpmix.generator.workers import WorkerPool

FALLING = [0.08, 0.06, 0.04, 0.02, 0.0, 0.0]


class PoolHere:
    """Makes everything in this process when it is collected, the last batch first: order must not matter."""

    def __init__(self, slots=3, batch_size=2):
        self.slots, self.batch_size = slots, batch_size
        self.waiting = deque()
        self.asked = []

    @property
    def has_room(self):
        return len(self.waiting) < self.slots

    def submit(self, requests):
        assert self.has_room
        self.waiting.append(list(requests))
        self.asked += requests

    def collect(self):
        requests = self.waiting.pop()
        return requests, make_filled(Light(), requests, self.batch_size)

    def close(self):
        self.waiting.clear()


def order(epoch):
    return np.random.default_rng(epoch).permutation(5)


def source_of(plan, pool=None, epochs=6, ahead=4, stored=None):
    pool = pool or PoolHere()
    return OnTheFly(pool, plan, order, epochs=epochs, batch_size=2, ahead=ahead, stored=stored)


def shades(images):
    return images[:, 0, 0, 0].tolist()


def run(source, plan, epochs, gates=(), first=1):
    """Train on three batches of two (the last one is filled up); checks every image."""
    for epoch in range(first, epochs + 1):
        source.begin(epoch, gates[: epoch - 1])
        used = plan.used(epoch, gates[: epoch - 1])
        for chosen in np.split(np.resize(order(epoch), 6), 3):
            expected = [picture(place, used[place])[0, 0, 0] for place in chosen]
            assert shades(source.take(epoch, chosen)) == expected


def test_each_epoch_gets_its_own_images_and_none_is_made_twice():
    pool, plan = PoolHere(), FreshPlan(5, seed=0)
    run(source_of(plan, pool), plan, 6)
    assert len(pool.asked) == len(set(pool.asked)) == 30  # nothing beyond the last epoch either


def test_no_more_is_made_ahead_than_allowed():
    pool = PoolHere(slots=10)
    source = source_of(FreshPlan(5, seed=0), pool, ahead=4)
    source.begin(1)
    assert len(pool.asked) == 4
    assert [request.index for request in pool.asked] == order(1)[:4].tolist()  # in the order of need
    source.take(1, order(1)[:2])
    assert len(pool.asked) == 6


def test_what_is_asked_for_out_of_turn_comes_first_and_needs_no_start():
    pool = PoolHere(slots=1)
    source = source_of(FreshPlan(5, seed=0), pool)
    assert shades(source.take(3, np.array([4, 1]))) == shades(np.stack([picture(4, 2), picture(1, 2)]))
    assert pool.asked == [Request(4, 2), Request(1, 2)]


def test_a_budget_makes_less_and_a_resumed_run_sees_the_same():
    pool, plan = PoolHere(), FreshPlan(5, seed=1, budget=True)
    run(source_of(plan, pool), plan, 6, FALLING)
    assert 10 < len(pool.asked) < 30
    assert len(pool.asked) == len(set(pool.asked))
    run(source_of(plan), plan, 6, FALLING, first=4)  # as after a kill in epoch 4


def test_refresh_takes_from_the_bank_and_makes_only_what_is_new():
    stored = {(place, k): picture(place, k) for place in range(5) for k in range(2)}
    plan = BankPlan([[0, 1]] * 5, seed=2, refresh=0.4, first_new=2)
    pool = PoolHere()
    run(source_of(plan, pool, stored=stored), plan, 6)
    assert pool.asked
    assert all(request.replica >= 2 for request in pool.asked)
    assert len(pool.asked) == len(set(pool.asked))  # what is still in the bank is kept
    run(source_of(plan, stored=stored), plan, 6, first=5)


def test_old_images_are_let_go():
    plan = FreshPlan(5, seed=0)
    source = source_of(plan)
    run(source, plan, 6)
    assert {request.replica for request in source._images} == {5}


def test_progress_tells_the_pace():
    source = source_of(FreshPlan(5, seed=0))
    source.take(1, np.array([0]))
    assert "pairs/s, waited for them" in source.note()


def make_maker_in_worker(models):
    """As the real one: a spawned process knows nothing of our one thread, on which bits depend."""
    torch.set_num_threads(1)
    return make_maker(models)


@pytest.mark.slow
def test_spawned_workers_give_the_same_images_whatever_their_number(random_models):
    expected = make_filled(make_maker(random_models), [Request(i, 1) for i in range(2)], 2)
    for workers in (1, 2):
        pool = WorkerPool(
            partial(make_maker_in_worker, random_models), workers=workers, slots=3, batch_size=2, size=64
        )
        plan = FreshPlan(3, seed=0)
        source = OnTheFly(pool, plan, lambda _: np.array([2, 0, 1]), epochs=2, batch_size=2, ahead=6)
        try:
            source.begin(1)
            first = source.take(1, np.arange(2))
            source.begin(2)
            second = source.take(2, np.arange(2))
        finally:
            source.close()
        assert np.array_equal(second, expected)
        assert not np.array_equal(first, second)


@pytest.fixture
def bank_folder(tmp_path):
    for name, shade in (("a", 0), ("b", 100)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for replica in range(3):
            pixels = np.full((4, 4, 3), shade + replica, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{replica}.png")
    return tmp_path


def test_bank_draws_one_replica_of_the_right_parent_each_epoch(bank_folder):
    bank = PairBank(bank_folder, ("a", "b"), [[0, 1, 2], [0, 2]], seed=0)
    both = np.array([0, 1])
    drawn = np.array([shades(bank.take(epoch, both)) for epoch in range(1, 40)])
    assert set(drawn[:, 0]) == {0, 1, 2}
    assert set(drawn[:, 1]) == {100, 102}
    again = PairBank(bank_folder, ("a", "b"), [[0, 1, 2], [0, 2]], seed=0)
    assert shades(again.take(7, both[::-1])) == drawn[6, ::-1].tolist()


def test_damaged_image_of_the_bank_is_named(bank_folder):
    (bank_folder / "images" / "b" / "1.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"b/1\.png"):
        PairBank(bank_folder, ("a", "b"), [[0, 1, 2]] * 2, seed=0)
