"""Public data sets, each in a module of its own with an `ENTRY`: found by name, loaded from their archives.

A new data set is one new module of this package, made of an `Entry` and the helpers `locate` and `pair`;
nothing else has to be changed.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from mcpmix.core.errors import ConfigError, DataError, bullet_list, did_you_mean
from mcpmix.core.pixels import list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.archives import folder_of, is_archive, unpack
from mcpmix.data.folder import pair_files
from mcpmix.data.layouts import Collection


@dataclass(frozen=True)
class Archive:
    """A file that anybody may download; its digests are empty where the publisher states none."""

    url: str
    sha256: str = ""
    md5: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """A public data set."""

    name: str  # in a configuration, lower case
    title: str  # what its authors call it
    images: int  # number of images with masks in the complete set
    shows: str  # what is seen, in a few words
    groups: str  # what a group is; empty if nothing is known and each image is its own
    splits: tuple[str, ...]  # names of the splits that come with it
    licence: str
    citation: str
    home: str  # where it is obtained, and on what conditions
    layout: str  # what the unpacked archive looks like
    traps: tuple[str, ...]  # what has gone wrong for others
    load: Callable[[Path], Collection]  # from the unpacked archive's folder, or the folder that holds it
    archives: tuple[Archive, ...] = ()  # what `mcpmix data get` downloads
    access: str = ""  # how to get it where there is no open download
    stems: str = ""  # a regular expression for the stems of its images, by which it is recognised
    whole: bool = False  # whether it is recognised only if complete, because others use the same names


@cache
def entries() -> dict[str, Entry]:
    """All data sets by name, in the order of their names."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    found = [module.ENTRY for module in modules if isinstance(getattr(module, "ENTRY", None), Entry)]
    return {item.name: item for item in sorted(found, key=lambda item: item.name)}


def entry(name: str) -> Entry:
    """The data set of a name."""
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
        DataError: the folder has another layout, or images lack masks, with every problem; or an archive
            cannot be unpacked.
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
        if recognise_names(sample.id for sample in collection.samples) == name:
            return name
    return None


def recognise_names(stems: Iterable[str]) -> str | None:
    """The name of the data set whose images are called like this; None if none is certain."""
    given = list(stems)
    for item in entries().values():
        complete = not item.whole or len(given) == item.images
        if item.stems and given and complete and all(re.fullmatch(item.stems, stem) for stem in given):
            return item.name
    return None


# --- what the module of a data set is made of --------------------------------------------------------------


def locate(root: Path, layouts: Iterable[Sequence[str]], expected: str) -> list[Path]:
    """The folders of the first layout that is there, in `root` or in one of its folders.

    Args:
        layouts: each a list of folders such as `PNG/Ground Truth`; case does not matter.
        expected: the layout in words, for the error if none is there.
    """
    if not root.is_dir():
        state = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root} {state}. Expected the folder of the unpacked archive: {expected}.")
    inside = sorted(root.iterdir())
    for layout in layouts:
        for place in (root, *(path for path in inside if path.is_dir())):
            folders = [folder for folder in (_descend(place, chain) for chain in layout) if folder]
            if len(folders) == len(layout):
                return folders
    found = ", ".join(path.name for path in inside[:8]) or "nothing"
    raise DataError(f"{root} has another layout (found: {found}). Expected {expected}.")


def _descend(folder: Path, chain: str) -> Path | None:
    """The folder at the end of a chain; some archives double a folder on the way (`train/train`)."""
    for name in chain.split("/"):
        for doubled in (False, True):
            found = (path for path in folder.iterdir() if path.name.casefold() == name.casefold())
            inner = next((path for path in found if path.is_dir()), None)
            if inner is None and not doubled:
                return None
            folder = inner or folder
    return folder


def pair(images: Path, masks: Path, suffixes: Sequence[str] = (), skip: str = "") -> list[tuple[Path, Path]]:
    """Images with their masks, in the order of the names.

    Args:
        suffixes: what may follow the image's stem in the stem of its mask; case does not matter.
        skip: files whose stem ends so do not count as images.

    Raises:
        DataError: with every image without a mask and every mask without an image.
    """
    image_files = [path for path in list_images(images) if not (skip and path.stem.endswith(skip))]
    problems = [] if image_files else [f"{images} holds no images."]
    pairs = pair_files(image_files, list_images(masks), masks, problems, suffixes)
    if problems:
        raise DataError(bullet_list(f"{images.parent} is not complete. Unpack the archive again:", problems))
    return pairs


def names(file: str) -> frozenset[str]:
    """A list of names that the package ships, without its ending."""
    text = (resources.files(__package__) / "names" / f"{file}.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def held_out(ids: Iterable[str], test: Iterable[str]) -> Mapping[str, str]:
    """A split of which only the test part is published: all others are for training."""
    held = frozenset(test)
    return {name: "test" if name in held else "train" for name in ids}
