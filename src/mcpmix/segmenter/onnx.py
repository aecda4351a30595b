"""What an exported file computes: all that lies between the pixels of an image and the probabilities."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix import __version__
from mcpmix.core.errors import ConfigError, DataError, DependencyError, ModelError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import storage_errors
from mcpmix.data.augment import normalise
from mcpmix.data.index import INDEX, DatasetIndex
from mcpmix.data.sample import named_images, read_image
from mcpmix.segmenter.predict import Predictor, load_segmenter, segmenter_folder

_ONE = 2.0**22  # Pillow keeps the weights of 8-bit images as multiples of 1 / _ONE
_BRIGHTEST = 255


class WholeSegmenter(nn.Module):
    """A segmenter with its preprocessing, in tensor operations only: what `Predictor` computes.

    Args:
        network: from normalised 1,3,S,S images to 1,1,S,S logits.
        size: the side S it was trained at, in pixels.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """An image to its probabilities of lesion.

        Args:
            image: (H, W, 3) RGB, uint8; or float32 in [0, 1], which is rounded to 256 levels: files and
                training have no others.

        Returns:
            (H, W) float32.
        """
        levels = image.permute(2, 0, 1).double()
        if image.is_floating_point():
            levels = torch.floor(levels * _BRIGHTEST + 0.5).clamp(0, _BRIGHTEST)
        small = resize_levels(levels, self.size).float()[None] / _BRIGHTEST
        logits = self.network(normalise(small)).float()
        full = F.interpolate(logits, image.shape[:2], mode="bilinear", align_corners=False)
        return torch.sigmoid(full)[0, 0]


def resize_levels(levels: Tensor, size: int) -> Tensor:
    """Grey levels at another size, bit for bit as `mcpmix.data.sample.resize_image` gives them with Pillow.

    Equality matters: a grey level more or less moves the outline of a mask. Both passes are weighted sums of
    whole numbers below 2 ** 53, which float64 adds exactly in any order, on any machine.

    Args:
        levels: (C, H, W) float64, whole numbers in 0..255.
        size: side of the result in pixels.

    Returns:
        (C, size, size) float64, whole numbers in 0..255.
    """
    narrow = _rounded(levels @ _weights(levels.shape[2], size).T)
    return _rounded(_weights(levels.shape[1], size) @ narrow)


def _rounded(sums: Tensor) -> Tensor:
    return torch.floor((sums + _ONE / 2) / _ONE).clamp(0, _BRIGHTEST)


def _weights(length: int, size: int) -> Tensor:
    """What each of `length` pixels counts in each of `size` new ones: (size, length) whole numbers, float64.

    A triangle about the new pixel's centre, as wide as two pixels of the coarser grid. The operations are in
    Pillow's order.
    """
    places = torch.arange(length, dtype=torch.float64)
    ratio = (places[-1:] + 1) / size  # from a tensor: an exported graph has no other numbers that vary
    reach = ratio.clamp(min=1)
    centres = (torch.arange(size, dtype=torch.float64) + 0.5) * ratio
    distances = (places - centres[:, None] + 0.5) * (1 / reach)
    triangle = (1 - distances.abs()).clamp(min=0)
    shares = triangle / triangle.sum(dim=1, keepdim=True)
    return torch.floor(shares * _ONE + 0.5)


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
    found = list(named_images(given).values()) if given is not None else _test_images(segmenter)
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
        if (run / "dataset" / INDEX).is_file():
            images = [record.image for record in DatasetIndex.read(run / "dataset").part("test")]
            return [image for image in images if image.is_file()]
    return []


if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

OPSET = 18
LARGEST_DIFFERENCE = 1e-3
"""Probabilities further apart than this are not rounding: the file is refused."""

_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_EXAMPLE = (37, 53)  # height and width to trace with: unequal, and of no network's grid

Input = Literal["uint8", "float32"]


@dataclass(frozen=True)
class Exported:
    """An ONNX file.

    Attributes:
        path: where it is.
        segmenter: folder of the segmenter it was made of.
        agreement: how it compares with torch.
    """

    path: Path
    segmenter: Path
    agreement: Agreement


def export_segmenter(
    segmenter: Path,
    out: Path,
    *,
    verify: Path | None = None,
    input_type: Input = "uint8",
    progress: Progress = SILENT,
) -> Exported:
    """Write a segmenter with its pre- and postprocessing as one ONNX file, and compare it with torch.

    The file takes `image`, (height, width, 3) RGB of any size, and gives `probability`, (height, width)
    float32. Resizing to the size of training and back, normalisation and the sigmoid are inside. Its
    metadata `mcpmix` is JSON: name, variant, size, arm and seed of the segmenter, SHA-256 of its weights.

    Args:
        segmenter: folder of a segmenter, or of a run, whose best segmenter is taken.
        out: the file to write, ending in .onnx.
        verify: an image or a folder of images to compare on; None: test images of the run.
        input_type: "uint8", or "float32" for images in [0, 1].
        progress: where to report.

    Raises:
        ConfigError: `out` has another ending.
        DataError: there are no images to compare on.
        DependencyError: packages of the extra `export` are missing.
        ModelError: there is no segmenter, ONNX cannot express it, or the file does not agree with torch.
        StorageError: the disk is full or not writable.
    """
    if out.suffix != ".onnx":
        raise ConfigError(f"--out is {out}; expected a file name that ends in .onnx.")
    _require_packages()
    folder = segmenter_folder(segmenter)
    predictor = load_segmenter(folder)
    images = images_of(folder, verify)
    with progress.track("export", 1) as advance:
        program = _trace(predictor, input_type)
        program.model.metadata_props["mcpmix"] = json.dumps(_described(predictor, input_type))
        advance()
    temporary = out.with_name(out.name + ".tmp")
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            program.save(temporary, external_data=False)
            agreement = _agreement(temporary, predictor, images, input_type, progress)
            _require_agreement(agreement, folder)
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    return Exported(out, folder, agreement)


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise DependencyError(
            f"mcpmix export needs {', '.join(missing)}, not installed here. They come with the extra "
            "`export`: pip install 'mcpmix[export]'"
        )


def _trace(predictor: Predictor, input_type: Input) -> "ONNXProgram":
    whole = WholeSegmenter(predictor.network, predictor.size).eval()
    example = torch.zeros(*_EXAMPLE, 3, dtype=torch.uint8 if input_type == "uint8" else torch.float32)
    sizes = {0: torch.export.Dim("height"), 1: torch.export.Dim("width")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own code; the result is compared instead
            program = torch.onnx.export(
                whole,
                (example,),
                input_names=["image"],
                output_names=["probability"],
                opset_version=OPSET,
                dynamic_shapes=(sizes,),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        name, variant = predictor.description["name"], predictor.description["variant"]
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{name} {variant} cannot be expressed in ONNX: {reason[0]}. All networks of this package can; "
            "in one of your own, avoid branches on the values of tensors."
        ) from error
    assert program is not None  # it is None for the old exporter only
    return program


def _described(predictor: Predictor, input_type: Input) -> dict[str, object]:
    known = {key: predictor.description.get(key) for key in ("name", "variant", "size", "arm", "seed")}
    return {
        **known,
        "input": input_type,
        "weights_sha256": predictor.fingerprint(),
        "made_by": f"mcpmix {__version__}",
    }


def _agreement(
    file: Path, predictor: Predictor, images: list[Path], input_type: Input, progress: Progress
) -> Agreement:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return compare(session, predictor, images, floating=input_type == "float32", progress=progress)


def _require_agreement(agreement: Agreement, folder: Path) -> None:
    if not agreement.difference <= LARGEST_DIFFERENCE:
        raise ModelError(
            f"The ONNX file of {folder} does not agree with torch: probabilities differ by up to "
            f"{agreement.difference:.2g} on {agreement.images} images (expected at most "
            f"{LARGEST_DIFFERENCE:g}). It was not kept. Try other versions of onnxruntime and onnxscript."
        )
