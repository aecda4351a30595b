"""Whether an exported file agrees with torch, on images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mcpmix.core.errors import DataError
from mcpmix.core.progress import Progress
from mcpmix.data.images import list_images
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import read_image
from mcpmix.inference import Predictor

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_MOST = 16  # images to compare: more would tell little and cost minutes
_THRESHOLD = 0.5


@dataclass(frozen=True)
class Agreement:
    """A file compared with torch.

    Attributes:
        images: number of images.
        pixels: number of their pixels.
        difference: largest absolute difference of a probability.
        flipped: pixels that are lesion (0.5 or more) for one and not for the other.
    """

    images: int
    pixels: int
    difference: float
    flipped: int


def compare(
    session: "InferenceSession",
    predictor: Predictor,
    images: Sequence[Path],
    *,
    floating: bool,
    progress: Progress,
) -> Agreement:
    """Run both on images.

    Args:
        session: the exported file.
        predictor: the same segmenter in torch.
        images: image files, one or more.
        floating: whether the file wants float32 in [0, 1] instead of uint8.
        progress: where to report.
    """
    pixels, flipped, difference = 0, 0, 0.0
    with progress.track("compare with torch", len(images)) as advance:
        for path in images:
            image = read_image(path)
            given = image.astype(np.float32) / 255 if floating else image
            (exported,) = session.run(None, {session.get_inputs()[0].name: given})
            expected = predictor.predict(image)
            pixels += expected.size
            flipped += int(np.count_nonzero((exported >= _THRESHOLD) != (expected >= _THRESHOLD)))
            gaps = np.nan_to_num(np.abs(exported - expected), nan=1.0)  # no number: as far off as can be
            difference = max(difference, float(gaps.max()))
            advance()
    return Agreement(len(images), pixels, difference, flipped)


def images_of(segmenter: Path, given: Path | None) -> list[Path]:
    """Image files to compare on, at most 16, evenly spread.

    Args:
        segmenter: folder of a segmenter; if it lies in its run, the run's test images are taken.
        given: an image or a folder of images instead.

    Raises:
        DataError: there are none.
    """
    found = list(list_images(given).values()) if given is not None else _test_images(segmenter)
    if not found:
        raise DataError(
            f"There are no images to check the export of {segmenter} on: the test images of its run are not "
            "here. Give some with --verify FOLDER."
        )
    chosen = np.linspace(0, len(found) - 1, min(_MOST, len(found))).round().astype(int)
    return [found[place] for place in chosen]


def _test_images(segmenter: Path) -> list[Path]:
    """Test images of the run that a segmenter's folder (<run>/segmenter/<arm>/<seed>) lies in."""
    for run in segmenter.resolve().parents[2:3]:
        index = run / "dataset" / "index.json"
        if index.is_file():
            images = [record.image for record in DatasetIndex.read(index).part("test")]
            return [image for image in images if image.is_file()]
    return []
