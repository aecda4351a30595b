"""Where weights come from: embedded in the package, a local folder, or a hub id that is already on disk.

Nothing is downloaded here. A hub id that is not in the local cache gives a message that says how to get it,
how large it is and under which licence.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from mcpmix.core.artifacts import digest_of, file_digest
from mcpmix.core.errors import ModelError

EMBEDDED = "embedded"


@dataclass(frozen=True)
class KnownWeights:
    """Facts about published weights, printed where they are chosen."""

    size: str
    licence: str


KNOWN: dict[str, KnownWeights] = {
    EMBEDDED: KnownWeights("in the package", "Apache-2.0, trained by this project on phantom images"),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": KnownWeights(
        "about 5.5 GB", "CreativeML OpenRAIL-M (use restrictions, medical advice among them)"
    ),
    "Intel/dpt-large": KnownWeights("1.4 GB", "Apache-2.0"),
    "Intel/dpt-hybrid-midas": KnownWeights("490 MB", "Apache-2.0"),
    "depth-anything/Depth-Anything-V2-Small-hf": KnownWeights("99 MB", "Apache-2.0"),
    "resnet50": KnownWeights("98 MB", "BSD-3-Clause (torchvision); trained on ImageNet"),
    "nvidia/mit-b0": KnownWeights("15 MB", "NVIDIA Source Code License for SegFormer: non-commercial"),
    "nvidia/mit-b2": KnownWeights("99 MB", "NVIDIA Source Code License for SegFormer: non-commercial"),
}


def embedded_folder(part: str) -> Path:
    """Folder of an embedded network: "pipeline", "depth" or "features".

    Raises:
        ModelError: the package was built without its weights.
    """
    folder = Path(str(resources.files("mcpmix"))) / "assets" / part
    if not folder.is_dir():
        raise ModelError(
            f"The embedded {part} weights are missing from this installation ({folder}). "
            "Install the package from a full checkout, or make them with `mcpmix models build`."
        )
    return folder


def resolve(source: str, embedded_part: str) -> Path:
    """The local folder that a configured source stands for.

    Args:
        source: "embedded", a path, or a hub id `owner/name`.
        embedded_part: which embedded folder "embedded" means here.

    Raises:
        ModelError: nothing of that name is on this machine.
    """
    if source == EMBEDDED:
        return embedded_folder(embedded_part)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(source, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelError(_how_to_get(source)) from error


@cache
def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and bytes of all configuration and weight files of a model folder."""
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".safetensors", ".txt"))
    return digest_of({str(path.relative_to(folder)): file_digest(path) for path in files})


def licence_of(source: str) -> str:
    """The licence of known weights, or a reminder to look it up."""
    known = KNOWN.get(source)
    return known.licence if known else "unknown to this program: check the terms of the weights yourself"


def _how_to_get(source: str) -> str:
    known = KNOWN.get(source)
    facts = f" ({known.size}; licence: {known.licence})" if known else ""
    return (
        f"No weights for {source!r}{facts}: it is neither a local folder nor in the local hub cache. "
        f"On a machine with internet run `hf download {source}`, or copy the folder here and give its path."
    )
