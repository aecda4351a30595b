"""Drawing in few steps: which settings and weights it takes, and what it adds to the keys of stages."""

from collections.abc import Set
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.data.leakage import SeenImage, read_seen
from mcpmix.networks.generator import SamplingSettings
from mcpmix.networks.weight_files import folder_digest, resolve

FEW_STEPS = "controlnet-few-steps"
"""Folder of the weights that have learnt to draw in few steps, inside the generator's."""
_LORA_STEPS = 50  # in which the published LCM-LoRAs have learnt


def sampling_settings(config: Config) -> SamplingSettings:
    """How counterparts are drawn; few steps have no guidance, because it is part of what was learnt."""
    drawn, few = config.synthesis, config.few_steps
    if not few.steps:
        return SamplingSettings(drawn.steps, drawn.guidance, drawn.mask_guidance, drawn.strength)
    learnt = drawn.steps if few.distils else _LORA_STEPS
    return SamplingSettings(few.steps, 1.0, 1.0, drawn.strength, learnt)


def lora_folder(config: Config) -> Path | None:
    """The folder of the LoRA that makes the generator draw in few steps, if one is configured."""
    lora = config.few_steps.lora
    return None if lora is None else resolve(lora, "lora")


def seen_by_lora(config: Config) -> dict[str, list[SeenImage]]:
    """What the LoRA has seen, as far as its folder lists it; empty without one."""
    folder = lora_folder(config)
    return {} if folder is None else {"the generator's LoRA": read_seen(folder)}


def drawing_key(config: Config, exclude: Set[str]) -> dict[str, Any]:
    """The section synthesis in the key of a stage, and with few steps what these add to it."""
    return config.synthesis.model_dump(mode="json", exclude=set(exclude)) | few_steps_facts(config)


def few_steps_facts(config: Config) -> dict[str, Any]:
    """What decides how images are drawn in few steps; empty if they are not."""
    if not config.few_steps.steps:
        return {}
    folder = lora_folder(config)
    lora = None if folder is None else folder_digest(folder)
    return {"few_steps": {"steps": config.few_steps.steps, "lora": lora}}
