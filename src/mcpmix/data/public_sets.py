"""Public data sets: found by name, loaded from their archives, packed or not.

A new data set is a function that finds its files, with the help of `locate` and `pair`, and an `Entry` in the
catalogue at the end; nothing else has to be changed.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from mcpmix.core.errors import ConfigError, DataError, bullet_list, did_you_mean
from mcpmix.core.pixels import list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.archives import folder_of, is_archive, unpack
from mcpmix.data.layouts import Collection, pair_files
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS


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


def entries() -> dict[str, Entry]:
    """All data sets by name."""
    return {item.name: item for item in _CATALOGUE}


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


def held_out(samples: Sequence[Sample], file: str) -> dict[str, str]:
    """A split of which only the test part is published, in a list of names that the package ships."""
    text = (resources.files(__package__) / "names" / f"{file}.txt").read_text(encoding="utf-8")
    test = frozenset(text.split())
    return {sample.id: "test" if sample.id in test else "train" for sample in samples}


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
    samples = tuple(frames[number] for number in sorted(frames))
    return Collection(
        samples,
        splits={"pranet": held_out(samples, "cvc-clinicdb-pranet-test")},
        leaks={"pranet": "PraNet's test frames lie between training frames of the same video sequences"},
        grouped=item.groups,
    )


# --- ISIC 2017 ---------------------------------------------------------------------------------------------

_ISIC_NAMES = {"train": "Training", "validation": "Validation", "test": "Test_v2"}
_ISIC_COPIES = frozenset({"ISIC_0012970"})  # shows the same pixels as ISIC_0012127 of the validation part
_ISIC_URL = "https://isic-challenge-data.s3.amazonaws.com/2017/ISIC-2017"
_ISIC_MD5 = {
    "Training_Data": "a14a7e622c67a358797ae59abb8a0b0c",
    "Training_Part1_GroundTruth": "77fdbeb6fbec4139937224416b250f4c",
    "Validation_Data": "8d6419d942112f709894c0d82f6c9038",
    "Validation_Part1_GroundTruth": "64d3e68fa2deeb8a5e89aa8dec2efd44",
    "Test_v2_Data": "5f6a0b5e1f2972bd1f5ea02680489f09",
    "Test_v2_Part1_GroundTruth": "b1742de6bd257faca3b2b21a4aa3b781",
}


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
    return Collection(
        samples,
        splits={name: held_out(samples, f"kvasir-seg-{name}-test") for name in ("official", "pranet")},
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


_CATALOGUE = (
    Entry(
        name="cvc-clinicdb",
        title="CVC-ClinicDB (CVC-612)",
        images=_CVC_FRAMES,
        shows="polyps in colonoscopy, 384 x 288 pixels",
        groups="video sequence (29 of 25 studies)",
        splits=("pranet (leaks)",),
        licence="research and education only, no commercial use",
        citation="Bernal et al., WM-DOVA maps for accurate polyp highlighting, CMIG 43, 2015",
        home="https://polyp.grand-challenge.org/CVCClinicDB/",
        layout="Original/ and 'Ground Truth'/ (in TIF/ or PNG/ or alone), or images/ and masks/; frames 1 to "
        "612",
        traps=(
            "frames of one sequence look alike: split by sequence",
            "PraNet's 62 test frames come from 26 of the 29 sequences; offered for comparison, marked as "
            "leaking",
            "138 masks are not two-valued; lesion is 128 or more, and 1 or more gives other areas",
            "the original TIFFs name a grey layout for three channels, which many readers refuse",
        ),
        load=_load_cvc,
        access="its authors link a RAR archive at https://polyp.grand-challenge.org/CVCClinicDB/",
        stems=r"\d{1,3}",
        whole=True,
    ),
    Entry(
        name="isic-2017",
        title="ISIC 2017, Part 1 (lesion segmentation)",
        images=2750,
        shows="skin lesions in dermoscopy, JPEG, 576 to 6750 pixels wide",
        groups="",
        splits=("official",),
        licence="CC0 for the challenge set; some images carry their own licence",
        citation="Codella et al., Skin Lesion Analysis Toward Melanoma Detection, ISBI 2018, arXiv "
        "1710.05006",
        home="https://challenge.isic-archive.com/data/ (open download)",
        layout="ISIC-2017_Training_Data/ and ISIC-2017_Training_Part1_GroundTruth/ (and those of Validation "
        "and Test_v2), or train/ and validation/ (and test/), each with images/ and masks/",
        traps=(
            "official parts: 2000, 150 and 600; where the test masks are missing, the 150 are the test part",
            "training ISIC_0012970 shows the same pixels as validation ISIC_0012127: the official split "
            "leaves the training copy out",
            "*_superpixels.png in the image folders are not images",
            "its images are in ISIC 2018 as well: never use one to test the other",
        ),
        load=_load_isic,
        archives=tuple(Archive(f"{_ISIC_URL}_{name}.zip", md5=md5) for name, md5 in _ISIC_MD5.items()),
        stems=r"ISIC_\d{7}",
    ),
    Entry(
        name="kvasir-seg",
        title="Kvasir-SEG",
        images=1000,
        shows="polyps in colonoscopy, JPEG of 332 x 487 to 1920 x 1072 pixels",
        groups="",
        splits=("official", "pranet"),
        licence="research and education; commercial use only with written permission",
        citation="Jha et al., Kvasir-SEG: A Segmented Polyp Dataset, MultiMedia Modeling 2020",
        home="https://datasets.simula.no/kvasir-seg/ (open download)",
        layout="images/ and masks/ with equal names (in Kvasir-SEG/)",
        traps=(
            "masks are JPEG with levels 0 to 7 and 248 to 255; lesion is 128 or more",
            "no patient or video is named, so no split by patient is possible",
            "official: 880 names for training, 120 for test; PraNet's 900 and 100 are other names",
            "HyperKvasir's segmented images come from the same pool: never a test set for it",
        ),
        load=_load_kvasir,
        archives=(
            Archive(
                "https://datasets.simula.no/downloads/kvasir-seg.zip",
                sha256="03b30e21d584e04facf49397a2576738fd626815771afbbf788f74a7153478f7",
            ),
        ),
        stems=r"c[jk][a-z0-9]{23}",
    ),
    Entry(
        name="piccolo",
        title="PICCOLO (widefield, release 0.1)",
        images=3433,
        shows="polyps in colonoscopy, white light and narrow band, 854 x 480 and larger",
        groups="video (VP number in the name)",
        splits=("official",),
        licence="on request; conditions of the Basque Biobank",
        citation="Sanchez-Peralta et al., PICCOLO White-Light and Narrow-Band Imaging Colonoscopic Dataset, "
        "Applied Sciences 10(23), 2020, doi 10.3390/app10238501",
        home="https://www.biobancovasco.bioef.eus (ask solicitudes.biobancovasco@bioef.eus)",
        layout="train/, validation/ and test/, each with polyps/ and masks/ (in 'piccolo "
        "dataset-release0.1'/)",
        traps=(
            "official parts: 2203, 897 and 333 images; some copies are not complete",
            "masks are TIFF named <image>_Corrected; void/ marks the area outside the picture and is not "
            "read",
            "several lesions share a video: split by video, not by lesion",
        ),
        load=_load_piccolo,
        access="fill in the form at https://labur.eus/EzJUN, write to solicitudes.biobancovasco@bioef.eus; "
        "the biobank sends a RAR archive",
        stems=r"\d{3}_VP\d+_frame\d{4}",
    ),
)
