"""A segmenter as one ONNX file, from the pixels of an image to probabilities, compared with torch."""

import json
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix import __version__
from mcpmix.core.errors import ConfigError, DataError, DependencyError, ModelError
from mcpmix.core.files import storage_errors, written
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.augment import normalise
from mcpmix.data.index import INDEX, DatasetIndex
from mcpmix.data.sample import named_images, read_image
from mcpmix.networks.loss import probabilities
from mcpmix.segmenter.predict import Predictor, load_segmenter, segmenter_folder

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from torch.onnx import ONNXProgram

_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_LARGEST_DIFFERENCE = 1e-3  # probabilities further apart are not rounding: the file is refused
_MOST_IMAGES = 16  # to compare on: more would add little and cost minutes
_ONE = 2.0**22  # Pillow keeps the weights of 8-bit images as multiples of 1 / _ONE

Input = Literal["uint8", "float32"]


class Agreement(NamedTuple):
    """A file compared with torch."""

    images: int
    pixels: int
    difference: float  # largest absolute difference of a probability
    flipped: int  # pixels that are lesion (0.5 or more), or of a class, for one and not for the other


def export_segmenter(
    segmenter: Path,
    out: Path,
    *,
    verify: Path | None = None,
    input_type: Input = "uint8",
    trust: bool = False,
    progress: Progress = SILENT,
) -> tuple[Path, Agreement]:
    """Write a segmenter with its pre- and postprocessing as one ONNX file, and compare it with torch.

    The file takes `image`, (height, width, 3) RGB of any size, and gives `probability`, (height, width)
    float32, or (labels, height, width) with several classes. Resizing to the size of training and back,
    normalisation and the sigmoid are inside. Its metadata `mcpmix` is JSON: name, variant, size, arm and
    seed of the segmenter, SHA-256 of its weights.

    Args:
        segmenter: folder of a segmenter, or of a run, whose best segmenter is taken.
        verify: an image or a folder of images to compare on; None: test images of the run.
        input_type: "uint8", or "float32" for images in [0, 1].
        trust: whether the folder may name code to import; see `load_network`.

    Returns:
        The folder of the segmenter, and how the file compares with torch.
    """
    if out.suffix != ".onnx":
        raise ConfigError(f"--out is {out}; expected a file name that ends in .onnx.")
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise DependencyError(
            f"mcpmix export needs {', '.join(missing)}, not installed here. They come with the extra "
            "`export`: pip install 'mcpmix[export]'"
        )
    import onnxruntime

    folder = segmenter_folder(segmenter)
    predictor = load_segmenter(folder, trust=trust)
    images = images_of(folder, verify)
    with progress.track("export", 1) as advance:
        program = _trace(predictor, input_type)
        facts = {key: predictor.description.get(key) for key in ("name", "variant", "size", "arm", "seed")}
        facts |= {"classes": predictor.classes} if predictor.classes else {}
        facts |= {"input": input_type, "weights_sha256": predictor.fingerprint()}
        program.model.metadata_props["mcpmix"] = json.dumps({**facts, "made_by": f"mcpmix {__version__}"})
        advance()
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with written(out) as temporary:
            program.save(temporary, external_data=False)
            session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
            found = compare(session, predictor, images, floating=input_type == "float32", progress=progress)
            if not found.difference <= _LARGEST_DIFFERENCE:
                raise ModelError(
                    f"The ONNX file of {folder} does not agree with torch: probabilities differ by up to "
                    f"{found.difference:.2g} on {found.images} images (expected at most "
                    f"{_LARGEST_DIFFERENCE:g}). It was not kept. Try other versions of onnxruntime and "
                    "onnxscript."
                )
    return folder, found


def images_of(segmenter: Path, given: Path | None) -> list[Path]:
    """Image files to compare on, at most 16, evenly spread.

    Those of `given`, an image or a folder; else the test images of the run, in which the segmenter's folder
    is <run>/segmenter/<arm>/<seed>.
    """
    found: list[Path] = []
    if given is not None:
        found = list(named_images(given).values())
    else:
        for run in segmenter.resolve().parents[2:3]:
            if (run / "dataset" / INDEX).is_file():
                records = DatasetIndex.read(run / "dataset").part("test")
                found = [record.image for record in records if record.image.is_file()]
    if not found:
        raise DataError(
            f"There are no images to check the export of {segmenter} on: the test images of its run are not "
            "here. Give some with --verify FOLDER."
        )
    chosen = np.linspace(0, len(found) - 1, min(_MOST_IMAGES, len(found))).round().astype(int)
    return [found[place] for place in chosen]


def compare(
    session: "InferenceSession",
    predictor: Predictor,
    images: Sequence[Path],
    *,
    floating: bool,
    progress: Progress,
) -> Agreement:
    """Run an exported file, which takes float32 in [0, 1] if `floating`, and the segmenter in torch."""
    pixels, flipped, difference = 0, 0, 0.0
    with progress.track("compare with torch", len(images)) as advance:
        for path in images:
            image = read_image(path)
            given = image.astype(np.float32) / 255 if floating else image
            (exported,) = session.run(None, {session.get_inputs()[0].name: given})
            expected = predictor.predict(image)
            pixels += image[..., 0].size
            flipped += int(np.count_nonzero(predictor.mask(exported) != predictor.mask(expected)))
            # Not a number: the largest possible difference.
            gaps = np.nan_to_num(np.abs(exported - expected), nan=1.0)
            difference = max(difference, float(gaps.max()))
            advance()
    return Agreement(len(images), pixels, difference, flipped)


def _trace(predictor: Predictor, input_type: Input) -> "ONNXProgram":
    whole = WholeSegmenter(predictor.network, predictor.size).eval()
    # The sides of the example are unequal, and multiples of no network's grid.
    example = torch.zeros(37, 53, 3, dtype=torch.uint8 if input_type == "uint8" else torch.float32)
    sizes = {0: torch.export.Dim("height"), 1: torch.export.Dim("width")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own code; the result is compared instead
            program = torch.onnx.export(
                whole,
                (example,),
                input_names=["image"],
                output_names=["probability"],
                opset_version=18,
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
    _forget_origin(program)
    return program


def _forget_origin(program: "ONNXProgram") -> None:
    """Remove what the exporter notes about each node: lines of code, with the paths of this machine."""
    from onnx_ir.traversal import RecursiveGraphIterator

    graphs: list[Any] = [program.model.graph, *program.model.functions.values()]
    noted: list[Any] = [part for graph in graphs for part in (graph, *graph.inputs)]
    for graph in graphs:
        noted += [part for node in RecursiveGraphIterator(graph) for part in (node, *node.outputs)]
    for part in noted:
        part.metadata_props.clear()
        part.doc_string = None


class WholeSegmenter(nn.Module):
    """A segmenter with its preprocessing, in tensor operations only: what `Predictor` computes."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """An (H, W, 3) RGB image to its (H, W) float32 probabilities of lesion, or (C, H, W) of labels.

        The image is uint8, or float32 in [0, 1], which is rounded to 256 levels: training has no others.
        """
        levels = image.permute(2, 0, 1).double()
        if image.is_floating_point():
            levels = torch.floor(levels * 255 + 0.5).clamp(0, 255)
        small = resize_levels(levels, self.size).float()[None] / 255
        logits = self.network(normalise(small)).float()
        full = F.interpolate(logits, image.shape[:2], mode="bilinear", align_corners=False)
        chances = probabilities(full)[0]
        return chances[0] if len(chances) == 1 else chances


def resize_levels(levels: Tensor, size: int) -> Tensor:
    """Grey levels at another size, bit for bit as `mcpmix.data.sample.resize_image` gives them with Pillow.

    From (C, H, W) to (C, size, size), float64 of whole numbers in 0..255. Equality matters: a grey level more
    or less moves the outline of a mask. Both passes are weighted sums of whole numbers below 2 ** 53, which
    float64 adds exactly in any order, on any machine.
    """
    narrow = _rounded(levels @ _weights(levels.shape[2], size).T)
    return _rounded(_weights(levels.shape[1], size) @ narrow)


def _rounded(sums: Tensor) -> Tensor:
    return torch.floor((sums + _ONE / 2) / _ONE).clamp(0, 255)


def _weights(length: int, size: int) -> Tensor:
    """Weights of `length` pixels in each of `size` new ones: (size, length) whole numbers, float64.

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
