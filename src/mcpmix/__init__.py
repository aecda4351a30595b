"""Mask-consistent paired mixing for lesion segmentation with few annotated images.

Public names are imported when they are first used, so that `import mcpmix` loads nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpmix import metrics
    from mcpmix.config_file import load_config
    from mcpmix.generator.pair_export import open_pairs
    from mcpmix.mixing.mcpmix import mix
    from mcpmix.mixing.mmd import mmd
    from mcpmix.mixing.rla import RLA
    from mcpmix.segmenter.predict import load_segmenter

__version__ = "0.1.0"

_HOME = {
    "RLA": "mcpmix.mixing.rla",
    "mix": "mcpmix.mixing.mcpmix",
    "mmd": "mcpmix.mixing.mmd",
    "load_config": "mcpmix.config_file",
    "load_segmenter": "mcpmix.segmenter.predict",
    "open_pairs": "mcpmix.generator.pair_export",
}

__all__ = ["RLA", "__version__", "load_config", "load_segmenter", "metrics", "mix", "mmd", "open_pairs"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name from its module when it is first used."""
    if name == "metrics":
        return import_module("mcpmix.metrics")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
