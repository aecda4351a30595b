"""What the catalogue knows about a data set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS
from mcpmix.data.layouts.tables import Collection


@dataclass(frozen=True)
class Archive:
    """A file that anybody may download.

    Attributes:
        url: where it is.
        sha256: of its bytes; empty if its publisher states none.
        md5: the same.
    """

    url: str
    sha256: str = ""
    md5: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """A public data set.

    Attributes:
        name: how it is called in a configuration, lower case.
        title: how its authors call it.
        images: number of images with masks in the complete set.
        shows: what is seen, in a few words.
        groups: what a group is; empty if nothing is known and each image is its own.
        splits: names of the splits that come with it.
        licence: terms of use.
        citation: the paper to cite.
        home: where it is obtained, and on what conditions.
        layout: what the unpacked archive looks like.
        traps: what has gone wrong for others.
        load: from the folder of the unpacked archive, or the folder that holds it, to its samples.
        archives: what `mcpmix data get` downloads; empty if there is no open download.
        access: how else to get it, where there is none.
        stems: a regular expression that the stems of its images match, by which it is recognised; empty if
            they are not special.
        whole: whether it is recognised only if complete, because others name their files so too.
    """

    name: str
    title: str
    images: int
    shows: str
    groups: str
    splits: tuple[str, ...]
    licence: str
    citation: str
    home: str
    layout: str
    traps: tuple[str, ...]
    load: Callable[[Path], Collection]
    archives: tuple[Archive, ...] = ()
    access: str = ""
    stems: str = ""
    whole: bool = False


Pair = tuple[Path, Path]


def locate(root: Path, layouts: Iterable[Sequence[str]], expected: str) -> list[Path]:
    """The folders of the first layout that is there, in `root` or in one of its folders.

    Args:
        root: where to look.
        layouts: each a list of folders such as `PNG/Ground Truth`.
        expected: the layout in words, for the message.

    Raises:
        DataError: none is there.
    """
    if not root.is_dir():
        state = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root} {state}. Expected the folder of the unpacked archive: {expected}.")
    places = [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
    for layout in layouts:
        for place in places:
            folders = [folder for folder in (_descend(place, chain) for chain in layout) if folder]
            if len(folders) == len(layout):
                return folders
    found = ", ".join(path.name for path in sorted(root.iterdir())[:8]) or "nothing"
    raise DataError(f"{root} has another layout (found: {found}). Expected {expected}.")


def pair(images: Path, masks: Path, suffixes: Sequence[str] = ("",), skip: str = "") -> list[Pair]:
    """Images with their masks, in the order of the names.

    Args:
        images: folder of images.
        masks: folder of masks.
        suffixes: what may follow the image's stem in the stem of its mask; case does not matter.
        skip: images whose stem ends so are none.

    Raises:
        DataError: with every image without a mask and every mask without an image.
    """
    problems: list[str] = []
    found = [path for path in _files(images) if not (skip and path.stem.endswith(skip))]
    image_at = {path.stem: path for path in _single(found, problems)}
    mask_at = {path.stem.casefold(): path for path in _single(_files(masks), problems)}
    pairs: list[Pair] = []
    for stem, image in image_at.items():
        names = [(stem + suffix).casefold() for suffix in suffixes]
        mask = next((mask_at.pop(name) for name in names if name in mask_at), None)
        if mask is None:
            problems.append(f"{image} has no mask in {masks}. Unpack the archive again.")
        else:
            pairs.append((image, mask))
    problems += [f"{path} has no image in {images}. Unpack the archive again." for path in mask_at.values()]
    if not image_at:
        problems.append(f"{images} holds no images.")
    if problems:
        raise DataError(bullet_list(f"{images.parent} is not complete:", problems))
    return pairs


def _single(files: Sequence[Path], problems: list[str]) -> Sequence[Path]:
    """Files, of which no two may have the same stem."""
    taken: dict[str, Path] = {}
    for path in files:
        first = taken.setdefault(path.stem.casefold(), path)
        if first != path:
            problems.append(f"{first} and {path.name} have the same stem. Remove one of them.")
    return files


def names(file: str) -> frozenset[str]:
    """A list of names that the package ships, without its ending."""
    text = (resources.files(__package__) / "names" / f"{file}.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def held_out(ids: Iterable[str], test: Iterable[str]) -> Mapping[str, str]:
    """A split of which only the test part is published: all others are for training."""
    held = frozenset(test)
    return {name: "test" if name in held else "train" for name in ids}


def _files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()
    )


def _descend(folder: Path, chain: str) -> Path | None:
    place: Path | None = folder
    for name in chain.split("/"):
        place = _child(place, name) if place else None
        if place:
            place = _child(place, name) or place
    return place


def _child(folder: Path, name: str) -> Path | None:
    return next(
        (path for path in folder.iterdir() if path.name.casefold() == name.casefold() and path.is_dir()), None
    )
