"""Weights that a configuration may name: embedded ones, a local folder, or a hub id that is already on disk.

Nothing is downloaded here. A hub id that is not in the local cache gives a message that says how to get it,
how large it is and under which licence. Any of them may be pinned: `name@sha256:<digest>` is refused if the
files have another digest. Weights that exist as pickles only are refused: loading a pickle can run code.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from mcpmix.core.errors import ModelError
from mcpmix.core.files import expanded, file_digest
from mcpmix.core.stage_folder import digest_of

EMBEDDED = "embedded"
RESNET_URL = "https://download.pytorch.org/models/resnet50-11ad3fa6.pth"  # torchvision's IMAGENET1K_V2
_PIN = "@sha256:"
PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
UNUSED = ("safety_checker", "feature_extractor")  # parts of a pipeline that are never loaded


@dataclass(frozen=True)
class KnownWeights:
    """Facts about published weights, printed where they are chosen."""

    size: str
    licence: str
    files: tuple[str, ...] = ()
    """Patterns of the files that are needed, where the repository holds much more; none: all."""


KNOWN: dict[str, KnownWeights] = {
    EMBEDDED: KnownWeights("in the package", "Apache-2.0, trained by this project on phantom images"),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": KnownWeights(
        "4.3 GB for the files that are needed",
        "CreativeML OpenRAIL-M (use restrictions, medical advice among them)",
        (
            "model_index.json",
            "scheduler/*",
            "tokenizer/*",
            "*/config.json",
            "text_encoder/model.safetensors",
            "unet/diffusion_pytorch_model.safetensors",
            "vae/diffusion_pytorch_model.safetensors",
        ),
    ),
    "latent-consistency/lcm-lora-sdv1-5": KnownWeights(
        "135 MB", "CreativeML Open RAIL++-M (use restrictions)", ("pytorch_lora_weights.safetensors",)
    ),
    "timbrooks/instruct-pix2pix": KnownWeights(
        "about 2 GB in float16", "MIT by its card; built on Stable Diffusion 1.5 (CreativeML OpenRAIL-M)"
    ),
    "Intel/dpt-large": KnownWeights("1.4 GB", "Apache-2.0"),
    "Intel/dpt-hybrid-midas": KnownWeights("490 MB", "Apache-2.0"),
    "depth-anything/Depth-Anything-V2-Small-hf": KnownWeights("99 MB", "Apache-2.0"),
    "resnet50": KnownWeights("98 MB", "BSD-3-Clause (torchvision); trained on ImageNet"),
    "nvidia/mit-b0": KnownWeights("15 MB", "NVIDIA Source Code License for SegFormer: non-commercial"),
    "nvidia/mit-b2": KnownWeights("99 MB", "NVIDIA Source Code License for SegFormer: non-commercial"),
}


def embedded_folder(part: str) -> Path:
    """Folder of an embedded network: "pipeline", "control", "depth", "features" or "segmenter".

    Raises:
        ModelError: the package was built without its weights.
    """
    folder = Path(str(resources.files("mcpmix"))) / "assets" / part
    if not folder.is_dir():
        raise ModelError(
            f"The embedded {part} weights are missing from this installation ({folder}). Install the package "
            "from a full checkout, or build them there with `python -m tools.pretrain`."
        )
    return folder


def split_pin(source: str) -> tuple[str, str | None]:
    """Split `name@sha256:<digest>` into name and digest; the digest is None without a pin.

    Raises:
        ModelError: what follows `@sha256:` is not a SHA-256.
    """
    name, mark, digest = source.partition(_PIN)
    if not mark:
        return source, None
    if not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise ModelError(
            f"{source!r}: expected 64 hexadecimal digits after {_PIN}, got {digest!r}. "
            f"`mcpmix models digest {name}` prints the digest of what is here."
        )
    return name, digest.lower()


def resolve(source: str, embedded_part: str) -> Path:
    """The local folder that a configured source stands for, with its pin checked.

    Args:
        source: "embedded", a path, or a hub id `owner/name`; each optionally with `@sha256:<digest>`.
        embedded_part: which embedded folder "embedded" means here.

    Raises:
        ModelError: nothing of that name is on this machine, it has another digest, or it holds pickles only.
    """
    name, pin = split_pin(source)
    folder = embedded_folder(embedded_part) if name == EMBEDDED else expanded(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError) as error:
            known = KNOWN.get(name)
            facts = f" ({known.size}; licence: {known.licence})" if known else ""
            files = "".join(f' --include "{pattern}"' for pattern in known.files) if known else ""
            raise ModelError(
                f"No weights for {name!r}{facts}: it is neither a local folder nor in the local hub cache. "
                f"On a machine with internet run `hf download {name}{files}`, or copy the folder here and "
                "give its path."
            ) from error
    pickles = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix in PICKLES
        and path.parent.name not in UNUSED
        and not any(path.parent.glob("*.safetensors"))
    )
    if pickles:
        kind = "StableDiffusionPipeline" if (folder / "model_index.json").exists() else "the model's class"
        raise ModelError(
            f"{name}: {folder} holds weights as pickles only ({', '.join(map(str, pickles))}), which can run "
            "any code when they are loaded. Fetch safetensors files of the same model, or convert it on a "
            f"machine where that risk is acceptable: load it with {kind}."
            "from_pretrained(folder, use_safetensors=False) and write it with save_pretrained(new_folder)."
        )
    if pin is not None:
        verify_pin(name, folder, pin)
    return folder


def source_name(source: str) -> str:
    """A source in the key of a stage: of a local file or folder only its name; its digest says the rest."""
    name, mark, pin = source.partition(_PIN)
    path = expanded(name)
    return f"{path.name}{mark}{pin}" if path.exists() else source


def is_present(source: str, embedded_part: str) -> bool:
    """Whether `resolve` finds a source on this machine."""
    try:
        resolve(source, embedded_part)
    except ModelError:
        return False
    return True


def resolve_file(source: str) -> Path | None:
    """The local weight file that a source stands for, with its pin checked; None if it is not a local file.

    Raises:
        ModelError: the file has another digest than its pin.
    """
    name, pin = split_pin(source)
    path = expanded(name)
    if not path.is_file():
        return None
    if pin is not None:
        verify_pin(name, path, pin)
    return path


def verify_pin(name: str, path: Path, pin: str) -> None:
    """Raise a ModelError if a file or model folder has another digest than `pin`."""
    found = digest_of_weights(path)
    if found != pin:
        raise ModelError(
            f"{name}: the weights at {path} are not the pinned ones.\n  expected sha256:{pin}\n"
            f"  found    sha256:{found}\nFetch the right files, or change the pin if you trust these."
        )


def digest_of_weights(path: Path) -> str:
    """SHA-256 of a weight file (as `sha256sum` prints it) or of a model folder (see `folder_digest`)."""
    if not path.is_file():
        return folder_digest(path.resolve())
    state = path.stat()
    return _unchanged_digest(path.resolve(), state.st_size, state.st_mtime_ns)


@cache
def _unchanged_digest(path: Path, size: int, changed: int) -> str:
    """The digest of a file, computed once for each state: the keys of a thousand trainings ask for it."""
    del size, changed
    return file_digest(path)


def digest_of_source(source: str, embedded_part: str) -> str:
    """SHA-256 of what a configured source stands for, file or folder: it may change under its name.

    Raises:
        ModelError: as `resolve`.
    """
    return digest_of_weights(resolve_file(source) or resolve(source, embedded_part))


@cache
def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and bytes of all configuration and weight files of a model folder."""
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".safetensors", ".txt"))
    return digest_of({str(path.relative_to(folder)): file_digest(path) for path in files})


def pinned(source: str) -> str:
    """A source with its digest behind it, `source@sha256:<digest>`; a pin that it has already is checked.

    Raises:
        ModelError: it is not here, or has another digest than its pin.
    """
    return f"{split_pin(source)[0]}{_PIN}{digest_of_source(source, 'pipeline')}"


def resnet_file() -> Path:
    """Where the weights of `resnet50` are, or would be: torchvision's file in torch's local cache."""
    from torch.hub import get_dir  # heavy

    return Path(get_dir()) / "checkpoints" / RESNET_URL.rsplit("/", 1)[-1]


def list_weights() -> list[tuple[str, str, bool, str]]:
    """Name, size, whether on this machine, and licence: embedded parts first, then published weights."""
    rows = []
    for part in ("pipeline", "control", "depth", "features", "segmenter"):
        size, here = KNOWN[EMBEDDED].size, is_present(EMBEDDED, part)
        if here:
            files = (path for path in embedded_folder(part).rglob("*") if path.is_file())
            size = f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
        rows.append((f"{EMBEDDED} ({part})", size, here, KNOWN[EMBEDDED].licence))
    for name, known in KNOWN.items():
        if name != EMBEDDED:
            here = resnet_file().is_file() if name == "resnet50" else is_present(name, "")
            rows.append((name, known.size, here, known.licence))
    return rows


def licence_of(source: str) -> str:
    """The licence of known weights, or a reminder to look it up."""
    known = KNOWN.get(source.partition(_PIN)[0])
    return known.licence if known else "unknown to this program: check the terms of the weights yourself"
