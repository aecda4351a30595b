"""Is this folder one that SegFormer can start from? Answered before training, from the head of its files.

transformers itself takes a folder of any other network too: it starts the tensors that it misses at random,
and so would train from scratch under the name of pretrained weights.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import SegformerConfig

from mcpmix.core.errors import ModelError
from mcpmix.models.sources import resolve, resolve_file

_TYPE = "segformer"
_ENCODER = "segformer."  # with which the names of its tensors begin
_EXPECTED = (
    "Expected a folder with config.json and model.safetensors, as save_pretrained of a SegFormer writes it"
)


def require_segformer(source: str, variant: str, wanted: SegformerConfig) -> Path:
    """The folder of weights that SegFormer can start from; anything else is refused.

    Args:
        source: as configured: a hub id that is on this machine or a folder, perhaps with a pin.
        variant: of the segmenter that shall start from it.
        wanted: the configuration of that variant.

    Raises:
        ModelError: nothing of that name is here; it is a file, or a folder of another network or variant; its
            files are missing, damaged or pickles.
    """
    file = resolve_file(source)
    if file is not None:
        raise ModelError(f"{file} is a file. {_EXPECTED}.")
    folder = resolve(source, "segmenter")
    _compare(folder, _read_config(folder / "config.json"), variant, wanted)
    names = {name for path in _weight_files(folder) for name in _tensors(path)}
    if not any(name.startswith(_ENCODER) for name in names):
        few = ", ".join(sorted(names)[:3]) or "none"
        raise ModelError(f"{folder} holds no tensors of a SegFormer, but others ({few} ...). {_EXPECTED}.")
    return folder


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{path.parent} has no {path.name}. {_EXPECTED}.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}). Copy the folder again.") from error
    return found if isinstance(found, dict) else {}


def _compare(folder: Path, found: dict[str, Any], variant: str, wanted: SegformerConfig) -> None:
    if found.get("model_type") != _TYPE:
        what = f"is of another kind of network ({found.get('model_type') or 'unnamed'})"
        if {"name", "variant"} <= found.keys():
            what = f"is a segmenter that mcpmix trained ({found['name']} {found['variant']})"
        raise ModelError(f"{folder} {what}; SegFormer cannot start from it. {_EXPECTED}.")
    for key in ("depths", "hidden_sizes"):
        there = found.get(key, getattr(SegformerConfig(), key))  # what a file leaves out is the default
        if list(there) != list(getattr(wanted, key)):
            raise ModelError(
                f"{folder} is not of a SegFormer {variant}: its {key} are {list(there)}, expected "
                f"{list(getattr(wanted, key))}. Set segmenter.variant to the one of these weights."
            )


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no model.safetensors. {_EXPECTED}.")
    return files


def _tensors(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is damaged or cut off, or no safetensors file: {error}. "
            "Copy it again and compare the sizes."
        ) from error
