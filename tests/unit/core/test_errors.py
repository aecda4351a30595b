"""Exit codes and the joining of problems."""

from mcpmix.core import errors
from mcpmix.core.errors import McpmixError, bullet_list, did_you_mean, sorted_list


def test_exit_codes_are_distinct_and_say_failure():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, McpmixError)
    ]
    codes = [kind.exit_code for kind in kinds]

    assert len(kinds) == 7
    assert sorted(codes) == list(range(1, 8))


def test_bullet_list_has_a_line_for_every_problem():
    assert bullet_list("Two problems", ["first", "second"]) == "Two problems\n  - first\n  - second"


def test_the_nearest_name_is_suggested_whatever_its_case():
    assert did_you_mean("EPOCH", ["seeds", "epochs"]) == "did you mean epochs?"


def test_without_a_near_name_the_known_ones_are_listed():
    assert did_you_mean("zzz", ["seeds", "epochs"]) == "known: seeds, epochs"
    assert did_you_mean("zzz", []) == "known: none"
    assert did_you_mean("zzz", map(str, range(1000))).endswith(", 59, ...")


def test_of_each_kind_a_few_are_shown_and_all_are_counted():
    problems = [f"/a b/image{n}.png has no mask. Expected image{n}." for n in range(8)]
    problems += ["/a b/x.png is 3 x 4 pixels, but its image is 5 x 6. Export it."]
    text = sorted_list("Problems:", problems, most=3)
    assert text.count("has no mask") == 3
    assert "  - and 5 more of this kind, 8 in all\n" in text
    assert text.endswith("Export it.")
