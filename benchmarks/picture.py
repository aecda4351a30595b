"""The picture of the README: real frames, counterparts under the same mask, and a result on unseen ones.

python benchmarks/picture.py runs/demo

Takes a finished run of `mcpmix demo`, whose frames are phantoms and may be shown to anyone.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import mcpmix
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import read_image
from mcpmix.segmenter.predict import outlined

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "real-synthetic-result.png"
_COLUMNS = 4
_SIDE, _GAP = 160, 4  # pixels


def tile(image: Pixels, mask: Pixels | None = None) -> Pixels:
    """An (H, W, 3) image with the outline of its mask, at the size of a tile."""
    shown = image if mask is None else outlined(image, mask.astype(bool))
    return np.asarray(Image.fromarray(shown).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS))


def main(run: Path) -> None:
    """Draw three rows: real, synthetic, and the prediction for unseen patients."""
    dataset = read_artifact(run / "dataset")
    if dataset is None:
        raise SystemExit(f"{run} is not a finished run: `mcpmix demo` makes one.")
    pairs = [pair for pair in mcpmix.open_pairs(run) if len(pair.counterparts)]
    pairs = pairs[:: max(1, len(pairs) // _COLUMNS)][:_COLUMNS]
    tested = DatasetIndex.read(dataset).part("test")
    tested = tested[:: max(1, len(tested) // _COLUMNS)][:_COLUMNS]
    segmenter = mcpmix.load_segmenter(run)
    unseen = [read_image(record.image) for record in tested]
    rows = [
        [tile(pair.image, pair.mask) for pair in pairs],
        [tile(pair.counterparts[0], pair.mask) for pair in pairs],
        [tile(image, (segmenter.predict(image) >= 0.5).astype(np.uint8)) for image in unseen],
    ]
    step = _SIDE + _GAP
    sheet = np.full((len(rows) * step - _GAP, _COLUMNS * step - _GAP, 3), 255, np.uint8)
    for down, row in enumerate(rows):
        for right, picture in enumerate(row):
            sheet[down * step :, right * step :][:_SIDE, :_SIDE] = picture
    write_png(PICTURE, sheet)
    print(PICTURE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
