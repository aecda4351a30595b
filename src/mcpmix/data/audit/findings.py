"""What an audit finds."""

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0
    """Worth knowing."""
    WARNING = 1
    """Results may suffer."""
    ERROR = 2
    """The data set cannot be used, or its figures would be wrong."""


@dataclass(frozen=True)
class Finding:
    """One kind of problem, with all samples that have it.

    Attributes:
        severity: how bad it is.
        title: what is the matter, in a few words.
        remedy: what to do.
        items: the samples or files, each with what was found there.
        ids: ids of the samples in `items`, for pictures.
    """

    severity: Severity
    title: str
    remedy: str
    items: tuple[str, ...]
    ids: tuple[str, ...] = ()
