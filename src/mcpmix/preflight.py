"""The memory that the stages of a configuration need, as sentences for `mcpmix check`."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mcpmix import phantom
from mcpmix.config import Config
from mcpmix.core.device import setup, worker_count
from mcpmix.core.errors import ConfigError, DataError, McpmixError, ModelError, StorageError, bullet_list
from mcpmix.core.optimisers import require_optimiser
from mcpmix.core.pixels import as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.data.audit import Audit, Severity, inspect_all
from mcpmix.data.index import DatasetIndex
from mcpmix.data.layouts import Collection
from mcpmix.data.likeness import Phi
from mcpmix.data.planning import load_collection, make_split
from mcpmix.data.splits import require_lesions
from mcpmix.generator.bank import inspect_bank
from mcpmix.networks.controlnet import require_fit
from mcpmix.networks.features import load_features
from mcpmix.networks.memory import (
    MemoryPlan,
    MetaPipeline,
    build_meta,
    finetune_plan,
    parameter_count,
    pipeline_configs,
    synthesis_plan,
    training_plan,
)
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.weight_files import EMBEDDED, licence_of, resolve
from mcpmix.segmenter.arms import check_arms, check_strategies, needs_generator, takes_edits

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
        pipeline = build_meta(pipeline_configs(config.generator.base))
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


_LEARNABLE_ARM = "mcpmix-rla"
_PIPELINE_PARTS = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
_FLOAT = 4  # bytes
_ADAM_STATE = 4  # tensors of a parameter's size in a checkpoint: weights, their average or best, two moments
_CONTROL_SHARE = (
    0.45  # of the UNet's parameters that its ControlNet has: the encoder and the zero convolutions
)
_PNG_BYTES = 2.5  # per pixel of a photograph
_DEPTH_BYTES = 2  # per pixel
_CACHED_BYTES = 4  # per pixel: three channels and the mask


@dataclass(frozen=True)
class CheckResult:
    """What was found.

    Attributes:
        problems: all that would stop a run, each with its remedy.
        facts: what is well, by topic.
        audit: what the files are; None for a phantom, or if they were not found.
    """

    problems: tuple[McpmixError, ...]
    facts: dict[str, str]
    audit: Audit | None = None

    @property
    def exit_code(self) -> int:
        """That of the gravest problem, 0 without any.

        Configuration comes before data, data before models, models before the disk: later ones may vanish
        when earlier ones are mended.
        """
        return min((problem.exit_code for problem in self.problems), default=0)


class _Examination:
    """Collects facts and problems."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.problems: list[McpmixError] = []

    def look(self, topic: str, examine: Callable[[], str]) -> None:
        """Keep what `examine` says, or its problem."""
        try:
            self.facts[topic] = examine()
        except McpmixError as error:
            self.problems.append(error)


def check(config: Config, progress: Progress = SILENT) -> CheckResult:
    """Examine data, split, arms, networks, weights, device and disk. Writes nothing.

    Args:
        config: a valid configuration.
        progress: where decoding reports to.
    """
    examination = _Examination()
    found: list[Audit] = []
    examination.look("data", partial(_examine_data, config, progress, found))
    _examine_settings(config, examination)
    _examine_memory(config, examination)
    examination.look("pairs", lambda: inspect_bank(config.folder / "pairs"))
    audit = found[0] if found else None
    examination.look("disk", partial(_examine_disk, config, audit.index() if audit else None))
    return CheckResult(tuple(examination.problems), examination.facts, audit)


def require_settings(config: Config) -> None:
    """Examine all that needs no image: arms, networks, weights and device.

    Raises:
        McpmixError: of the kind of the gravest problem, with every problem in its message.
    """
    examination = _Examination()
    _examine_settings(config, examination)
    if examination.problems:
        gravest = min(examination.problems, key=lambda problem: problem.exit_code)
        raise type(gravest)("\n".join(str(problem) for problem in examination.problems))


def _examine_settings(config: Config, examination: _Examination) -> None:
    examination.look("trainings", partial(_examine_arms, config))
    examination.look("segmenter", partial(_examine_segmenter, config))
    for topic, examine in _weights(config):
        examination.look(topic, examine)
    examination.look("device", partial(_examine_device, config))


# --- data --------------------------------------------------------------------------------------------------


def _examine_data(config: Config, progress: Progress, found: list[Audit]) -> str:
    data = config.data
    if data.source == "phantom":
        phantom.render(seed_for("check"), 0, 0, data.size)  # refuses a size that it cannot draw
        plan = data.phantom
        return (
            f"phantom; {plan.train_patients} patients for train, {plan.validation_patients} for validation, "
            f"{plan.test_patients} for test"
        )
    collection = _load(config, progress)
    facts = inspect_all(collection.samples, progress, embedded_phi())
    found.append(Audit(facts, {}))
    _refuse_errors(found[-1])
    area_of = {item.sample.id: item.area for item in facts}
    planned = make_split(collection, data.split, config.seed, lambda sample: area_of[sample.id])
    require_lesions(area_of[name] > 0 for name in planned.split.validation)
    part_of = {name: part for part, ids in planned.split.parts().items() for name in ids}
    found[-1] = Audit(facts, part_of)
    _refuse_errors(found[-1])
    parts = ", ".join(f"{len(ids)} for {part}" for part, ids in planned.split.parts().items())
    groups = len({sample.group for sample in collection.samples if sample.id in part_of})
    warning = f"; this split leaks: {planned.leaks}" if planned.leaks else ""
    return f"{len(part_of)} images of {groups} groups; {parts}{warning}"


def embedded_phi() -> Phi | None:
    """The embedded feature network, for copies that the pixels do not give away; None if it is not here."""
    try:
        network = load_features(EMBEDDED)
    except ModelError:
        return None

    def features(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            images = as_images(pixels)
            return np.asarray(network(images), dtype=np.float32)

    return features


def _load(config: Config, progress: Progress) -> Collection:
    data = config.data
    try:
        return load_collection(
            data.source,
            root=data.root,
            images=data.images,
            masks=data.masks,
            groups=data.groups,
            progress=progress,
        )
    except DataError as error:
        split_file = data.split.file
        if split_file is not None and not split_file.is_file():
            raise DataError(f"{error}\nThe split file {split_file} does not exist.") from error
        raise


def _refuse_errors(audit: Audit) -> None:
    grave = [finding for finding in audit.findings if finding.severity == Severity.ERROR]
    if grave:
        raise DataError(
            "\n".join(
                bullet_list(f"{finding.title.capitalize()}: {finding.remedy}:", finding.items)
                for finding in grave
            )
        )


# --- settings ----------------------------------------------------------------------------------------------


def _examine_arms(config: Config) -> str:
    arms, seeds = config.train.arms, config.train.seeds
    problems = check_arms(arms) + check_strategies(config.train.strategies)
    for name, values in (("arms", arms), ("seeds", seeds)):
        if not values:
            problems.append(f"train.{name}: empty; name at least one")
        if len(set(values)) < len(values):
            problems.append(f"train.{name}: {list(values)} names one twice; each gets one folder")
    if problems:
        raise ConfigError(bullet_list("The trainings cannot be run:", problems))
    return f"{len(arms) * len(seeds)} ({', '.join(arms)}; seeds {', '.join(map(str, seeds))})"


def _examine_segmenter(config: Config) -> str:
    settings = config.segmenter
    millions = _segmenter_parameters(config) / 1e6
    text = f"{settings.name} {settings.variant}, {millions:.1f} million parameters"
    if settings.weights is None:
        return f"{text}, from scratch"
    _examine_start(settings.name, settings.variant, settings.weights)
    return f"{text}, from {settings.weights}; licence: {licence_of(settings.weights)}"


def _examine_start(name: str, variant: str, weights: str) -> None:
    """Refuse weights that the segmenter cannot start from."""
    try:
        build_segmenter(name, variant, weights)
    except ModelError as error:
        setting = "segmenter.weights: "
        raise ModelError(setting + str(error).removeprefix(setting)) from error


def _segmenter_parameters(config: Config) -> int:
    with torch.device("meta"):  # shapes without memory
        network = build_segmenter(config.segmenter.name, config.segmenter.variant)
    return sum(parameter.numel() for parameter in network.parameters())


def _weights(config: Config) -> Iterator[tuple[str, Callable[[], str]]]:
    """What has to be on this machine for the configured arms."""
    if any(needs_generator(config, arm) for arm in config.train.arms):
        depth, base = config.depth.model, config.generator.base
        yield "depth", partial(_examine_folder, "depth.model", depth, "depth", ("config.json",))
        yield "generator", partial(_examine_folder, "generator.base", base, "pipeline", _PIPELINE_PARTS)
        if (start := config.finetune.start) is not None:
            yield "control", partial(_examine_control, start, base)
        yield "optimiser", partial(_examine_optimiser, config.finetune.optimiser)
    if config.editor.model is not None and any(takes_edits(config, arm) for arm in config.train.arms):
        yield (
            "editor",
            partial(_examine_folder, "editor.model", config.editor.model, "pipeline", _PIPELINE_PARTS),
        )
    if _LEARNABLE_ARM in config.train.arms:
        yield "features", partial(_examine_features, config.rla.features)


def _examine_folder(setting: str, source: str, part: str, contents: tuple[str, ...]) -> str:
    folder = _resolve(setting, source, part)
    missing = [name for name in contents if not (folder / name).exists()]
    if missing:
        raise ModelError(
            f"{setting}: {folder} is no complete {part}: {', '.join(missing)} missing. Get it again, or give "
            "another source."
        )
    return f"{source}; licence: {licence_of(source)}"


def _examine_control(source: str, base: str) -> str:
    folder = _resolve("finetune.start", source, "control")
    try:
        unet = json.loads((resolve(base, "pipeline") / "unet" / "config.json").read_text(encoding="utf-8"))
    except (ModelError, OSError, ValueError):
        return f"{source}; whether it fits is not known without its base"  # which is a problem of its own
    try:
        require_fit(folder, unet)
    except ModelError as error:
        raise ModelError(f"finetune.start: {error}") from error
    return f"{source}; licence: {licence_of(source)}"


def _examine_optimiser(name: str) -> str:
    require_optimiser(name)
    return f"{name} (finetune)"


def _resolve(setting: str, source: str, part: str) -> Path:
    """As `resolve`, with a message that names the setting."""
    try:
        return resolve(source, part)
    except ModelError as error:
        raise ModelError(f"{setting}: {error}") from error


def _examine_features(source: str) -> str:
    try:
        load_features(source)
    except ModelError as error:
        raise ModelError(f"rla.features: {str(error).removeprefix('features: ')}") from error
    return f"{source}; licence: {licence_of(source)}"


def _examine_memory(config: Config, examination: _Examination) -> None:
    """What each stage needs; what stands in the way of knowing it is a problem of the weights already."""
    with_pairs = any(needs_generator(config, arm) for arm in config.train.arms)
    with suppress(McpmixError):
        examination.facts |= memory_of_stages(config, with_pairs=with_pairs)


def _examine_device(config: Config) -> str:
    settings = config.runtime
    return setup(settings.device, settings.precision, settings.threads, settings.deterministic).reason


# --- disk --------------------------------------------------------------------------------------------------


def _examine_disk(config: Config, index: DatasetIndex | None) -> str:
    place = _existing(config.folder)
    if not place.is_dir():
        raise StorageError(f"Cannot make {config.folder}: {place} is a file. Choose another output folder.")
    if not os.access(place, os.W_OK):
        raise StorageError(
            f"Cannot write to {place}, where {config.folder} is to be made. Change its permissions, or "
            "choose another output folder."
        )
    free, need = shutil.disk_usage(place).free, estimate_bytes(config, index)
    if free < need:
        raise StorageError(
            f"{place} has {_in_gb(free)} free, and a run needs about {_in_gb(need)}. Free some "
            "space, or choose another output folder."
        )
    return f"about {_in_gb(need)} needed, {_in_gb(free)} free at {place}"


def _existing(folder: Path) -> Path:
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def estimate_bytes(config: Config, index: DatasetIndex | None = None) -> float:
    """A rough estimate of what a whole run writes, in bytes, with checkpoints at their largest.

    Args:
        config: the configuration.
        index: the data set; None for a phantom, or if it is not known.
    """
    pixels = config.data.size**2
    plan = config.data.phantom
    train = len(index.part("train")) if index else plan.train_patients * plan.frames_per_patient
    test = len(index.part("test")) if index else plan.test_patients * plan.test_frames_per_patient
    held = len(index.part("validation")) if index else plan.validation_patients * plan.frames_per_patient
    runs = len(config.train.arms) * len(config.train.seeds)
    segmenter = _parameters(partial(_segmenter_parameters, config)) * _FLOAT
    workers = worker_count(config.runtime.jobs, torch.device("cpu"), max(runs, 1))
    # A checkpoint is written beside the last one before it takes its place: twice.
    total: float = runs * segmenter + workers * 2 * _ADAM_STATE * segmenter
    total += runs * test * pixels / 8
    total += (train + held) * pixels * _CACHED_BYTES
    if config.data.source == "phantom":
        total += (train + held + test) * pixels * _PNG_BYTES
    if any(needs_generator(config, arm) for arm in config.train.arms):
        control = _parameters(partial(_control_parameters, config)) * _FLOAT
        total += 2 * _ADAM_STATE * control + train * pixels * _DEPTH_BYTES
        if config.synthesis.source == "bank":
            total += train * config.synthesis.replicas * pixels * _PNG_BYTES
    return total


def _parameters(count: Callable[[], int]) -> int:
    """0 for networks that are not there; another check says so."""
    try:
        return count()
    except McpmixError:
        return 0


def _control_parameters(config: Config) -> int:
    """From the header of the UNet's weights: nothing is loaded."""
    folder = resolve(config.generator.base, "pipeline") / "unet"
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return 0
    with files[0].open("rb") as stream:  # the others are the same in other precisions
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return round(_CONTROL_SHARE * sum(math.prod(shape) for shape in shapes))


def _in_gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
