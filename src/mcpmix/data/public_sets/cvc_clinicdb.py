"""CVC-ClinicDB (CVC-612): polyps in 29 colonoscopy sequences."""

from bisect import bisect_right
from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.layouts import Collection
from mcpmix.data.public_sets import Entry, held_out, locate, pair
from mcpmix.data.sample import Sample

_LAYOUT = "Original/ and 'Ground Truth'/ (in TIF/ or PNG/ or alone), or images/ and masks/; frames 1 to 612"
_LAYOUTS = [
    ("PNG/Original", "PNG/Ground Truth"),
    ("TIF/Original", "TIF/Ground Truth"),
    ("Original", "Ground Truth"),
    ("images", "masks"),
]
# First frames of the 29 sequences, from the data set's readme.
_STARTS = (
    1, 26, 51, 68, 79, 104, 127, 152, 178, 200, 206, 228, 253, 278, 298, 318, 343, 364, 384, 409, 429, 448,
    467, 479, 504, 529, 547, 572, 592,
)  # fmt: skip
_FRAMES = 612
_PRANET_TEST = frozenset((
    14, 21, 25, 31, 42, 50, 52, 61, 65, 66, 73, 80, 89, 100, 106, 119, 134, 148, 154, 163, 166, 171, 179,
    181, 185, 191, 205, 240, 251, 266, 279, 287, 300, 307, 349, 353, 374, 381, 388, 397, 400, 404, 425, 429,
    431, 442, 453, 459, 464, 474, 481, 483, 492, 526, 529, 545, 555, 559, 561, 569, 571, 575,
))  # fmt: skip


def _load(root: Path) -> Collection:
    images, masks = locate(root, _LAYOUTS, _LAYOUT)
    frames = {}
    for image, mask in pair(images, masks):
        number = int(image.stem) if image.stem.isdecimal() else 0
        if not 1 <= number <= _FRAMES:
            raise DataError(f"{image} is not a frame of CVC-ClinicDB. Expected names from 1 to {_FRAMES}.")
        frames[number] = image, mask
    samples = tuple(
        Sample(image.stem, image, mask, f"sequence-{bisect_right(_STARTS, number):02}", ENTRY.name)
        for number, (image, mask) in sorted(frames.items())
    )
    test = (sample.id for sample in samples if int(sample.id) in _PRANET_TEST)
    return Collection(
        samples,
        splits={"pranet": held_out((sample.id for sample in samples), test)},
        leaks={"pranet": "PraNet's test frames lie between training frames of the same video sequences"},
        grouped=ENTRY.groups,
    )


ENTRY = Entry(
    name="cvc-clinicdb",
    title="CVC-ClinicDB (CVC-612)",
    images=_FRAMES,
    shows="polyps in colonoscopy, 384 x 288 pixels",
    groups="video sequence (29 of 25 studies)",
    splits=("pranet (leaks)",),
    licence="research and education only, no commercial use",
    citation="Bernal et al., WM-DOVA maps for accurate polyp highlighting, CMIG 43, 2015",
    home="https://polyp.grand-challenge.org/CVCClinicDB/",
    layout=_LAYOUT,
    traps=(
        "frames of one sequence look alike: split by sequence",
        "PraNet's 62 test frames come from 26 of the 29 sequences; offered for comparison, marked as leaking",
        "138 masks are not two-valued; lesion is 128 or more, and 1 or more gives other areas",
        "the original TIFFs name a grey layout for three channels, which many readers refuse",
    ),
    load=_load,
    access="its authors link a RAR archive at https://polyp.grand-challenge.org/CVCClinicDB/",
    stems=r"\d{1,3}",
    whole=True,
)
