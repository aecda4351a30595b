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
from mcpmix.data.layouts.tables import Collection
from mcpmix.data.public_sets.entry import Archive as Archive
from mcpmix.data.public_sets.entry import Entry as Entry


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
        raise ConfigError(f"no data set {name!r} in the catalogue: {did_you_mean(name, known)}")
    return known[name]


def load(name: str, root: Path, progress: Progress = SILENT) -> Collection:
    """Find a data set in its archive, packed or not.

    Args:
        name: one of `entries()`.
        root: the folder that the archive unpacks to; the folder that holds it; the archive itself; or the
            folder that holds the archives as they are published. Archives are unpacked beside themselves.
        progress: where unpacking reports to.

    Returns:
        Its samples with groups, and the splits that come with it. Nothing is decoded.

    Raises:
        ConfigError: no data set has this name.
        DataError: the folder has another layout, or images lack masks, with every problem; or an archive
            cannot be unpacked.
        StorageError: there is no room to unpack.
    """
    item = entry(name)
    if is_archive(root):
        return item.load(folder_of(root, progress))
    return item.load(_unpacked(item, root, progress))


def recognise(root: Path) -> str | None:
    """The name of the data set that a folder holds, by layout and names; None if none is certain.

    Published archives are recognised by their names, and not looked into.
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


def _unpacked(item: Entry, root: Path, progress: Progress) -> Path:
    """`root`, or where the published archives in it were unpacked to."""
    packed = [root / archive.name for archive in item.archives if (root / archive.name).is_file()]
    if not packed:
        return root
    folders = {path.name.casefold() for path in root.iterdir() if path.is_dir()}
    waiting = [path for path in packed if path.stem.casefold() not in folders]
    if not waiting:
        return root
    if len(waiting) < len(packed):
        names = ", ".join(path.name for path in waiting)
        raise DataError(
            f"{root} holds archives of which some are unpacked and others are not: {names}. Unpack these as "
            "well, or move the unpacked folders away."
        )
    try:
        item.load(root)
    except DataError:
        return unpack(packed, progress)
    return root  # unpacked without a folder of its own
