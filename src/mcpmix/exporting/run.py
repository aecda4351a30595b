"""From a segmenter's folder to an ONNX file that was compared with torch."""

import json
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from mcpmix import __version__
from mcpmix.core.artifacts import storage_errors
from mcpmix.core.errors import ConfigError, DependencyError, ModelError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.exporting.graph import WholeSegmenter
from mcpmix.exporting.verification import Agreement, compare, images_of
from mcpmix.inference import Predictor, load_segmenter, segmenter_folder

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
