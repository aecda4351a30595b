from itertools import product

import pytest

from mcpmix.core.errors import ConfigError
from mcpmix.mixing import STRATEGIES, build_strategy
from mcpmix.mixing.registry import setting_problems
from mcpmix.mixing.strategy import require

OWN = [name for name in STRATEGIES if not name.startswith("mcpmix")]


def test_require_lists_every_problem():
    with pytest.raises(ConfigError) as caught:
        require("Some", {"a is 1; expected 0": False, "b is fine": True}, ["c is odd"])
    assert "Some cannot be built" in str(caught.value)
    assert "a is 1" in str(caught.value)
    assert "c is odd" in str(caught.value)
    assert "b is fine" not in str(caught.value)
    require("Some", {"b is fine": True})


@pytest.mark.parametrize("name", OWN)
def test_defaults_and_all_of_the_search_range_are_accepted(name):
    assert setting_problems(name, {}) == []
    search = STRATEGIES[name].search
    for values in product(*search.values()):
        settings = dict(zip(search, values, strict=True))
        assert setting_problems(name, settings) == []
        assert build_strategy(name, **settings)


@pytest.mark.parametrize("name", OWN)
def test_defaults_lie_in_the_search_range(name):
    strategy = build_strategy(name)
    for setting, values in STRATEGIES[name].search.items():
        if hasattr(strategy, setting):
            assert getattr(strategy, setting) in values, setting


def test_lists_of_a_file_stand_for_tuples():
    assert setting_problems("smoothmix", {"sigma": [0.1, 0.25]}) == []
    assert build_strategy("smoothmix", sigma=[0.1, 0.25]).sigma == (0.1, 0.25)


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("mixup", {"alfa": 0.4}, ["mixup.alfa", "did you mean alpha?"]),
        ("mixup", {"zzz": 1}, ["known: alpha, probability, per_sample"]),
        ("mixup", {"alpha": "much"}, ["mixup.alpha", "valid number", "'much'"]),
        ("mixup", {"alpha": -1}, ["alpha is -1", "0 or more"]),
        ("gridmix", {"mode": "rings"}, ["gridmix.mode", "'cells' or 'holes'"]),
        ("full-sup", {"alpha": 1}, ["known: none"]),
        ("mixupp", {}, ["There is no strategy 'mixupp'", "did you mean mixup?"]),
        ("mcpmix", {"s_max": 0.5}, ["section rla"]),
        ("diffusemix", {"editor": "x"}, ["diffusemix.editor: no such setting"]),
    ],
)
def test_a_problem_says_where_and_what_to_do(name, settings, parts):
    problems = setting_problems(name, settings)
    assert len(problems) == 1
    assert problems[0].startswith(name)
    for part in parts:
        assert part in problems[0]


def test_all_problems_are_told_at_once():
    assert len(setting_problems("cutmix", {"betta": 1, "probability": "often"})) == 2
