"""The tensors of state files, read without running code, and whether they are those of a network."""

import pickle
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.core.files import expanded
from mcpmix.networks.weight_files import split_pin, verify_pin

WEIGHTS = "model.safetensors"


def read_state(source: str) -> dict[str, Tensor]:
    """The tensors of a state file by name, without running code from it.

    Args:
        source: a .safetensors file, a folder with model.safetensors, or a state dictionary that torch.save
            wrote (plain tensors only); optionally pinned, `@sha256:<digest>`.
    """
    name, pin = split_pin(source)
    path = expanded(name)
    if pin is not None and path.exists():
        verify_pin(name, path, pin)
    path = path / WEIGHTS if path.is_dir() else path
    if not path.is_file():
        raise ModelError(
            f"segmenter.weights: there is no file {path}. Expected a .safetensors file, a folder with "
            f"{WEIGHTS}, or a state dictionary of torch.save."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"segmenter.weights: {path} cannot be read: damaged, or not a file of plain tensors "
            f"({type(error).__name__}). Save the state dictionary alone, best as .safetensors."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(
            f"segmenter.weights: {path} does not hold a state dictionary of tensors. Save "
            "network.state_dict() alone."
        )
    return dict(state)


def load_matching(network: nn.Module, state: Mapping[str, Tensor], headline: str) -> None:
    """Load a state that has exactly the network's tensors; see `require_match`."""
    require_match(state, network.state_dict(), headline)
    network.load_state_dict(state)


def require_match(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], headline: str) -> None:
    """Refuse other tensors or shapes than wanted: a ModelError with the headline and all differences."""
    differences = {
        "missing": [name for name in wanted if name not in state],
        "unknown": [name for name in state if name not in wanted],
        "of another shape": [
            f"{name} is {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in state and state[name].shape != tensor.shape
        ],
    }
    problems = [
        f"{len(names)} tensors {kind}: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        for kind, names in differences.items()
        if names
    ]
    if problems:
        raise ModelError(bullet_list(headline, problems))
