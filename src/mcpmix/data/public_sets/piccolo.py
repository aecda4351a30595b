"""PICCOLO: polyps in white light and narrow band, patient-independent parts."""

import re
from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.layouts import Collection
from mcpmix.data.public_sets import Entry, locate, pair
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS

_LAYOUT = "train/, validation/ and test/, each with polyps/ and masks/ (in 'piccolo dataset-release0.1'/)"
_NAME = re.compile(r"\d+_(VP\d+)_frame\d+", re.IGNORECASE)


def _load(root: Path) -> Collection:
    chains = [f"{part}/{kind}" for part in PARTS for kind in ("polyps", "masks")]
    folders = locate(root, [chains], _LAYOUT)
    samples: list[Sample] = []
    official: dict[str, str] = {}
    for part, images, masks in zip(PARTS, folders[::2], folders[1::2], strict=True):
        for image, mask in pair(images, masks, ("_Corrected",)):
            name = _NAME.fullmatch(image.stem)
            if not name:
                raise DataError(
                    f"{image} is not a frame of PICCOLO. Expected names like 001_VP1_frame0075.png."
                )
            samples.append(Sample(image.stem, image, mask, name[1].upper(), ENTRY.name))
            official[image.stem] = part
    samples.sort(key=lambda sample: sample.id)
    return Collection(tuple(samples), splits={"official": official}, grouped=ENTRY.groups)


ENTRY = Entry(
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
    layout=_LAYOUT,
    traps=(
        "official parts: 2203, 897 and 333 images; some copies are not complete",
        "masks are TIFF named <image>_Corrected; void/ marks the area outside the picture and is not read",
        "several lesions share a video: split by video, not by lesion",
    ),
    load=_load,
    access="fill in the form at https://labur.eus/EzJUN and write to solicitudes.biobancovasco@bioef.eus; "
    "the biobank sends a RAR archive",
    stems=r"\d{3}_VP\d+_frame\d{4}",
)
