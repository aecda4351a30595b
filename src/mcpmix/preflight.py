"""`mcpmix check`: every problem of a configuration before anything runs, and what a run will need.

A check is a function that returns a sentence about what it found, or raises an error whose message names the
setting and the remedy. `check` runs all of them, `run` those of `require_settings`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mcpmix import phantom
from mcpmix.config import Config
from mcpmix.core.device import setup, worker_count
from mcpmix.core.errors import ConfigError, DataError, McpmixError, ModelError, StorageError, bullet_list
from mcpmix.core.pixels import as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.core.training import require_optimiser
from mcpmix.data import unlabelled
from mcpmix.data.audit import Audit, Facts, Severity, inspect_all
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.data.leakage import SeenImage
from mcpmix.data.likeness import Phi
from mcpmix.data.splits import ALL_PARTS, keep_labels, require_lesions
from mcpmix.generator.bank import inspect_bank
from mcpmix.networks.controlnet import require_fit
from mcpmix.networks.diffusion import load_autoencoder, require_channels
from mcpmix.networks.features import load_features
from mcpmix.networks.memory import (
    build_meta,
    finetune_plan,
    parameter_count,
    pipeline_configs,
    synthesis_plan,
    training_plan,
)
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.weight_files import EMBEDDED, licence_of, resolve
from mcpmix.segmenter.arms import check_arms, needs_generator, needs_unlabelled, takes_edits

_PIPELINE = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
_LARGE = 200_000_000  # parameters; a larger UNet is not trained on a CPU
# For the estimate of the disk:
_FLOAT = 4  # bytes
_ADAM_STATE = 4  # tensors of a parameter's size in a checkpoint: weights, their average or best, two moments
_PNG_BYTES = 2.5  # per pixel of a photograph
_DEPTH_BYTES = 2  # per pixel
_CACHED_BYTES = 4  # per pixel: three channels and the mask


@dataclass
class CheckResult:
    """What was found.

    Attributes:
        problems: all that would stop a run, each with its remedy.
        facts: what is in order, by topic.
        audit: what the files are; None for a phantom, or if they were not found.
    """

    problems: list[McpmixError] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    audit: Audit | None = None

    def look(self, topic: str, examine: Callable[[], str]) -> None:
        """Keep what `examine` says, or its problem."""
        try:
            self.facts[topic] = examine()
        except McpmixError as error:
            self.problems.append(error)

    @property
    def exit_code(self) -> int:
        """That of the first kind of problem to solve, 0 without any.

        Configuration comes before data, data before models, models before the disk: later ones may vanish
        when earlier ones are solved.
        """
        return min((problem.exit_code for problem in self.problems), default=0)


def check(config: Config, progress: Progress = SILENT) -> CheckResult:
    """Examine data, split, arms, networks, weights, device, memory and disk. Writes nothing."""
    result = CheckResult()
    result.look("data", lambda: _data(config, progress, result))
    for topic, examine in _settings(config):
        result.look(topic, examine)
    with suppress(McpmixError):  # of a missing network, which is a problem already
        result.facts |= dict(_memory(config))
    result.look("pairs", lambda: inspect_bank(config.folder / "pairs"))
    images = Counter(result.audit.part_of.values()) if result.audit else None
    result.look("disk", lambda: _disk(config, images))
    return result


def require_settings(config: Config) -> None:
    """Examine all that needs no image: arms, networks, weights and device.

    Raises:
        McpmixError: of the kind of the first problem to solve, with every problem in its message.
    """
    result = CheckResult()
    for topic, examine in _settings(config):
        result.look(topic, examine)
    if result.problems:
        first = min(result.problems, key=lambda problem: problem.exit_code)
        raise type(first)("\n".join(map(str, result.problems)))


def _settings(config: Config) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is examined for the configured arms, by topic."""
    arms, runtime = config.train.arms, config.runtime
    yield "trainings", lambda: _trainings(config)
    yield "segmenter", lambda: _segmenter(config)
    if _makes_pairs(config):
        base, tuning = config.generator.base, config.finetune
        start, optimiser = tuning.start_weights, tuning.optimiser
        yield "depth", partial(_folder, "depth.model", config.depth.model, "depth", ("config.json",))
        yield "generator", partial(_folder, "generator.base", base, "pipeline", _PIPELINE)
        if config.adapt.steps:
            yield "adapt", lambda: _adapt(config)
        if start is not None:
            yield "control", lambda: _control(config)
        yield "optimiser", lambda: _optimiser(optimiser)
    editor = config.editor.model
    if editor is not None and any(takes_edits(config, arm) for arm in arms):
        yield "editor", partial(_folder, "editor.model", editor, "pipeline", _PIPELINE)
    if "mcpmix-rla" in arms:
        yield "features", lambda: _features(config.rla.features)
    options = (runtime.device, runtime.precision, runtime.threads, runtime.deterministic)
    yield "device", lambda: setup(*options).reason


def _makes_pairs(config: Config) -> bool:
    return any(needs_generator(config, arm) for arm in config.train.arms)


# --- data --------------------------------------------------------------------------------------------------


def _data(config: Config, progress: Progress, result: CheckResult) -> str:
    """Examine files and split; `result` gets the audit even if it is the reason for an error."""
    data = config.data
    if data.source == "phantom":
        phantom.render(seed_for("check"), 0, 0, data.size)  # refuses a size that it cannot draw
        plan = data.phantom
        return (
            f"phantom; {plan.train_patients} patients for train, {plan.validation_patients} for validation, "
            f"{plan.test_patients} for test; {plan.known_frames_per_patient} more frames of each training "
            "patient for known"
        )
    places = data.model_dump(include={"root", "images", "masks", "groups"})
    try:
        collection = load_collection(data.source, **places, progress=progress)
    except DataError as error:
        if data.split.file is not None and not data.split.file.is_file():
            raise DataError(f"{error}\nThe split file {data.split.file} does not exist.") from error
        raise
    facts = inspect_all(collection.samples, progress, embedded_phi())
    result.audit = Audit(facts, {})
    _refuse_errors(result.audit)
    area_of = {item.sample.id: item.area for item in facts}
    split = make_split(collection, data.split, config.seed, lambda sample: area_of[sample.id])
    if data.labelled is not None:
        split = keep_labels(split, collection.samples, data.labelled, config.seed)
    require_lesions(area_of[name] > 0 for name in split.validation)
    part_of = {name: part for part, ids in split.parts().items() for name in ids}
    result.audit = Audit(facts, part_of)
    _refuse_errors(result.audit)
    parts = ", ".join(f"{len(ids)} for {part}" for part, ids in split.parts().items())
    groups = len({sample.group for sample in collection.samples if sample.id in part_of})
    warning = f"; this split leaks: {split.leaks}" if split.leaks else ""
    more = _unlabelled(config, facts, part_of, progress) if data.has_unlabelled else ""
    return f"{len(part_of)} images of {groups} groups; {parts}{warning}{more}"


def _unlabelled(
    config: Config, facts: Sequence[Facts], part_of: Mapping[str, str], progress: Progress
) -> str:
    """Examine the images without masks as their stage does."""
    images = {item.sample.id: SeenImage(item.sample.id, item.digest, item.look) for item in facts}
    labelled = {images[name].sha256: name for name, part in part_of.items() if part == "train"}
    held = [(part, images[name]) for name, part in part_of.items() if part != "train"]
    found = [
        *unlabelled.find(config, progress),
        *unlabelled.rest_of_training(config, set(labelled.values()), progress),
    ]
    kept, _, notes = unlabelled.examine(found, held, labelled, lambda _: None, progress)
    places = Counter(item.place for item in kept)
    counts = ", ".join(f"{count} in {place}" for place, count in places.items())
    return "; ".join([f"; {len(kept)} without masks ({counts})", *notes])


def embedded_phi() -> Phi | None:
    """The embedded feature network, for copies that the pixels do not give away; None if it is not here."""
    try:
        network = load_features(EMBEDDED)
    except ModelError:
        return None

    def features(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(network(as_images(pixels)), dtype=np.float32)

    return features


def _refuse_errors(audit: Audit) -> None:
    errors = [finding for finding in audit.findings if finding.severity == Severity.ERROR]
    if errors:
        lists = (bullet_list(f"{item.title.capitalize()}: {item.remedy}:", item.items) for item in errors)
        raise DataError("\n".join(lists))


# --- settings ----------------------------------------------------------------------------------------------


def _trainings(config: Config) -> str:
    arms, seeds = config.train.arms, config.train.seeds
    problems = check_arms(arms, config.train.strategies)
    if not config.data.has_unlabelled:
        problems += [
            f"train.arms: {arm} trains on unlabelled images; name some in data.unlabelled"
            for arm in filter(needs_unlabelled, arms)
        ]
    for name, values in (("arms", arms), ("seeds", seeds)):
        if not values:
            problems.append(f"train.{name}: empty; name at least one")
        if len(set(values)) < len(values):
            problems.append(f"train.{name}: {list(values)} names one twice; each gets one folder")
    if problems:
        raise ConfigError(bullet_list("The trainings cannot be run:", problems))
    return f"{len(arms) * len(seeds)} ({', '.join(arms)}; seeds {', '.join(map(str, seeds))})"


def _segmenter(config: Config) -> str:
    settings = config.segmenter
    # First without weights: a wrong name matters more.
    network = build_segmenter(settings.name, settings.variant, options=settings.options)
    text = f"{settings.name} {settings.variant}, {parameter_count(network) / 1e6:.1f} million parameters"
    if settings.weights is None:
        return f"{text}, from scratch"
    with _named("segmenter.weights"):
        build_segmenter(settings.name, settings.variant, settings.weights, settings.options)
    return f"{text}, from {settings.weights}; licence: {licence_of(settings.weights)}"


def _folder(setting: str, source: str, part: str, contents: tuple[str, ...]) -> str:
    with _named(setting):
        folder = resolve(source, part)
    if missing := [name for name in contents if not (folder / name).exists()]:
        raise ModelError(
            f"{setting}: {folder} is not a complete {part}: {', '.join(missing)} missing. Fetch it again, or "
            "give another source."
        )
    return f"{source}; licence: {licence_of(source)}"


def _adapt(config: Config) -> str:
    """The autoencoder and the way in which the base will learn."""
    settings, text = config.adapt, f"{config.adapt.steps} steps"
    if settings.autoencoder is not None:
        with _named("adapt.autoencoder"):
            vae = load_autoencoder(resolve(settings.autoencoder, "pipeline"))
            if settings.unet is None:
                wanted = build_meta(pipeline_configs(config.generator.base)).unet.config.in_channels
                require_channels(vae, wanted, settings.autoencoder)
        text += f"; autoencoder: {settings.autoencoder}; licence: {licence_of(settings.autoencoder)}"
    if settings.unet is not None:
        text += f"; a {settings.unet} denoiser from scratch"
    return text


def _control(config: Config) -> str:
    source, base = str(config.finetune.start), config.generator.base
    if config.adapt.steps and config.adapt.unet is not None:
        raise ConfigError(
            f"finetune.start: {source} is made for the denoiser of generator.base, and adapt.unet makes "
            "another one. Set finetune.start to null or pseudo."
        )
    with _named("finetune.start"):
        folder = resolve(source, "control")
        try:
            path = resolve(base, "pipeline") / "unet" / "config.json"
            unet = json.loads(path.read_text(encoding="utf-8"))
        except (ModelError, OSError, ValueError):
            return f"{source}; whether it fits is not known without its base"  # a problem of its own
        require_fit(folder, unet)
    return f"{source}; licence: {licence_of(source)}"


def _optimiser(name: str) -> str:
    require_optimiser(name)
    return f"{name} (finetune)"


def _features(source: str) -> str:
    with _named("rla.features"):
        load_features(source)
    return f"{source}; licence: {licence_of(source)}"


@contextmanager
def _named(setting: str) -> Iterator[None]:
    """Put the name of the setting before the message of a `ModelError`."""
    try:
        yield
    except ModelError as error:
        text = str(error).removeprefix(f"{setting}: ").removeprefix("features: ")
        raise ModelError(f"{setting}: {text}") from error


# --- memory ------------------------------------------------------------------------------------------------


def _memory(config: Config) -> Iterator[tuple[str, str]]:
    """What each stage needs at its peak, by its name. Needs no weights and no memory to speak of.

    Raises:
        McpmixError: there is no such segmenter, or the generator is neither known nor on this machine.
    """
    size, finetune, synthesis, train = config.data.size, config.finetune, config.synthesis, config.train
    wanted = config.segmenter
    segmenter = build_segmenter(wanted.name, wanted.variant, options=wanted.options)
    pipeline = build_meta(pipeline_configs(config.generator.base)) if _makes_pairs(config) else None
    precision: torch.dtype = getattr(torch, config.runtime.precision, torch.float32)
    if config.runtime.precision == "auto":
        on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        large = pipeline is not None and parameter_count(pipeline.unet) > _LARGE  # it will be on a GPU
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
            unlock_decoder=finetune.unlock_decoder,
        )
        how = f"{used and f' with {used}'}, batch {finetune.batch_size}, {numbers}"
        yield "finetune", _sentence(plan, f"{size} px{how}")
        batch, passes = synthesis.batch_size, 1 + (synthesis.guidance > 1) + (synthesis.mask_guidance > 1)
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


def _disk(config: Config, images: Mapping[str, int] | None) -> str:
    absolute = config.folder.absolute()
    place = next(path for path in (absolute, *absolute.parents) if path.exists())
    if not place.is_dir():
        raise StorageError(f"Cannot make {config.folder}: {place} is a file. Choose another output folder.")
    if not os.access(place, os.W_OK):
        raise StorageError(
            f"Cannot write to {place}, where {config.folder} is to be made. Change its permissions, or "
            "choose another output folder."
        )
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
    plan = config.data.phantom
    drawn = {
        "train": plan.train_patients * plan.frames_per_patient,
        "validation": plan.validation_patients * plan.frames_per_patient,
        "test": plan.test_patients * plan.test_frames_per_patient,
        "known": plan.train_patients * plan.known_frames_per_patient,
    }
    train, held, *tested = ((images or drawn)[part] for part in ALL_PARTS)
    test = sum(tested)
    runs = len(config.train.arms) * len(config.train.seeds)
    workers = worker_count(config.runtime.jobs, torch.device("cpu"), max(runs, 1))
    segmenter = control = 0.0
    with suppress(McpmixError):  # a network that is not there is a problem of its own
        wanted = config.segmenter
        network = build_segmenter(wanted.name, wanted.variant, options=wanted.options)
        segmenter = _FLOAT * parameter_count(network)
    # A new checkpoint is complete before it replaces the last one: twice the size.
    total: float = runs * segmenter + workers * 2 * _ADAM_STATE * segmenter
    total += runs * test * pixels / 8
    total += (train + held) * pixels * _CACHED_BYTES
    if config.data.source == "phantom":
        total += (train + held + test) * pixels * _PNG_BYTES
    if _makes_pairs(config):
        with suppress(McpmixError):
            control = _FLOAT * parameter_count(build_meta(pipeline_configs(config.generator.base)).control)
        total += 2 * _ADAM_STATE * control + train * pixels * _DEPTH_BYTES
        if config.synthesis.source == "bank":
            total += train * config.synthesis.replicas * pixels * _PNG_BYTES
    return total
