from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.light_makers import Light, picture
from tests.unit.generator.test_counterparts import make_maker

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.data.index import Arrays
from mcpmix.generator.counterparts import make_filled
from mcpmix.generator.pair_source import OnTheFly, PairSource, Plan, effort, open_source, read_bank
from mcpmix.generator.workers import Request, WorkerPool

FALLING = [0.08, 0.06, 0.04, 0.02, 0.0, 0.0]


def fresh(count, seed, budget=False):
    """The plan of pairs made in training: all new in each epoch, or as many as the budget allows."""
    return Plan([[0]] * count, seed, refresh=1.0, budget=budget)


def test_effort_follows_s_rho_two_epochs_late():
    assert [effort(epoch, FALLING) for epoch in range(1, 8)] == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_effort_never_exceeds_the_start_and_survives_gates_at_zero():
    assert effort(4, [0.1, 0.3]) == 1
    assert effort(9, [0.0, 0.0]) == 1
    assert effort(4, []) == 1


def test_fresh_plan_without_budget_renews_everybody():
    plan = fresh(3, seed=0)
    assert plan.used(1).tolist() == [0, 0, 0]
    assert plan.used(5, FALLING).tolist() == [4, 4, 4]
    assert plan.current(5).tolist() == [[4]] * 3


def test_budget_renews_the_share_that_effort_says_and_keeps_the_rest():
    plan = fresh(4000, seed=3, budget=True)
    before = plan.used(1, FALLING)
    for epoch in range(2, 8):
        now = plan.used(epoch, FALLING)
        renewed = now == epoch - 1
        assert renewed.mean() == pytest.approx(effort(epoch, FALLING), abs=0.03)
        assert np.array_equal(now[~renewed], before[~renewed])
        before = now


def test_budget_depends_on_seed_epoch_and_gates_alone():
    one, other = fresh(50, 1, budget=True), fresh(50, 1, budget=True)
    walked = [one.used(epoch, FALLING) for epoch in range(1, 8)]
    assert np.array_equal(walked[-1], other.used(7, FALLING))
    assert np.array_equal(other.used(4, FALLING[:2]), walked[3])  # what came later does not matter
    assert not np.array_equal(walked[4], fresh(50, 2, budget=True).used(5, FALLING))


def test_bank_draws_only_what_is_stored():
    plan = Plan([[0, 1, 2], [1], [0, 2]], seed=0)
    drawn = np.array([plan.used(epoch) for epoch in range(1, 60)])
    assert [set(column) for column in drawn.T] == [{0, 1, 2}, {1}, {0, 2}]


def test_refresh_replaces_one_place_of_the_renewed_masks_for_good():
    plan = Plan([[0, 1, 2]] * 2000, seed=5, refresh=0.3, first_new=3)
    before = Plan([[0, 1, 2]] * 2000, seed=5).current(1)
    for epoch in range(1, 5):
        now, used = plan.current(epoch), plan.used(epoch)
        changed = now != before
        renewed = changed.any(axis=1)
        assert renewed.mean() == pytest.approx(0.3, abs=0.04)
        assert (changed.sum(axis=1) <= 1).all()
        assert (now[changed] == 3 + epoch - 1).all()
        assert (used[renewed] == 3 + epoch - 1).all()  # what is made anew is used at once
        assert (now == used[:, None]).any(axis=1).all()
        before = now


def test_refresh_follows_the_budget():
    plan = Plan([[0, 1]] * 4000, seed=5, refresh=0.5, budget=True, first_new=2)
    shares = [(plan.used(epoch, FALLING) == 2 + epoch - 1).mean() for epoch in (1, 4, 7)]
    assert shares == pytest.approx([0.5, 0.375, 0], abs=0.03)


def test_without_refresh_nothing_changes():
    assert np.array_equal(Plan([[0, 1]] * 9, seed=5).current(40), np.array([[0, 1]] * 9))


class PoolHere:
    """Makes a batch in this process when somebody waits for it."""

    def __init__(self):
        self.asked = []

    def submit(self, requests):
        self.asked += requests
        return Later(list(requests))

    def close(self):
        pass


class Later:
    def __init__(self, requests):
        self.requests = requests

    def result(self):
        return list(make_filled(Light(), self.requests, 2))


def order(epoch):
    return np.random.default_rng(epoch).permutation(5)


def source_of(plan, pool=None, epochs=6, ahead=4, stored=None):
    pool = pool or PoolHere()
    return OnTheFly(plan, stored or {}, pool, order, epochs=epochs, batch_size=2, ahead=ahead)


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
    pool, plan = PoolHere(), fresh(5, seed=0)
    run(source_of(plan, pool), plan, 6)
    assert len(pool.asked) == len(set(pool.asked)) == 30  # nothing beyond the last epoch either


def test_no_more_is_made_ahead_than_allowed():
    pool = PoolHere()
    source = source_of(fresh(5, seed=0), pool, ahead=4)
    source.begin(1)
    assert len(pool.asked) == 4
    assert [request.index for request in pool.asked] == order(1)[:4].tolist()  # in the order of need
    source.take(1, order(1)[:2])
    assert len(pool.asked) == 6


def test_what_is_asked_for_out_of_turn_comes_first_and_needs_no_start():
    pool = PoolHere()
    source = source_of(fresh(5, seed=0), pool)
    assert shades(source.take(3, np.array([4, 1]))) == shades(np.stack([picture(4, 2), picture(1, 2)]))
    assert pool.asked == [Request(4, 2), Request(1, 2)]


def test_a_budget_makes_less_and_a_resumed_run_sees_the_same():
    pool, plan = PoolHere(), fresh(5, seed=1, budget=True)
    run(source_of(plan, pool), plan, 6, FALLING)
    assert 10 < len(pool.asked) < 30
    assert len(pool.asked) == len(set(pool.asked))
    run(source_of(plan), plan, 6, FALLING, first=4)  # as after a kill in epoch 4


def test_refresh_takes_from_the_bank_and_makes_only_what_is_new():
    stored = {Request(place, k): picture(place, k) for place in range(5) for k in range(2)}
    plan = Plan([[0, 1]] * 5, seed=2, refresh=0.4, first_new=2)
    pool = PoolHere()
    run(source_of(plan, pool, stored=stored), plan, 6)
    assert pool.asked
    assert all(request.replica >= 2 for request in pool.asked)
    assert len(pool.asked) == len(set(pool.asked))  # what is still in the bank is kept
    run(source_of(plan, stored=stored), plan, 6, first=5)


def test_old_images_are_let_go():
    plan = fresh(5, seed=0)
    source = source_of(plan)
    run(source, plan, 6)
    assert {request.replica for request in source._images} == {5}


def test_progress_tells_the_pace():
    source = source_of(fresh(5, seed=0))
    source.take(1, np.array([0]))
    assert "pairs/s, waited for them" in source.note()


def prepare_in_worker(models):
    """As the real one: a spawned process knows nothing of our one thread, on which bits depend."""
    torch.set_num_threads(1)
    return partial(make_filled, make_maker(models), batch_size=2)


@pytest.mark.slow
def test_spawned_workers_give_the_same_images_whatever_their_number(random_models):
    expected = make_filled(make_maker(random_models), [Request(i, 1) for i in range(2)], 2)
    for workers in (1, 2):
        pool = WorkerPool(partial(prepare_in_worker, random_models), workers=workers)
        plan = fresh(3, seed=0)
        source = OnTheFly(plan, {}, pool, lambda _: np.array([2, 0, 1]), epochs=2, batch_size=2, ahead=6)
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


def bank_in(folder, stored=((0, 1, 2), (0, 2))):
    nothing = np.zeros((2, 4, 4, 3), np.uint8)
    train = Arrays(("a", "b"), nothing, nothing[..., 0])
    return PairSource(Plan(stored, seed=0), read_bank(folder, stored, train))


def test_bank_draws_one_replica_of_the_right_parent_each_epoch(bank_folder):
    bank = bank_in(bank_folder)
    both = np.array([0, 1])
    drawn = np.array([shades(bank.take(epoch, both)) for epoch in range(1, 40)])
    assert set(drawn[:, 0]) == {0, 1, 2}
    assert set(drawn[:, 1]) == {100, 102}
    assert shades(bank_in(bank_folder).take(7, both[::-1])) == drawn[6, ::-1].tolist()


def test_damaged_image_of_the_bank_is_named(bank_folder):
    (bank_folder / "images" / "b" / "1.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"b/1\.png"):
        bank_in(bank_folder, [[1]] * 2).take(1, np.arange(2))


def arrays():
    return Arrays(("a",), np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 4, 4), np.uint8))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "needs the pairs: run `mcpmix synthesize` first"),
        (("synthesis.source=on-the-fly",), "need the generator and the depth maps: run `mcpmix finetune`"),
    ],
)
def test_what_is_missing_is_named_with_its_command(make_config, tmp_path, overrides, message):
    config = make_config(tmp_path, *overrides)
    with pytest.raises(DataError, match=message):
        open_source(config, arrays(), 0, lambda _: np.array([0]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("synthesis.source=on-the-fly", "synthesis.refresh=0.1"), "refresh is for source: bank"),
        (("synthesis.budget=true",), "budget is for pairs made in training"),
        (("synthesis.refresh=1.5",), "refresh"),
    ],
)
def test_settings_that_do_nothing_are_refused(make_config, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, *overrides)


@pytest.mark.parametrize("preset", ["paper", "small", "tiny", "demo"])
def test_no_preset_saves_effort_or_refreshes(preset):
    from mcpmix.config_file import resolve_config

    given = {"preset": preset, "data": {"source": "phantom"}}
    synthesis = resolve_config(given).synthesis
    assert (synthesis.budget, synthesis.refresh) == (False, 0)
