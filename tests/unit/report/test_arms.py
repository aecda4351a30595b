"""Names and colours of arms."""

from mcpmix.mixing.registry import STRATEGIES
from mcpmix.report.arms import arms_of, label_of, method_of, reference_of


def test_every_strategy_has_a_name_and_a_description_of_its_own():
    arms = arms_of(list(STRATEGIES))
    assert len({arm.label for arm in arms}) == len(arms)
    assert all(arm.description for arm in arms), "describe it in report/arms.py"
    assert len({(arm.colour, arm.marker, arm.symbol) for arm in arms}) == len(arms)


def test_unknown_arms_keep_their_names():
    assert label_of("own-method") == "own-method"
    assert len(arms_of([f"arm{k}" for k in range(30)])) == 30


def test_who_is_compared_with_whom():
    assert reference_of(["mcpmix-rla", "full-sup"]) == "full-sup"
    assert reference_of(["mcpmix", "mcpmix-rla"]) == "mcpmix"
    assert reference_of(["mcpmix-rla"]) is None
    assert method_of(["full-sup", "mcpmix-rla", "mcpmix"]) == "mcpmix-rla"
    assert method_of(["full-sup", "mcpmix", "cutmix"]) == "cutmix"
    assert method_of(["mcpmix-rla", "mcpmix"]) == "mcpmix"
    assert method_of(["full-sup"]) is None
