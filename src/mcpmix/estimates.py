"""What a run will need: memory of each stage, and disk."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import torch

from mcpmix.config import Config
from mcpmix.core.device import worker_count
from mcpmix.core.errors import McpmixError, StorageError
from mcpmix.data.splits import ALL_PARTS
from mcpmix.generator.few_steps import sampling_settings
from mcpmix.networks.memory import (
    build_meta,
    finetune_plan,
    parameter_count,
    pipeline_configs,
    synthesis_plan,
    training_plan,
)
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.segmenter.arms import needs_generator, needs_set

LARGE = 200_000_000  # parameters; a larger UNet is not trained on a CPU
# For the estimate of the disk:
_FLOAT = 4  # bytes
_ADAM_STATE = 4  # tensors of a parameter's size in a checkpoint: weights, their average or best, two moments
_PNG_BYTES = 2.5  # per pixel of a photograph
_DEPTH_BYTES = 2  # per pixel
_CACHED_BYTES = 4  # per pixel: three channels and the mask


def makes_pairs(config: Config) -> bool:
    """Whether an arm of the run needs counterparts, and so all stages that make them."""
    return any(needs_generator(config, arm) for arm in config.train.arms)


# --- memory ------------------------------------------------------------------------------------------------


def memory(config: Config) -> Iterator[tuple[str, str]]:
    """What each stage needs at its peak, by its name. Needs no weights and no memory to speak of.

    Raises:
        McpmixError: there is no such segmenter, or the generator is neither known nor on this machine.
    """
    size, finetune, synthesis, train = config.data.size, config.finetune, config.synthesis, config.train
    wanted = config.segmenter
    segmenter = build_segmenter(
        wanted.name, wanted.variant, options=wanted.options, channels=config.data.channels
    )
    pipeline = build_meta(pipeline_configs(config.generator.base)) if makes_pairs(config) else None
    precision: torch.dtype = getattr(torch, config.runtime.precision, torch.float32)
    if config.runtime.precision == "auto":
        on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        large = pipeline is not None and parameter_count(pipeline.unet) > LARGE  # it will be on a GPU
        precision = torch.bfloat16 if on_gpu or large else torch.float32
    numbers = str(precision).removeprefix("torch.")
    if pipeline is not None:
        options = {
            "gradient checkpointing": finetune.gradient_checkpointing,
            "8-bit Adam": finetune.optimiser == "adamw-8bit",
            "an unlocked decoder": finetune.unlock_decoder,
        }
        used = " and ".join(name for name, on in options.items() if on)
        plan = partial(
            finetune_plan,
            pipeline,
            image_size=size,
            batch_size=finetune.batch_size,
            precision=precision,
            checkpointing=finetune.gradient_checkpointing,
            optimiser=finetune.optimiser,
            unlock_decoder=finetune.unlock_decoder or config.few_steps.distils,
        )
        how = f"{used and f' with {used}'}, batch {finetune.batch_size}, {numbers}"
        yield "finetune", _sentence(plan, f"{size} px{how}")
        batch, drawn = synthesis.batch_size, sampling_settings(config)
        passes = 1 + (drawn.guidance > 1) + (drawn.mask_guidance > 1)
        plan = partial(synthesis_plan, pipeline, image_size=size, batch_size=batch, passes=passes)
        yield "synthesize", _sentence(plan, f"{size} px, batch {batch}, float32")
    batch = train.batch_size
    plan = partial(training_plan, segmenter, image_size=size, batch_size=batch, precision=precision)
    how = f"batch {batch} and as many mixed images, {numbers}, each training, without phi of RLA"
    yield "train", _sentence(plan, f"{size} px, {how}")


def _sentence(plan: Callable[[], dict[str, float]], how: str) -> str:
    """A memory plan in words."""
    try:
        parts = plan()
    except Exception as error:  # own networks may need numbers, and fail in any way without them
        return f"memory unknown: a step without numbers failed ({type(error).__name__})"
    total = sum(parts.values())
    beyond = ""
    if torch.cuda.is_available() and (there := torch.cuda.get_device_properties(0).total_memory) < total:
        beyond = f"; the GPU has only {_gigabytes(there)}"
    listed = ", ".join(f"{name} {_gigabytes(value)}" for name, value in parts.items())
    return f"about {_gigabytes(total)} GB at {how} (in GB: {listed}{beyond})"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f}" if size >= 1e9 else f"{size / 1e9:.2f}"


# --- disk --------------------------------------------------------------------------------------------------


def disk(config: Config, images: Mapping[str, int] | None) -> str:
    """What a run writes and what is free, in words; a StorageError if that is less."""
    absolute = config.folder.absolute()
    place = next(path for path in (absolute, *absolute.parents) if path.is_dir())
    free, need = shutil.disk_usage(place).free, estimate_bytes(config, images)
    if free < need:
        raise StorageError(
            f"{place} has {free / 1e9:.2f} GB free, and a run needs about {need / 1e9:.2f} GB. Free some "
            "space, or choose another output folder."
        )
    return f"about {need / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free at {place}"


def estimate_bytes(config: Config, images: Mapping[str, int] | None = None) -> float:
    """A rough estimate of what a whole run writes, in bytes, with checkpoints at their largest.

    Args:
        images: number of images of each part; None for a phantom, or if it is not known.
    """
    pixels = config.data.size**2
    train, held, *tested = (part_sizes(config, images)[part] for part in ALL_PARTS)
    test = sum(tested)
    runs = len(config.train.arms) * len(config.train.seeds)
    workers = worker_count(config.runtime.jobs, torch.device("cpu"), max(runs, 1))
    segmenter = control = 0.0
    with suppress(McpmixError):  # a network that is not there is a problem of its own
        wanted = config.segmenter
        network = build_segmenter(
            wanted.name, wanted.variant, options=wanted.options, channels=config.data.channels
        )
        segmenter = _FLOAT * parameter_count(network)
    # A new checkpoint is complete before it replaces the last one: twice the size.
    total: float = runs * segmenter + workers * 2 * _ADAM_STATE * segmenter
    total += runs * test * pixels / 8
    total += (train + held) * pixels * _CACHED_BYTES
    if config.data.source == "phantom":
        total += (train + held + test) * pixels * _PNG_BYTES
    if makes_pairs(config):
        with suppress(McpmixError):
            control = _FLOAT * parameter_count(build_meta(pipeline_configs(config.generator.base)).control)
        total += 2 * _ADAM_STATE * control + train * pixels * _DEPTH_BYTES
        if config.synthesis.source == "bank":
            total += train * config.synthesis.replicas * pixels * _PNG_BYTES
    sets = sum(map(needs_set, config.train.arms))
    return total + sets * train * config.synthesis.replicas * pixels * _PNG_BYTES


def part_sizes(config: Config, images: Mapping[str, int] | None) -> Mapping[str, int]:
    """Number of images of each part: as given, or those that the phantom draws."""
    plan = config.data.phantom
    return images or {
        "train": plan.train_patients * plan.frames_per_patient,
        "validation": plan.validation_patients * plan.frames_per_patient,
        "test": plan.test_patients * plan.test_frames_per_patient,
        "known": plan.train_patients * plan.known_frames_per_patient,
    }
