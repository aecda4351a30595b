"""`mcpmix check`: every problem of a configuration before anything runs, and what a run will need.

A check is a function that returns a sentence about what it found, or raises an error whose message names the
setting and the remedy. `check` runs all of them, `run` those of `require_settings`.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mcpmix.config import PSEUDO, Config
from mcpmix.config_file import are_kept
from mcpmix.core.device import setup
from mcpmix.core.errors import (
    ConfigError,
    DataError,
    McpmixError,
    ModelError,
    StorageError,
    bullet_list,
    sorted_list,
)
from mcpmix.core.pixels import as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.core.stage_folder import read_artifact
from mcpmix.core.training import require_optimiser
from mcpmix.data import unlabelled
from mcpmix.data.audit import Audit, Facts, Phi, Severity, inspect_all
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.data.groups import in_order
from mcpmix.data.layouts import Collection
from mcpmix.data.leakage import SeenImage
from mcpmix.data.sample import likely_mistake
from mcpmix.data.splits import keep_labels, require_classes, require_lesions
from mcpmix.data.tables import unknown_ids
from mcpmix.estimates import disk, makes_pairs, memory, part_sizes
from mcpmix.generator.ledger import inspect_bank
from mcpmix.networks.diffusion import image_multiple, load_autoencoder, require_channels, require_peft
from mcpmix.networks.features import load_features
from mcpmix.networks.generator import LORA_FILE, LORA_NEEDS, require_fit
from mcpmix.networks.memory import build_meta, parameter_count, pipeline_configs
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.weight_files import EMBEDDED, licence_of, resolve
from mcpmix.segmenter import arms as kinds
from mcpmix.segmenter.track import require_trackers
from mcpmix.timing import seconds_left, time_text

_PIPELINE = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
_FEW_TESTED = 3  # images or groups, below which a test says little


@dataclass
class CheckResult:
    """What was found.

    Attributes:
        problems: all that would stop a run, each with its remedy.
        warnings: what a user must know although it stops nothing; those about images are in the audit.
        facts: what is in order, by topic.
        audit: what the files are; None for a phantom, or if they were not found.
    """

    problems: list[McpmixError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    audit: Audit | None = None

    def look(self, topic: str, examine: Callable[[], str]) -> None:
        """Keep what `examine` says, or its problem."""
        try:
            self.facts[topic] = examine()
        except McpmixError as error:
            self.problems.append(error)

    @property
    def warned(self) -> int:
        """How many warnings there are, those about images included."""
        return len(self.warnings) + (self.audit.warned if self.audit is not None else 0)

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
        result.facts |= dict(memory(config))
    result.look("pairs", lambda: inspect_bank(config.folder / "pairs"))
    images = Counter(result.audit.part_of.values()) if result.audit else None
    if not result.problems:
        runtime = setup(*_runtime_options(config))
        same = are_kept(config)
        left = seconds_left(config, part_sizes(config, images), runtime, reuses=same)
        text = time_text(left) if left else "seconds"
        if not same and read_artifact(config.folder / "dataset") is not None:
            text += f"; less if stages in {config.folder}, made with other settings, can be reused"
        result.facts["time"] = text
    result.look("disk", lambda: disk(config, images))
    return result


def require_settings(config: Config) -> None:
    """Examine all that needs no image: arms, networks, weights and device.

    Those of a finished run were examined before it began, and are not again when it is only shown.

    Raises:
        McpmixError: of the kind of the first problem to solve, with every problem in its message.
    """
    if are_kept(config) and read_artifact(config.folder / "report") is not None:
        return
    result = CheckResult()
    for topic, examine in _settings(config):
        result.look(topic, examine)
    if result.problems:
        first = min(result.problems, key=lambda problem: problem.exit_code)
        raise type(first)("\n".join(map(str, result.problems)))


def _settings(config: Config) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is examined for the configured arms, by topic."""
    arms = config.train.arms
    yield "output", lambda: _output(config)
    yield "trainings", lambda: _trainings(config)
    if config.data.classes:
        yield "classes", lambda: _classes(config)
    yield "segmenter", lambda: _segmenter(config)
    generated = makes_pairs(config)
    if generated:
        yield "depth", partial(_folder, "depth.model", config.depth.model, "depth", ("config.json",))
    if any(kinds.needs_base(config, arm) for arm in arms):
        base, optimiser = config.generator.base, config.finetune.optimiser
        yield "generator", partial(_folder, "generator.base", base, "pipeline", _PIPELINE)
        yield "size", lambda: _size(config)
        if config.adapt.steps:
            yield "adapt", lambda: _adapt(config)
        if generated and config.finetune.start_weights is not None:
            yield "control", lambda: _control(config)
        yield "optimiser", lambda: _optimiser(optimiser)
        if generated and (lora := config.few_steps.lora) is not None:
            yield "few steps", lambda: _lora(lora)
    editor = config.editor.model
    if editor is not None and any(kinds.takes_edits(config, arm) for arm in arms):
        yield "editor", partial(_folder, "editor.model", editor, "pipeline", _PIPELINE)
    if "mcpmix-rla" in arms:
        yield "features", lambda: _features(config.rla.features)
    yield "track", lambda: _trackers(config)
    yield "device", lambda: setup(*_runtime_options(config)).reason


def _runtime_options(config: Config) -> tuple[str, str, int, bool]:
    runtime = config.runtime
    return runtime.device, runtime.precision, runtime.threads, runtime.deterministic


# --- data --------------------------------------------------------------------------------------------------


def _data(config: Config, progress: Progress, result: CheckResult) -> str:
    """Examine files and split; `result` gets the audit even if it is the reason for an error."""
    data = config.data
    if data.source == "phantom":
        from mcpmix import phantom

        phantom.render(seed_for("check"), 0, 0, data.size)  # refuses a size that it cannot draw
        plan = data.phantom
        return (
            f"phantom; {plan.train_patients} patients for train, {plan.validation_patients} for validation, "
            f"{plan.test_patients} for test; {plan.known_frames_per_patient} more frames of each training "
            "patient for known"
        )
    places = data.model_dump(include={"root", "images", "masks", "groups"})
    try:
        collection = load_collection(data.source, **places, classes=data.classes, progress=progress)
    except DataError as error:
        if data.split.file is not None and not data.split.file.is_file():
            raise DataError(f"{error}\nThe split file {data.split.file} does not exist.") from error
        raise
    facts = inspect_all(collection.samples, progress, embedded_phi())
    result.audit = Audit(facts, {})
    result.warnings += _about_groups(config, collection, facts)
    _refuse_errors(result.audit)
    area_of = {item.sample.id: item.area for item in facts}
    split = make_split(collection, data.split, config.seed, lambda sample: area_of[sample.id])
    if data.labelled is not None:
        split = keep_labels(split, collection.samples, data.labelled, config.seed)
    require_lesions(area_of[name] > 0 for name in split.validation)
    shares_of = {item.sample.id: item.shares for item in facts}
    in_training = Counter(
        label for name in split.train for label, share in enumerate(shares_of[name], 1) if share > 0
    )
    require_classes(data.classes, in_training)
    part_of = {name: part for part, ids in split.parts().items() for name in ids}
    result.audit = Audit(facts, part_of)
    _refuse_errors(result.audit)
    parts = ", ".join(f"{len(ids)} for {part}" for part, ids in split.parts().items())
    group_of = {sample.id: sample.group for sample in collection.samples if sample.id in part_of}
    groups = f"{len(set(group_of.values()))} {'guessed ' if collection.guessed else ''}groups"
    learnt = len({group_of[name] for name in split.train})
    if makes_pairs(config) and config.synthesis.admission.enabled and learnt < 2:
        raise DataError(
            f"The training part has {learnt} group, and the judge of synthetic images needs two. Add images "
            "of other groups, lower data.split.test, or set synthesis.admission.enabled=false."
        )
    tested = {"images": len(split.test), "groups": len({group_of[name] for name in split.test})}
    result.warnings += [
        f"the test part has {count} {what if count > 1 else what[:-1]}: test figures will be mostly chance. "
        "Raise data.split.test, or use data.split.method=kfold"
        for what, count in tested.items()
        if count <= _FEW_TESTED
    ][:1]
    warning = f"; this split leaks: {split.leaks}" if split.leaks else ""
    more = "".join(
        f"; {name} in {in_training[label]} for train" for label, name in enumerate(data.classes, 1)
    )
    more += _unlabelled(config, facts, part_of, progress) if data.has_unlabelled else ""
    return f"{len(part_of)} images of {groups}; {parts}{warning}{more}"


def _about_groups(config: Config, collection: Collection, facts: Sequence[Facts]) -> Iterator[str]:
    """What a user must know about the groups before a split by them is trusted."""
    if collection.guessed:
        yield (
            "groups were guessed from pictures, not recorded: if a video or patient is in two of them, test "
            "figures are too good. Look at the contact sheets of `mcpmix data groups`, then delete the "
            f"column `guessed` of {config.data.groups or 'the table'}"
        )
    if not collection.grouped:
        order, _, found = in_order(facts)
        if found.ordered:
            yield (
                f"{found.close:.0%} of images that are neighbours by {order} look alike (5% by chance), so "
                "these are frames of videos; but each image is its own group, and frames of one video come "
                "into training and test. Give data.groups; `mcpmix data groups CONFIG groups.csv` proposes "
                "some"
            )
    if config.data.source == "folder" and (table := config.data.groups) is not None:
        odd = unknown_ids(table, [sample.image for sample in collection.samples])
        yield from [odd] if odd else []


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
        network = load_features(EMBEDDED).to(memory_format=torch.channels_last)  # a fifth faster
    except ModelError:
        return None

    def features(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(network(as_images(pixels)), dtype=np.float32)

    return features


def _refuse_errors(audit: Audit) -> None:
    errors = [finding for finding in audit.findings if finding.severity == Severity.ERROR]
    if errors:
        guess = likely_mistake([(item.sample.image, item.sample.mask) for item in audit.facts])
        lists = (sorted_list(f"{item.title.capitalize()}: {item.remedy}:", item.items) for item in errors)
        raise DataError(guess + "\n".join(lists))


# --- settings ----------------------------------------------------------------------------------------------


def _trainings(config: Config) -> str:
    arms, seeds = config.train.arms, config.train.seeds
    problems = kinds.check_arms(arms, config.train.strategies)
    if not config.data.has_unlabelled:
        problems += [
            f"train.arms: {arm} trains on unlabelled images; name some in data.unlabelled"
            for arm in filter(kinds.needs_unlabelled, arms)
        ]
    for name, values in (("arms", arms), ("seeds", seeds)):
        if not values:
            problems.append(f"train.{name}: empty; name at least one")
        if len(set(values)) < len(values):
            problems.append(f"train.{name}: {list(values)} names one twice; each gets one folder")
    if problems:
        raise ConfigError(bullet_list("The trainings cannot be run:", problems))
    return f"{len(arms) * len(seeds)} ({', '.join(arms)}; seeds {', '.join(map(str, seeds))})"


def _classes(config: Config) -> str:
    """Whether all that is asked for can tell several classes apart."""
    names, arms = config.data.classes, config.train.arms
    problems = [
        f"train.arms: {arm} trains on masks that are lesion or background; leave it out"
        for arm in arms
        if kinds.needs_pseudo(arm) or kinds.needs_set(arm)
    ]
    if config.finetune.start == PSEUDO:
        problems.append("finetune.start: pseudo-masks are lesion or background; set finetune.start=null")
    if config.evaluation.threshold != (even := type(config.evaluation)().threshold):
        problems.append(f"evaluation.threshold: the likeliest class is taken; leave it at {even}")
    if problems:
        raise ConfigError(
            bullet_list(f"With several classes ({', '.join(names)}) this does not work:", problems)
        )
    return ", ".join(f"{label} {name}" for label, name in enumerate(("background", *names)))


def _output(config: Config) -> str:
    """Where the run will be."""
    absolute = config.folder.absolute()
    place = next(path for path in (absolute, *absolute.parents) if path.exists())
    if not place.is_dir():
        raise StorageError(f"Cannot make {config.folder}: {place} is a file. Choose another output folder.")
    if not os.access(place, os.W_OK):
        raise StorageError(
            f"Cannot write to {place}, where {config.folder} is to be made. Change its permissions, or "
            "choose another output folder."
        )
    return str(config.folder)


def _size(config: Config) -> str:
    """Whether the generator can draw images of this size."""
    try:
        pipeline = build_meta(pipeline_configs(config.generator.base))
    except McpmixError:  # a problem of its own
        return f"{config.data.size} px"
    multiple = image_multiple(pipeline.vae, pipeline.unet)
    if config.data.size % multiple:
        nearest = max(multiple, round(config.data.size / multiple) * multiple)
        raise ConfigError(
            f"data.size: {config.data.size} is not a multiple of {multiple}, which generator.base needs. Set "
            f"data.size={nearest}."
        )
    return f"{config.data.size} px"


def _segmenter(config: Config) -> str:
    settings = config.segmenter
    # First without weights: a wrong name matters more.
    network = build_segmenter(
        settings.name, settings.variant, options=settings.options, channels=config.data.channels
    )
    text = f"{settings.name} {settings.variant}, {parameter_count(network) / 1e6:.1f} million parameters"
    if settings.weights is None:
        return f"{text}, from scratch"
    with _named("segmenter.weights"):
        build_segmenter(
            settings.name, settings.variant, settings.weights, settings.options, config.data.channels
        )
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


def _lora(source: str) -> str:
    require_peft(*LORA_NEEDS)
    return _folder("few_steps.lora", source, "lora", (LORA_FILE,))


def _optimiser(name: str) -> str:
    require_optimiser(name)
    return f"{name} (finetune)"


def _trackers(config: Config) -> str:
    chosen = config.track.chosen
    require_trackers(chosen)
    return f"logs also for {', '.join(chosen)}" if chosen else "JSON lines only"


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
