"""Kvasir-SEG: polyps in colonoscopy."""

from pathlib import Path

from mcpmix.data.layouts import Collection
from mcpmix.data.public_sets import Archive, Entry, held_out, locate, names, pair
from mcpmix.data.sample import Sample

_LAYOUT = "images/ and masks/ with equal names (in Kvasir-SEG/)"


def _load(root: Path) -> Collection:
    images, masks = locate(root, [("images", "masks")], _LAYOUT)
    samples = tuple(
        Sample(image.stem, image, mask, image.stem, ENTRY.name) for image, mask in pair(images, masks)
    )
    ids = [sample.id for sample in samples]
    return Collection(
        samples,
        splits={
            "official": held_out(ids, names("kvasir-seg-official-test")),
            "pranet": held_out(ids, names("kvasir-seg-pranet-test")),
        },
    )


ENTRY = Entry(
    name="kvasir-seg",
    title="Kvasir-SEG",
    images=1000,
    shows="polyps in colonoscopy, JPEG of 332 x 487 to 1920 x 1072 pixels",
    groups="",
    splits=("official", "pranet"),
    licence="research and education; commercial use only with written permission",
    citation="Jha et al., Kvasir-SEG: A Segmented Polyp Dataset, MultiMedia Modeling 2020",
    home="https://datasets.simula.no/kvasir-seg/ (open download)",
    layout=_LAYOUT,
    traps=(
        "masks are JPEG with levels 0 to 7 and 248 to 255; lesion is 128 or more",
        "no patient or video is named, so no split by patient is possible",
        "official: 880 names for training, 120 for test; PraNet's 900 and 100 are other names",
        "HyperKvasir's segmented images come from the same pool: never a test set for it",
    ),
    load=_load,
    archives=(
        Archive(
            "https://datasets.simula.no/downloads/kvasir-seg.zip",
            sha256="03b30e21d584e04facf49397a2576738fd626815771afbbf788f74a7153478f7",
        ),
    ),
    stems=r"c[jk][a-z0-9]{23}",
)
