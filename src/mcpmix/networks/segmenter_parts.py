"""What the segmenters share: any size of image, and the tensors of state files."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.networks.weight_files import split_pin, verify_pin

WEIGHTS = "model.safetensors"


class AnySize(nn.Module):
    """Lets a network that needs certain image sizes take all.

    The image is extended to the right and below by its own last column and row up to the next multiple of
    `multiple`; the logits are cropped to the image. A size that is a multiple already passes unchanged.
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


def read_state(source: str) -> dict[str, Tensor]:
    """The tensors of a state file by name, without running code from it.

    Args:
        source: a .safetensors file, a folder with model.safetensors, or a state dictionary that torch.save
            wrote (plain tensors only); optionally pinned, `@sha256:<digest>`.

    Raises:
        ModelError: no such file, not of these kinds, or of another digest.
    """
    name, pin = split_pin(source)
    path = Path(name).expanduser()
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
    require_match(state, network.state_dict(), headline, exact=True)
    network.load_state_dict(state)


def require_match(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], headline: str, *, exact: bool
) -> None:
    """Refuse a state that lacks tensors, has them in other shapes or, if `exact`, has more than wanted.

    Raises:
        ModelError: `headline` and all differences.
    """
    differences = {
        "missing": [name for name in wanted if name not in state],
        "unknown": [name for name in state if name not in wanted] if exact else [],
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
