"""Whole segmenters in folders: config.json with safetensors."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.models.segmenters.registry import build_segmenter
from mcpmix.models.segmenters.states import mismatches

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


def save_segmenter(network: nn.Module, folder: Path, description: dict[str, Any]) -> None:
    """Write config.json (name, variant, size and what else `description` says) and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(description, indent=1))
    # Cloned: safetensors refuses tensors that share memory, as tied layers of a user's network do.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
    save_file(state, folder / _WEIGHTS)


def load_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Read back what `save_segmenter` wrote: the network in evaluation mode and its description.

    Raises:
        ModelError: the folder has no segmenter, a damaged one, or weights of another architecture.
    """
    try:
        description: dict[str, Any] = json.loads((folder / _CONFIG).read_text())
        state = load_file(folder / _WEIGHTS)
        name, variant = description["name"], description["variant"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"{folder} has no segmenter ({_CONFIG} and {_WEIGHTS} expected): {error!r}"
        ) from error
    network = build_segmenter(name, variant)
    problems = mismatches(state, network.state_dict(), exact=True)
    if problems:
        raise ModelError(bullet_list(f"{folder / _WEIGHTS} is not of a {name} {variant}:", problems))
    network.load_state_dict(state)
    return network.eval(), description
