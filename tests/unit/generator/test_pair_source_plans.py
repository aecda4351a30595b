import numpy as np
import pytest

from mcpmix.generator.pair_source import BankPlan, FreshPlan, effort

FALLING = [0.08, 0.06, 0.04, 0.02, 0.0, 0.0]


def test_effort_follows_s_rho_two_epochs_late():
    assert [effort(epoch, FALLING) for epoch in range(1, 8)] == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_effort_never_exceeds_the_start_and_survives_gates_at_zero():
    assert effort(4, [0.1, 0.3]) == 1
    assert effort(9, [0.0, 0.0]) == 1
    assert effort(4, []) == 1


def test_fresh_plan_without_budget_renews_everybody():
    plan = FreshPlan(3, seed=0)
    assert plan.used(1).tolist() == [0, 0, 0]
    assert plan.used(5, FALLING).tolist() == [4, 4, 4]
    assert plan.current(5).tolist() == [[4]] * 3


def test_budget_renews_the_share_that_effort_says_and_keeps_the_rest():
    plan = FreshPlan(4000, seed=3, budget=True)
    before = plan.used(1, FALLING)
    for epoch in range(2, 8):
        now = plan.used(epoch, FALLING)
        renewed = now == epoch - 1
        assert renewed.mean() == pytest.approx(effort(epoch, FALLING), abs=0.03)
        assert np.array_equal(now[~renewed], before[~renewed])
        before = now


def test_budget_depends_on_seed_epoch_and_gates_alone():
    one, other = FreshPlan(50, 1, budget=True), FreshPlan(50, 1, budget=True)
    walked = [one.used(epoch, FALLING) for epoch in range(1, 8)]
    assert np.array_equal(walked[-1], other.used(7, FALLING))
    assert np.array_equal(other.used(4, FALLING[:2]), walked[3])  # what came later does not matter
    assert not np.array_equal(walked[4], FreshPlan(50, 2, budget=True).used(5, FALLING))


def test_bank_draws_only_what_is_stored():
    plan = BankPlan([[0, 1, 2], [1], [0, 2]], seed=0)
    drawn = np.array([plan.used(epoch) for epoch in range(1, 60)])
    assert [set(column) for column in drawn.T] == [{0, 1, 2}, {1}, {0, 2}]


def test_refresh_replaces_one_place_of_the_renewed_masks_for_good():
    plan = BankPlan([[0, 1, 2]] * 2000, seed=5, refresh=0.3, first_new=3)
    before = BankPlan([[0, 1, 2]] * 2000, seed=5).current(1)
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
    plan = BankPlan([[0, 1]] * 4000, seed=5, refresh=0.5, budget=True, first_new=2)
    shares = [(plan.used(epoch, FALLING) == 2 + epoch - 1).mean() for epoch in (1, 4, 7)]
    assert shares == pytest.approx([0.5, 0.375, 0], abs=0.03)


def test_without_refresh_nothing_changes():
    assert np.array_equal(BankPlan([[0, 1]] * 9, seed=5).current(40), np.array([[0, 1]] * 9))
