"""Exit codes and the joining of problems."""

from mcpmix.core import errors
from mcpmix.core.errors import McpmixError, bullet_list


def test_exit_codes_are_distinct_and_say_failure():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, McpmixError)
    ]
    codes = [kind.exit_code for kind in kinds]

    assert len(kinds) == 7
    assert sorted(codes) == list(range(1, 8))


def test_bullet_list_has_a_line_for_every_problem():
    assert bullet_list("Two problems", ["first", "second"]) == "Two problems\n  - first\n  - second"
