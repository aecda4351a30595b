"""Public data sets: found by name, loaded from their archives, packed or not.

A new data set is a function that finds its files, with the help of `locate` and `pair`, entered in `READERS`,
and its facts in `public_sets.yaml`; nothing else has to be changed.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import yaml

from mcpmix.core.errors import ConfigError, DataError, bullet_list, did_you_mean
from mcpmix.core.pixels import list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.archives import folder_of, is_archive, unpack
from mcpmix.data.layouts import Collection, pair_files
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS


@dataclass(frozen=True)
class Archive:
    """A file that anybody may download, with the digest that its publisher states."""

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
    splits: Sequence[str]  # names of the splits that come with it
    licence: str
    citation: str
    home: str  # where it is obtained, and on what conditions
    layout: str  # what the unpacked archive looks like
    traps: Sequence[str]  # what has gone wrong for others
    load: Callable[[Path], Collection]  # from the unpacked archive's folder, or the folder that holds it
    archives: Sequence[Archive] = ()  # what `mcpmix data get` downloads
    access: str = ""  # how to get it where there is no open download
    stems: str = ""  # a regular expression for the stems of its images, by which it is recognised
    whole: bool = False  # whether it is recognised only if complete, because others use the same names


@cache
def entries() -> dict[str, Entry]:
    """All data sets by name."""
    facts = yaml.safe_load((resources.files(__package__) / "public_sets.yaml").read_text(encoding="utf-8"))
    found = {}
    for name, values in sorted(facts.items()):
        archives = [Archive(**archive) for archive in values.pop("archives", [])]
        found[name] = Entry(name=name, load=READERS[name], archives=archives, **values)
    return found


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


# --- what the reader of a data set is made of --------------------------------------------------------------


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
    """
    image_files = [path for path in list_images(images) if not (skip and path.stem.endswith(skip))]
    problems = [] if image_files else [f"{images} holds no images."]
    pairs = pair_files(image_files, list_images(masks), masks, problems, suffixes)
    if problems:
        raise DataError(bullet_list(f"{images.parent} is not complete. Unpack the archive again:", problems))
    return pairs


def held_out(names: Mapping[str, str], file: str) -> dict[str, str]:
    """A split of which only the test part is published, in a list that the package ships.

    Args:
        names: of the samples in the list, by id.
        file: the list, without its ending.
    """
    text = (resources.files(__package__) / "names" / f"{file}.txt").read_text(encoding="utf-8")
    test = frozenset(text.split())
    return {sample: "test" if name in test else "train" for sample, name in names.items()}


# --- CVC-ClinicDB ------------------------------------------------------------------------------------------

_CVC_LAYOUTS = [
    ("PNG/Original", "PNG/Ground Truth"),
    ("TIF/Original", "TIF/Ground Truth"),
    ("Original", "Ground Truth"),
    ("images", "masks"),
]
# First frames of the 29 sequences, from the data set's readme.
_CVC_STARTS = (
    1, 26, 51, 68, 79, 104, 127, 152, 178, 200, 206, 228, 253, 278, 298, 318, 343, 364, 384, 409, 429, 448,
    467, 479, 504, 529, 547, 572, 592,
)  # fmt: skip
_CVC_FRAMES = 612


def _load_cvc(root: Path) -> Collection:
    item = entry("cvc-clinicdb")
    frames = {}
    images, masks = locate(root, _CVC_LAYOUTS, item.layout)
    for image, mask in pair(images, masks):
        number = int(image.stem) if image.stem.isdecimal() else 0
        if not 1 <= number <= _CVC_FRAMES:
            raise DataError(
                f"{image} is not a frame of CVC-ClinicDB. Expected names from 1 to {_CVC_FRAMES}."
            )
        group = f"sequence-{bisect_right(_CVC_STARTS, number):02}"
        frames[number] = Sample(image.stem, image, mask, group, item.name)
    numbers = {frames[number].id: str(number) for number in sorted(frames)}  # copies pad them: 001
    return Collection(
        tuple(frames[number] for number in sorted(frames)),
        splits={"pranet": held_out(numbers, "cvc-clinicdb-pranet-test")},
        leaks={"pranet": "PraNet's test frames lie between training frames of the same video sequences"},
        grouped=item.groups,
    )


# --- ISIC 2017 ---------------------------------------------------------------------------------------------

_ISIC_NAMES = {"train": "Training", "validation": "Validation", "test": "Test_v2"}
_ISIC_COPIES = frozenset({"ISIC_0012970"})  # shows the same pixels as ISIC_0012127 of the validation part


def _load_isic(root: Path) -> Collection:
    item, folders = entry("isic-2017"), {}
    for part, name in _ISIC_NAMES.items():
        published = (f"ISIC-2017_{name}_Data", f"ISIC-2017_{name}_Part1_GroundTruth")
        try:
            folders[part] = locate(root, [published, (f"{part}/images", f"{part}/masks")], item.layout)
        except DataError:
            if part != "test":  # its masks were published later, and copies lack them
                raise
            folders["test"] = folders.pop("validation")
    samples: list[Sample] = []
    official: dict[str, str] = {}
    for part, (images, masks) in folders.items():
        for image, mask in pair(images, masks, ("_segmentation",), skip="_superpixels"):
            samples.append(Sample(image.stem, image, mask, image.stem, item.name))
            if image.stem not in _ISIC_COPIES:
                official[image.stem] = part
    samples.sort(key=lambda sample: sample.id)
    return Collection(tuple(samples), splits={"official": official})


# --- Kvasir-SEG --------------------------------------------------------------------------------------------


def _load_kvasir(root: Path) -> Collection:
    item = entry("kvasir-seg")
    images, masks = locate(root, [("images", "masks")], item.layout)
    pairs = pair(images, masks)
    samples = tuple(Sample(image.stem, image, mask, image.stem, item.name) for image, mask in pairs)
    names = {sample.id: sample.id for sample in samples}
    return Collection(
        samples,
        splits={split: held_out(names, f"kvasir-seg-{split}-test") for split in ("official", "pranet")},
    )


# --- PICCOLO -----------------------------------------------------------------------------------------------

_PICCOLO_NAME = re.compile(r"\d+_(VP\d+)_frame\d+", re.IGNORECASE)


def _load_piccolo(root: Path) -> Collection:
    item = entry("piccolo")
    chains = [f"{part}/{kind}" for part in PARTS for kind in ("polyps", "masks")]
    folders = locate(root, [chains], item.layout)
    samples: list[Sample] = []
    official: dict[str, str] = {}
    for part, images, masks in zip(PARTS, folders[::2], folders[1::2], strict=True):
        for image, mask in pair(images, masks, ("_Corrected",)):
            name = _PICCOLO_NAME.fullmatch(image.stem)
            if not name:
                raise DataError(
                    f"{image} is not a frame of PICCOLO. Expected names like 001_VP1_frame0075.png."
                )
            samples.append(Sample(image.stem, image, mask, name[1].upper(), item.name))
            official[image.stem] = part
    samples.sort(key=lambda sample: sample.id)
    return Collection(tuple(samples), splits={"official": official}, grouped=item.groups)


READERS: dict[str, Callable[[Path], Collection]] = {
    "cvc-clinicdb": _load_cvc,
    "isic-2017": _load_isic,
    "kvasir-seg": _load_kvasir,
    "piccolo": _load_piccolo,
}
