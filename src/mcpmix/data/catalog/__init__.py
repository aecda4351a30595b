"""Public data sets, each in a module of its own with an `ENTRY`: found by name, loaded from their archives.

A new data set is one new module of this package; nothing else has to be changed.
"""

import difflib
import importlib
import pkgutil
from functools import cache
from pathlib import Path

from mcpmix.core.errors import ConfigError
from mcpmix.data.catalog.entry import Entry
from mcpmix.data.collection import Collection

__all__ = ["Entry", "entries", "entry", "load"]


@cache
def entries() -> dict[str, Entry]:
    """All data sets by name, in the order of their names."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    found = [module.ENTRY for module in modules if isinstance(getattr(module, "ENTRY", None), Entry)]
    return {item.name: item for item in sorted(found, key=lambda item: item.name)}


def entry(name: str) -> Entry:
    """The data set of a name.

    Raises:
        ConfigError: there is none; with the nearest name, or with all.
    """
    known = entries()
    if name not in known:
        nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
        raise ConfigError(f"no data set {name!r} in the catalogue: {hint}")
    return known[name]


def load(name: str, root: Path) -> Collection:
    """Find a data set in its unpacked archive.

    Args:
        name: one of `entries()`.
        root: the folder that the archive unpacks to, or the folder that holds it.

    Returns:
        Its samples with groups, and the splits that come with it. Nothing is decoded.

    Raises:
        ConfigError: no data set has this name.
        DataError: the folder has another layout, or images lack masks; with every problem.
    """
    return entry(name).load(root)
