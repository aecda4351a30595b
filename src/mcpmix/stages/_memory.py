"""The memory that the stages of a configuration need, as sentences for `mcpmix check`."""

from collections.abc import Callable

import torch

from mcpmix.core.config import Config
from mcpmix.core.errors import McpmixError
from mcpmix.models.memory import MemoryPlan, finetune_plan, synthesis_plan, training_plan
from mcpmix.models.segmenters import build_segmenter
from mcpmix.models.sizes import MetaPipeline, build_meta, parameter_count, pipeline_configs

_LARGE = 200_000_000  # parameters of a generator that nobody trains on a CPU


def memory_of_stages(config: Config, *, with_pairs: bool) -> dict[str, str]:
    """What each stage needs at its peak, by its name. Needs no weights and no memory to speak of.

    Args:
        config: the configuration.
        with_pairs: whether a generator is trained and used.

    Raises:
        ModelError: the generator's configuration is not on this machine and not a known one.
    """
    plans: dict[str, Callable[[], str]] = {}
    large = False
    if with_pairs:
        pipeline = build_meta(pipeline_configs(config.generator.base), 2, config.finetune.embedding_channels)
        large = parameter_count(pipeline.unet) > _LARGE
        plans["finetune"] = lambda: _finetune(config, pipeline, _precision(config, large))
        plans["synthesize"] = lambda: _synthesize(config, pipeline)
    plans["train"] = lambda: _train(config, _precision(config, large))
    texts = {stage: _safely(plan) for stage, plan in plans.items()}
    return {stage: text for stage, text in texts.items() if text is not None}


def _safely(plan: Callable[[], str]) -> str | None:
    """Own networks may do what works with numbers only; None for wrong settings, which others report."""
    try:
        return plan()
    except McpmixError:
        return None
    except Exception as error:  # networks fail with errors of every kind
        return f"memory unknown: a step without numbers failed ({type(error).__name__})"


def _finetune(config: Config, pipeline: MetaPipeline, precision: torch.dtype) -> str:
    settings = config.finetune
    plan = finetune_plan(
        pipeline,
        image_size=config.data.size,
        batch_size=settings.batch_size,
        precision=precision,
        checkpointing=settings.gradient_checkpointing,
        optimiser=settings.optimiser,
        unlock_decoder=settings.unlock_decoder,
    )
    with_what = [
        text
        for text, used in (
            ("gradient checkpointing", settings.gradient_checkpointing),
            ("8-bit Adam", settings.optimiser == "adamw-8bit"),
            ("an unlocked decoder", settings.unlock_decoder),
        )
        if used
    ]
    extras = f" with {' and '.join(with_what)}" if with_what else ""
    return _sentence(plan, config.data.size, f"{extras}, batch {settings.batch_size}, {_name(precision)}")


def _synthesize(config: Config, pipeline: MetaPipeline) -> str:
    settings = config.synthesis
    passes = 1 + (settings.guidance > 1) + (settings.mask_guidance > 1)
    plan = synthesis_plan(
        pipeline, image_size=config.data.size, batch_size=settings.batch_size, passes=passes
    )
    return _sentence(plan, config.data.size, f", batch {settings.batch_size}, float32")


def _train(config: Config, precision: torch.dtype) -> str:
    with torch.device("meta"):
        network = build_segmenter(config.segmenter.name, config.segmenter.variant)
        plan = training_plan(
            network,
            image_size=config.data.size,
            batch_size=config.train.batch_size,
            precision=precision,
        )
    batch = f"batch {config.train.batch_size} and as many mixed images"
    text = f", {batch}, {_name(precision)}, each training, without the features of RLA"
    return _sentence(plan, config.data.size, text)


def _precision(config: Config, large: bool) -> torch.dtype:
    """As configured; with auto, bfloat16 for generators that only a GPU can train, wherever this runs."""
    name = config.runtime.precision
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if on_gpu or large else torch.float32


def _sentence(plan: MemoryPlan, size: int, how: str) -> str:
    parts = ", ".join(f"{name} {_gigabytes(value)}" for name, value in plan.parts.items())
    return f"about {_gigabytes(plan.total)} GB at {size} px{how} (in GB: {parts}{_beyond(plan)})"


def _beyond(plan: MemoryPlan) -> str:
    """A warning where the first GPU has less."""
    if not torch.cuda.is_available():
        return ""
    there = torch.cuda.get_device_properties(0).total_memory
    return f"; the GPU has only {_gigabytes(there)}" if there < plan.total else ""


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f}" if size >= 1e9 else f"{size / 1e9:.2f}"


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")
