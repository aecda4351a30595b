"""The strategies by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from mcpmix.core.errors import ConfigError, did_you_mean
from mcpmix.mixing.appearance_mixes import AugMix, PixMix
from mcpmix.mixing.diffusemix import DiffuseMix
from mcpmix.mixing.hsmix import HSMix
from mcpmix.mixing.mcpmix import CosineMix, PairedUniform, StepwiseMix
from mcpmix.mixing.partner_mixes import CutMix, GridMix, Mixup, SmoothMix
from mcpmix.mixing.puzzlemix import PuzzleMix
from mcpmix.mixing.rla import RLA
from mcpmix.mixing.rla_mix import RLAMix
from mcpmix.mixing.strategy import Append, FullSup, Strategy

T = TypeVar("T")


def _rla(  # the settings of RLA are its own
    *,
    gate_lr: float | Literal["auto"] = "auto",
    spread: float = 0.0,
    **settings: Any,  # noqa: ANN401
) -> RLAMix:
    return RLAMix(_configured(RLA, "mcpmix-rla", settings), gate_lr, spread)


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "full-sup": FullSup,
    "mcpmix": PairedUniform,
    "mcpmix-rla": _rla,
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
}
"""Names of the strategies, and what builds them. "mcpmix-rla" takes the settings of `RLA` and `gate_lr`."""


def build_strategy(name: str, **settings: Any) -> Strategy:  # noqa: ANN401 (each strategy has its own)
    """The strategy of this name with these settings.

    Args:
        name: A key of `STRATEGIES`.
        **settings: Arguments of the strategy; for "mcpmix-rla" those of `RLA`, and `gate_lr`.

    Raises:
        ConfigError: If the name or a setting is unknown, or a needed setting is missing.
    """
    return _configured(_builder(name), name, settings)


def strategy_needs_pairs(name: str) -> bool:
    """Whether the strategy of this name trains on synthetic counterparts.

    Args:
        name: A key of `STRATEGIES`.

    Raises:
        ConfigError: If the name is unknown.
    """
    build = _builder(name)
    made: Any = build if isinstance(build, type) else inspect.signature(build).return_annotation
    return bool(made.needs_pairs)


def setting_problems(name: str, settings: Mapping[str, object]) -> list[str]:
    """What is wrong with settings that a file gives for a strategy; one text each, with its name first.

    Args:
        name: Of the strategy.
        settings: Values as YAML has them: lists stand for tuples.
    """
    if name not in STRATEGIES:
        return [f"{name}: {_unknown(name)}"]
    if name.startswith("mcpmix"):
        return [f"{name}: its settings are those of the section rla"]
    parameters = {
        key: value for key, value in inspect.signature(STRATEGIES[name]).parameters.items() if key != "editor"
    }
    problems = [
        f"{name}.{key}: no such setting; {did_you_mean(key, parameters)}"
        for key in settings
        if key not in parameters
    ]
    for key in settings.keys() & parameters.keys():
        try:
            TypeAdapter(parameters[key].annotation).validate_python(settings[key])
        except ValidationError as error:
            problems.append(f"{name}.{key}: {error.errors()[0]['msg']}, got {settings[key]!r}")
    if not problems:
        try:
            build_strategy(name, **settings)
        except ConfigError as error:
            problems.append(f"{name}: {error}")
    return problems


def _unknown(name: str) -> str:
    return f"There is no strategy {name!r}; {did_you_mean(name, STRATEGIES)}"


def _builder(name: str) -> Callable[..., Strategy]:
    if name not in STRATEGIES:
        raise ConfigError(_unknown(name))
    return STRATEGIES[name]


def _configured(build: Callable[..., T], name: str, settings: Mapping[str, Any]) -> T:
    """Call `build` with settings that came from a user: an unknown name is their mistake."""
    signature = inspect.signature(build)
    try:
        signature.bind(**settings)
    except TypeError as problem:
        known = ", ".join(signature.parameters) or "none"
        raise ConfigError(f"Strategy {name!r}: {problem}. Its settings are: {known}.") from None
    return build(**settings)
