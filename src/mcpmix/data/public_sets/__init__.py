"""Public data sets, each in a module of its own with an `ENTRY`: found by name, loaded from their archives.

A new data set is one new module of this package; nothing else has to be changed.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mcpmix.core.errors import ConfigError, DataError, did_you_mean
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.archives import folder_of, is_archive, unpack
from mcpmix.data.layouts import Collection
from mcpmix.data.public_sets.entry import Entry


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
    if name not in entries():
        raise ConfigError(f"no data set {name!r} in the catalogue: {did_you_mean(name, entries())}")
    return entries()[name]


def load(name: str, root: Path, progress: Progress = SILENT) -> Collection:
    """Find a data set in its archive, packed or not. Nothing is decoded.

    Args:
        name: one of `entries()`.
        root: the folder that the archive unpacks to; the folder that holds it; the archive itself; or the
            folder that holds the archives as they are published. Archives are unpacked next to themselves.

    Raises:
        ConfigError: no data set has this name.
        DataError: the folder has another layout, or images lack masks, with every problem; or an archive
            cannot be unpacked.
        StorageError: there is no room to unpack.
    """
    item = entry(name)
    if is_archive(root):
        return item.load(folder_of(root, progress))
    packed = [root / archive.name for archive in item.archives if (root / archive.name).is_file()]
    folders = {path.name.casefold() for path in root.iterdir() if path.is_dir()} if packed else set()
    waiting = [path for path in packed if path.stem.casefold() not in folders]
    if 0 < len(waiting) < len(packed):
        raise DataError(
            f"{root} holds archives of which some are unpacked and others are not: "
            f"{', '.join(path.name for path in waiting)}. Unpack these as well, or move the unpacked folders "
            "away."
        )
    try:
        return item.load(root)
    except DataError:
        if not waiting:  # otherwise the archives may also be unpacked under other names
            raise
        return item.load(unpack(packed, progress))


def recognise(root: Path) -> str | None:
    """The name of the data set that a folder holds, by layout and names; None if none is certain.

    Published archives are recognised by their names, without opening them.
    """
    for name, item in entries().items():
        if any((root / archive.name).is_file() for archive in item.archives):
            return name
        try:
            collection = item.load(root)
        except DataError:
            continue
        if recognise_names([sample.id for sample in collection.samples], [item]):
            return name
    return None


def recognise_names(stems: Iterable[str], among: Iterable[Entry] | None = None) -> str | None:
    """The name of the data set whose images are called like this; None if none is certain."""
    given = list(stems)
    for item in entries().values() if among is None else among:
        complete = not item.whole or len(given) == item.images
        if item.stems and given and complete and all(re.fullmatch(item.stems, stem) for stem in given):
            return item.name
    return None
