"""Checkpoints without pickles: a nested state in one safetensors file, written whole or not at all.

Tensors become entries of the file; everything around them (dictionaries, lists, numbers, strings) is kept as
JSON in its header. An optimiser's state dict, whose keys are integers, survives the round trip.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mcpmix.core.errors import ModelError

State = Any  # nested dict / list / tuple of tensors and JSON scalars

_FORMAT = "mcpmix-state-1"


def save_state(path: Path, state: State) -> None:
    """Write a nested state to `path`; the old file stays until the new one is complete."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _pack(state, tensors)
    temporary = path.with_name(path.name + ".tmp")
    save_file(tensors, temporary, metadata={"format": _FORMAT, "skeleton": json.dumps(skeleton)})
    temporary.replace(path)


def load_state(path: Path, device: str = "cpu") -> State:
    """Read back what `save_state` wrote.

    Raises:
        ModelError: the file is missing, damaged or of another format.
    """
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ModelError(
                    f"{path} is not a checkpoint of this program: its format is "
                    f"{metadata.get('format')!r}, expected {_FORMAT!r}. Delete it to start anew."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FileNotFoundError) as error:
        raise ModelError(f"Cannot read the checkpoint {path}: {error}. Delete it to start anew.") from error
    return _unpack(json.loads(metadata["skeleton"]), tensors)


def _pack(node: State, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Replace each tensor by a reference; mark containers so that their type and key types come back."""
    if isinstance(node, torch.Tensor):
        name = f"t{len(tensors)}"
        # A clone: two names may share memory (tied weights), which safetensors refuses.
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(node, dict):
        return {"dict": [[key, _pack(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_pack(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__}")


def _unpack(node: dict[str, Any], tensors: dict[str, torch.Tensor]) -> State:
    kind, content = next(iter(node.items()))
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(value, tensors) for key, value in content}
    if kind == "list":
        return [_unpack(value, tensors) for value in content]
    if kind == "tuple":
        return tuple(_unpack(value, tensors) for value in content)
    return content
