"""State files: the tensors of a user's checkpoint, without running code from it."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import ModelError
from mcpmix.networks.weight_files import split_pin, verify_pin

_IN_A_FOLDER = "model.safetensors"


def read_state(source: str) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Args:
        source: a .safetensors file, a folder with model.safetensors, or a state dictionary that torch.save
            wrote (plain tensors only: a file that would run code is refused); perhaps with a pin,
            `@sha256:<digest>`.

    Raises:
        ModelError: no such file, not of these kinds, or of another digest.
    """
    name, pin = split_pin(source)
    path = Path(name).expanduser()
    if pin is not None and path.exists():
        verify_pin(name, path, pin)
    path = path / _IN_A_FOLDER if path.is_dir() else path
    if not path.is_file():
        raise ModelError(
            f"segmenter.weights: there is no file {path}. Expected a .safetensors file, a folder with "
            f"{_IN_A_FOLDER}, or a state dictionary of torch.save."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"segmenter.weights: {path} cannot be read: damaged, or no file of plain tensors "
            f"({type(error).__name__}). Save the state dictionary alone, best as .safetensors."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(
            f"segmenter.weights: {path} holds no state dictionary of tensors. Save network.state_dict() "
            "alone."
        )
    return dict(state)


def mismatches(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, exact: bool) -> list[str]:
    """Why `state` does not fit `wanted`, one text for each kind of problem.

    Args:
        state: tensors that came.
        wanted: tensors that were expected.
        exact: whether tensors beyond those wanted are a problem too.
    """
    shapes = [
        f"{name} is {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    missing = [name for name in wanted if name not in state]
    beyond = [name for name in state if name not in wanted] if exact else []
    found = {"missing": missing, "unknown": beyond, "of another shape": shapes}
    return [f"{len(names)} tensors {kind}: {_few(names)}" for kind, names in found.items() if names]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


class AnySize(nn.Module):
    """A network of its own input sizes, made to take all.

    The rule: the image is continued to the right and below by its own last column and row up to the next
    multiple of `multiple`; of the logits, the part of the image is kept. A size that is a multiple already
    passes unchanged.

    Args:
        network: B,3,H,W to B,1,H,W for sides that are multiples of `multiple`.
        multiple: what a side must be a multiple of, in pixels.
    """

    def __init__(self, network: nn.Module, multiple: int = 32) -> None:
        super().__init__()
        self.network = network
        self.multiple = multiple

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        logits: Tensor = self.network(padded)
        return logits[..., :height, :width]
