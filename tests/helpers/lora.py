"""A LoRA for tests."""

import torch
from safetensors.torch import save_file

from mcpmix.networks.generator import LORA_FILE

NAME = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q"


def query_of(unet):
    """The layer that `write_lora` changes."""
    return unet.down_blocks[1].attentions[0].transformer_blocks[0].attn1.to_q


def write_lora(folder, layer, alpha=4.0):
    """Writes a LoRA of rank 2 for one layer as the published LCM-LoRAs are; returns what it is to add."""
    rng = torch.Generator().manual_seed(0)
    down = torch.randn(2, layer.in_features, generator=rng)
    up = torch.randn(layer.out_features, 2, generator=rng)
    parts = {"lora_down.weight": down, "lora_up.weight": up, "alpha": torch.tensor(alpha)}
    folder.mkdir(exist_ok=True)
    save_file({f"{NAME}.{part}": value for part, value in parts.items()}, folder / LORA_FILE)
    return alpha / 2 * up @ down
