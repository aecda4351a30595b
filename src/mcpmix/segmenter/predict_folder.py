"""Masks for new images: a whole folder, in the order of its names, resumable.

Layer 4, beside the pipeline.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from mcpmix.core.device import setup
from mcpmix.core.errors import ConfigError, DataError, StorageError, bullet_list
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import storage_errors, write_json
from mcpmix.data.sample import has_alpha, named_images, read_image
from mcpmix.segmenter.predict import Predictor, load_segmenter, segmenter_folder

SETTINGS = "prediction.json"
_OUTLINE = (90, 255, 120)
_OUTLINE_SHARE = 256  # the outline is a 256th of the shorter side wide


@dataclass(frozen=True)
class Predicted:
    """What a call did.

    Attributes:
        made: number of images segmented.
        kept: number of images whose results were there already.
    """

    made: int
    kept: int


@dataclass(frozen=True)
class _Outputs:
    """Files of one image."""

    mask: Path
    probability: Path | None
    overlay: Path | None

    def newer_than(self, image: Path) -> bool:
        """Whether all are there, made after the image was last changed."""
        changed = image.stat().st_mtime_ns
        files = (self.mask, self.probability, self.overlay)
        return all(f is None or (f.exists() and f.stat().st_mtime_ns >= changed) for f in files)


def predict_files(
    segmenter: Path,
    images: Path,
    out: Path,
    *,
    threshold: float = 0.5,
    probabilities: bool = False,
    overlay: bool = False,
    flips: bool = False,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Predicted:
    """Segment images that have no result yet; results are of the size of the upright image.

    Writes `masks/<name>.png` (8 bit, lesion = 255) and, where asked for, `probabilities/<name>.png` (16 bit,
    65535 = certain) and `overlays/<name>.png` (the image with the lesion's outline). Sub-folders of `images`
    are kept. Nothing of a source file but its pixels gets into a result.

    Args:
        segmenter: folder of a segmenter, or of a run, whose best segmenter is taken.
        images: an image or a folder of images.
        out: folder for the results.
        threshold: probability in (0, 1) from which a pixel is lesion.
        probabilities: whether to write probabilities.
        overlay: whether to write outlines.
        flips: whether to average over the image and its three mirror images, at four times the cost.
        device: "auto" or a torch device.
        progress: where to report.

    Raises:
        ConfigError: the threshold is out of range, or the device does not exist.
        DataError: there are no images; or some cannot be read: all others are segmented first.
        ModelError: there is no segmenter.
        StorageError: `out` holds results of another segmenter, threshold or choice of flips, or the disk is
            full.
    """
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold must be in (0, 1), got {threshold}.")
    sources = named_images(images)
    folder = segmenter_folder(segmenter)
    predictor = load_segmenter(folder, setup(device, "float32", 0, deterministic=False).device)
    if folder != segmenter:
        progress.say(f"segmenter: {folder}, the run's best on validation")
    with storage_errors(out):
        _claim(out, predictor, threshold, flips)
        plan = {path: _outputs(out, name, probabilities, overlay) for name, path in sources.items()}
        todo = [path for path, outputs in plan.items() if not outputs.newer_than(path)]
        problems, clear = [], []
        with progress.track("predict", len(plan), len(plan) - len(todo)) as advance:
            for path in todo:
                try:
                    _segment(predictor, path, plan[path], threshold, flips)
                    clear += [path.name] if has_alpha(path) else []
                except DataError as error:
                    problems.append(str(error))
                advance()
    if clear:
        few = ", ".join(clear[:3]) + (" ..." if len(clear) > 3 else "")
        who = "1 image has" if len(clear) == 1 else f"{len(clear)} images have"
        progress.say(f"{who} an alpha channel ({few}): laid over black, as in training")
    if problems:
        count = f"{len(problems)} of {len(plan)} images were not segmented; the others are in {out}:"
        raise DataError(bullet_list(count, problems))
    return Predicted(len(todo), len(plan) - len(todo))


def _claim(out: Path, predictor: Predictor, threshold: float, flips: bool) -> None:
    """Note whose results these are; refuse to mix them with others."""
    settings: dict[str, object] = {
        "weights": predictor.fingerprint(),
        "threshold": threshold,
        "flips": flips,
        **_described(predictor),
    }
    file = out / SETTINGS
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(file, settings)
        return
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        differ = [name for name in ("weights", "threshold", "flips") if there.get(name) != settings[name]]
    except (ValueError, AttributeError):
        differ = [SETTINGS]
    if differ:
        raise StorageError(
            f"{out} holds results of another call (not the same: {', '.join(differ)}). Choose another "
            "folder, or delete this one."
        )


def _described(predictor: Predictor) -> dict[str, object]:
    return {name: value for name, value in predictor.description.items() if name in ("arm", "seed", "size")}


def _outputs(out: Path, name: str, probabilities: bool, overlay: bool) -> _Outputs:
    file = f"{name}.png"
    return _Outputs(
        out / "masks" / file,
        out / "probabilities" / file if probabilities else None,
        out / "overlays" / file if overlay else None,
    )


def _segment(predictor: Predictor, path: Path, outputs: _Outputs, threshold: float, flips: bool) -> None:
    image = read_image(path)
    probability = predictor.predict(image, flips=flips)
    mask = (probability >= threshold).astype(np.uint8) * np.uint8(255)
    if outputs.probability is not None:
        write_png(outputs.probability, np.round(probability * 65535).astype(np.uint16))
    if outputs.overlay is not None:
        write_png(outputs.overlay, outlined(image, mask))
    write_png(outputs.mask, mask)


def outlined(image: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Draw the outline of a mask, just outside it.

    Args:
        image: (H, W, 3) RGB.
        mask: (H, W), lesion = 255.

    Returns:
        (H, W, 3) RGB.
    """
    width = max(1, min(mask.shape) // _OUTLINE_SHARE)
    grown = np.asarray(Image.fromarray(mask).filter(ImageFilter.MaxFilter(2 * width + 1)))
    picture = image.copy()
    picture[(grown > 0) & (mask == 0)] = _OUTLINE
    return picture
