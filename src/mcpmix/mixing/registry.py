"""The strategies by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mcpmix.core.errors import ConfigError, did_you_mean
from mcpmix.mixing.appearance_mixes import AugMix, DiffuseMix, PixMix
from mcpmix.mixing.generative import Append, ControlPolypNet, GenSRRFI, SatSynth
from mcpmix.mixing.hsmix import HSMix
from mcpmix.mixing.mcpmix import CosineMix, StepwiseMix, UniformMix
from mcpmix.mixing.partner_mixes import CutMix, GridMix, Mixup, SmoothMix
from mcpmix.mixing.puzzlemix import PuzzleMix
from mcpmix.mixing.rla import RLA, RLAMix
from mcpmix.mixing.semi_supervised import MeanTeacher, PseudoLabel, PseudoLabelMix
from mcpmix.mixing.strategy import FullSup, Strategy, TrainingSource
from mcpmix.mixing.strong_augmentation import StrongAugmentation

STRATEGIES: dict[str, type[Strategy]] = {
    "full-sup": FullSup,
    "full-sup-strong": StrongAugmentation,
    "mcpmix": UniformMix,
    "mcpmix-rla": RLAMix,
    "mcpmix-stepwise": StepwiseMix,
    "mcpmix-cosine": CosineMix,
    "mixup": Mixup,
    "cutmix": CutMix,
    "gridmix": GridMix,
    "smoothmix": SmoothMix,
    "append": Append,
    "augmix": AugMix,
    "pixmix": PixMix,
    "puzzlemix": PuzzleMix,
    "hsmix": HSMix,
    "diffusemix": DiffuseMix,
    "pseudo-label": PseudoLabel,
    "pseudo-label-mcpmix": PseudoLabelMix,
    "mean-teacher": MeanTeacher,
    "controlpolypnet": ControlPolypNet,
    "gensrrfi": GenSRRFI,
    "satsynth": SatSynth,
}

_OF_RLA = (
    "mcpmix",
    "mcpmix-rla",
    "mcpmix-stepwise",
    "mcpmix-cosine",
    "pseudo-label-mcpmix",
)  # settings in the section rla

T = TypeVar("T")


def build_strategy(name: str, **settings: Any) -> Strategy:  # noqa: ANN401 (each strategy has its own)
    """The strategy of this name.

    Args:
        name: A key of `STRATEGIES`.
        **settings: Arguments of its class; for "mcpmix-rla" those of `RLA`, and `gate_lr` and `spread`.

    Raises:
        ConfigError: If the name or a setting is unknown, or a needed setting is missing.
    """
    kind = _class_of(name)
    if kind is RLAMix:
        own: dict[str, Any] = {key: settings.pop(key) for key in ("gate_lr", "spread") if key in settings}
        settings = {"rla": _call(RLA, name, settings), **own}
    return _call(kind, name, settings)


def strategy_needs_pairs(name: str) -> bool:
    """Whether the strategy of this name trains on synthetic counterparts.

    Raises:
        ConfigError: If the name is unknown.
    """
    return _class_of(name).needs_pairs


def strategy_needs_set(name: str) -> bool:
    """Whether the strategy of this name trains on synthetic images with masks of their own.

    Raises:
        ConfigError: If the name is unknown.
    """
    return _class_of(name).needs_set


def unlabelled_source(name: str) -> TrainingSource:
    """What the strategy of this name takes of unlabelled images.

    Raises:
        ConfigError: If the name is unknown.
    """
    return _class_of(name).source


def setting_problems(name: str, settings: Mapping[str, object]) -> list[str]:
    """What is wrong with the settings that a file has for a strategy; one text each, its name first.

    Values are as YAML has them: lists stand for tuples.
    """
    if name not in STRATEGIES:
        return [f"{name}: there is no such strategy; {did_you_mean(name, STRATEGIES)}"]
    if name in _OF_RLA:
        return [f"{name}: its settings are those of the section rla"]
    parameters = dict(inspect.signature(STRATEGIES[name]).parameters)
    parameters.pop("epochs", None)  # those of the training
    problems = [
        f"{name}.{key}: no such setting; {did_you_mean(key, parameters)}"
        for key in settings
        if key not in parameters
    ]
    for key in settings.keys() & parameters.keys():
        try:
            typed_settings(name, {key: settings[key]})
        except ValidationError as error:
            problems.append(f"{name}.{key}: {error.errors()[0]['msg']}, got {settings[key]!r}")
    if not problems:
        try:
            build_strategy(name, **typed_settings(name, settings))
        except ConfigError as error:
            problems.append(f"{name}: {error}")
    return problems


def typed_settings(name: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of a file in the types of the strategy's arguments: YAML reads 1e-1 as text."""
    parameters = inspect.signature(_class_of(name)).parameters
    return {
        key: TypeAdapter(parameters[key].annotation).validate_python(value) if key in parameters else value
        for key, value in settings.items()
    }


def _class_of(name: str) -> type[Strategy]:
    if name not in STRATEGIES:
        raise ConfigError(f"There is no strategy {name!r}; {did_you_mean(name, STRATEGIES)}")
    return STRATEGIES[name]


def _call(build: Callable[..., T], name: str, settings: Mapping[str, Any]) -> T:
    """Call with settings that came from a user: an unknown name is their mistake, not a TypeError."""
    signature = inspect.signature(build)
    try:
        signature.bind(**settings)
    except TypeError as problem:
        known = ", ".join(signature.parameters) or "none"
        raise ConfigError(f"Strategy {name!r}: {problem}. Its settings are: {known}.") from None
    return build(**settings)
