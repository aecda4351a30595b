"""Try it: a segmenter of any run on an image that was dropped onto the page. The image is never kept."""

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from mcpmix.core.errors import DataError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.sample import read_image
from mcpmix.studio.pictures import to_base64
from mcpmix.studio.reading import look_up
from mcpmix.studio.results import cell_name
from mcpmix.studio.runs import Runs, RunView

if TYPE_CHECKING:
    from mcpmix.segmenter.predict import Predictor

MOST_BYTES = 25_000_000
"""Of an upload."""
_MOST_PIXELS = 40_000_000  # a map of probabilities takes several bytes for each


def segmenters_of(run: RunView) -> list[dict[str, str]]:
    """The finished segmenters of a run: a name for requests, and a label for readers."""
    found = []
    for (arm, seed), artifact in run.finished_cells("segmenter").items():
        dsc = artifact.manifest.get("counts", {}).get("validation_dsc")
        score = f", validation DSC {dsc:.1f}" if isinstance(dsc, int | float) else ""
        label = f"{run.name}: {run.label(arm)}, seed {seed}{score}"
        found.append({"name": f"{run.id}:{cell_name(arm, seed)}", "label": label})
    return found


class Predictions:
    """Segments one image at a time; the last segmenter stays in memory."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self._lock = runs, Lock()
        self._last: tuple[str, Predictor] | None = None

    def predict(self, segmenter: str, content: bytes, name: str) -> dict[str, Any]:
        """Probabilities and mask (at 0.5) of an image as PNGs in base64, with their size.

        Raises:
            DataError: the image is not one, too large, or damaged.
            AbsentError: there is no such segmenter.
        """
        identity, _, cell = segmenter.partition(":")
        run = self.runs.get(identity)
        found = {cell_name(*key): item for key, item in run.finished_cells("segmenter").items()}
        artifact = look_up(found, cell)
        label = Path(name).name[:100] or "the image"
        if not content:
            raise DataError("Nothing was sent. Expected an image file.")
        with self._lock:  # decoding and segmenting take memory: one after the other
            image = read_image(Path(label), content, most_pixels=_MOST_PIXELS)
            probabilities = self._load(artifact).predict(image)
        levels = np.round(probabilities * 255).astype(np.uint8)
        mask = (probabilities >= 0.5).astype(np.uint8) * np.uint8(255)
        return {
            "width": image.shape[1],
            "height": image.shape[0],
            "share": float(mask.mean() / 255),
            "highest": float(probabilities.max()),
            "probabilities": to_base64(levels),
            "mask": to_base64(mask),
        }

    def _load(self, artifact: Artifact) -> "Predictor":
        if self._last is None or self._last[0] != artifact.digest:
            from mcpmix.segmenter.predict import load_segmenter  # torch takes seconds to load

            self._last = artifact.digest, load_segmenter(artifact.folder)
        return self._last[1]
