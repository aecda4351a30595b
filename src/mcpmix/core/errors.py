"""Errors that a user can act on. Each carries the exit code of the command line.

A message says what was expected, what was found, where, and what to do. Programming mistakes are not wrapped:
they stay ordinary exceptions with a traceback.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_MOST_LISTED = 60  # names; timm alone knows more than a thousand networks


class McpmixError(Exception):
    """Base of all errors with a message for the user."""

    exit_code = 1


class ConfigError(McpmixError):
    """The configuration is wrong; the message lists every problem."""

    exit_code = 2


class DataError(McpmixError):
    """Images, masks or splits are wrong; the message lists every problem."""

    exit_code = 3


class ModelError(McpmixError):
    """Weights are missing, damaged or do not fit."""

    exit_code = 4


class StorageError(McpmixError):
    """A folder is in use, not writable or full."""

    exit_code = 5


class DependencyError(McpmixError):
    """An optional package is missing; the message names the extra that brings it."""

    exit_code = 6


class TrainingError(McpmixError):
    """Training cannot continue, for example because a loss is not finite."""

    exit_code = 7


def bullet_list(headline: str, problems: Sequence[str]) -> str:
    """Join all problems of one kind into a message: a headline and one line each."""
    return "\n".join([headline, *(f"  - {problem}" for problem in problems)])


def sorted_list(headline: str, problems: Sequence[str], most: int = 5) -> str:
    """As `bullet_list`, with the first few problems of each kind and the number of the others.

    Problems are of one kind if they begin with the same sentence, names and numbers apart.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        sentence = re.split(r"[.;:] ", problem, maxsplit=1)[0]
        kinds[re.sub(r"\S*[\d/\\.]\S*|(?<=: ).*", "", sentence)].append(problem)
    lines = []
    for found in kinds.values():
        lines += found[:most]
        if len(found) > most:
            lines.append(f"and {len(found) - most} more of this kind, {len(found)} in all")
    return bullet_list(headline, lines)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name nearest to a mistyped one, as a question; if none is near, the known names."""
    names = list(known)
    if near := difflib.get_close_matches(name.lower(), names, n=1):
        return f"did you mean {near[0]}?"
    more = ", ..." if len(names) > _MOST_LISTED else ""
    return f"known: {', '.join(names[:_MOST_LISTED]) or 'none'}{more}"
