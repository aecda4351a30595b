"""ISIC 2017 Part 1: skin lesions in dermoscopy."""

from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.layouts import Collection
from mcpmix.data.public_sets import Archive, Entry, locate, pair
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS

_LAYOUT = (
    "ISIC-2017_Training_Data/ and ISIC-2017_Training_Part1_GroundTruth/ (and those of Validation and "
    "Test_v2), or train/ and validation/ (and test/), each with images/ and masks/"
)
_OFFICIAL_NAMES = {"train": "Training", "validation": "Validation", "test": "Test_v2"}
_COPIES = frozenset({"ISIC_0012970"})  # shows the same pixels as ISIC_0012127 of the validation part

_BASE = "https://isic-challenge-data.s3.amazonaws.com/2017/ISIC-2017"
_MD5 = {
    "Training_Data": "a14a7e622c67a358797ae59abb8a0b0c",
    "Training_Part1_GroundTruth": "77fdbeb6fbec4139937224416b250f4c",
    "Validation_Data": "8d6419d942112f709894c0d82f6c9038",
    "Validation_Part1_GroundTruth": "64d3e68fa2deeb8a5e89aa8dec2efd44",
    "Test_v2_Data": "5f6a0b5e1f2972bd1f5ea02680489f09",
    "Test_v2_Part1_GroundTruth": "b1742de6bd257faca3b2b21a4aa3b781",
}


def _folders(root: Path, part: str) -> list[Path]:
    name = _OFFICIAL_NAMES[part]
    published = (f"ISIC-2017_{name}_Data", f"ISIC-2017_{name}_Part1_GroundTruth")
    return locate(root, [published, (f"{part}/images", f"{part}/masks")], _LAYOUT)


def _load(root: Path) -> Collection:
    folders = {part: _folders(root, part) for part in ("train", "validation")}
    try:
        folders["test"] = _folders(root, "test")
    except DataError:  # its masks were published later, and copies lack them
        folders = {"train": folders["train"], "test": folders["validation"]}
    samples: list[Sample] = []
    official: dict[str, str] = {}
    for part in (part for part in PARTS if part in folders):
        images, masks = folders[part]
        for image, mask in pair(images, masks, ("_segmentation",), skip="_superpixels"):
            samples.append(Sample(image.stem, image, mask, image.stem, ENTRY.name))
            if image.stem not in _COPIES:
                official[image.stem] = part
    samples.sort(key=lambda sample: sample.id)
    return Collection(tuple(samples), splits={"official": official})


ENTRY = Entry(
    name="isic-2017",
    title="ISIC 2017, Part 1 (lesion segmentation)",
    images=2750,
    shows="skin lesions in dermoscopy, JPEG, 576 to 6750 pixels wide",
    groups="",
    splits=("official",),
    licence="CC0 for the challenge set; some images carry their own licence",
    citation="Codella et al., Skin Lesion Analysis Toward Melanoma Detection, ISBI 2018, arXiv 1710.05006",
    home="https://challenge.isic-archive.com/data/ (open download)",
    layout=_LAYOUT,
    traps=(
        "official parts: 2000, 150 and 600; where the test masks are missing, the 150 are the test part",
        "training ISIC_0012970 shows the same pixels as validation ISIC_0012127: the official split leaves "
        "the training copy out",
        "*_superpixels.png in the image folders are not images",
        "its images are in ISIC 2018 as well: never use one to test the other",
    ),
    load=_load,
    archives=tuple(Archive(f"{_BASE}_{name}.zip", md5=md5) for name, md5 in _MD5.items()),
    stems=r"ISIC_\d{7}",
)
