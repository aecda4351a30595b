"""The strategies by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.rla import RLA
from mcpmix.mixing.strategies.append import Append
from mcpmix.mixing.strategies.augmix import AugMix
from mcpmix.mixing.strategies.cutmix import CutMix
from mcpmix.mixing.strategies.diffusemix import DiffuseMix
from mcpmix.mixing.strategies.gridmix import GridMix
from mcpmix.mixing.strategies.hsmix import HSMix
from mcpmix.mixing.strategies.mixup import Mixup
from mcpmix.mixing.strategies.none import FullSup
from mcpmix.mixing.strategies.paired_uniform import PairedUniform
from mcpmix.mixing.strategies.pixmix import PixMix
from mcpmix.mixing.strategies.puzzlemix import PuzzleMix
from mcpmix.mixing.strategies.rla import RLAMix
from mcpmix.mixing.strategies.scheduled import CosineMix, StepwiseMix
from mcpmix.mixing.strategies.smoothmix import SmoothMix
from mcpmix.mixing.strategy import Strategy

__all__ = [
    "STRATEGIES",
    "Append",
    "AugMix",
    "CosineMix",
    "CutMix",
    "DiffuseMix",
    "FullSup",
    "GridMix",
    "HSMix",
    "Mixup",
    "PairedUniform",
    "PixMix",
    "PuzzleMix",
    "RLAMix",
    "SmoothMix",
    "StepwiseMix",
    "build_strategy",
    "strategy_needs_pairs",
]

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


def _builder(name: str) -> Callable[..., Strategy]:
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name.lower(), STRATEGIES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"There is no strategy {name!r}; expected one of {', '.join(STRATEGIES)}.{hint}")
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
