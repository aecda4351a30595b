"""Settings of strategies that came from a user: refused with every problem at once."""

from collections.abc import Mapping, Sequence

from mcpmix.core.errors import ConfigError, bullet_list


def require(method: str, checks: Mapping[str, bool], problems: Sequence[str] = ()) -> None:
    """Refuse settings.

    Args:
        method: Name of the method, for the message.
        checks: What is wrong, and whether it is not: `{"k is -1; expected 0 or more": k >= 0}`.
        problems: What else is wrong.

    Raises:
        ConfigError: With every problem.
    """
    found = [text for text, fine in checks.items() if not fine] + list(problems)
    if found:
        raise ConfigError(bullet_list(f"{method} cannot be built with these settings:", found))
