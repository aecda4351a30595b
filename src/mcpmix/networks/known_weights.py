"""Weights that a configuration may name: which there are, under which terms, and which are on this machine.

Layer 4, beside the pipeline.
"""

from dataclasses import dataclass

from mcpmix.core.errors import ModelError
from mcpmix.networks.weight_files import (
    EMBEDDED,
    KNOWN,
    digest_of_weights,
    embedded_folder,
    is_present,
    licence_of,
    resolve,
    resolve_file,
    split_pin,
)

EMBEDDED_PARTS = ("pipeline", "control", "depth", "features", "segmenter")


@dataclass(frozen=True)
class Weights:
    """Weights that a configuration may name.

    Attributes:
        name: what to write into the configuration.
        size: for people.
        present: whether they are on this machine.
        licence: under which terms they come.
    """

    name: str
    size: str
    present: bool
    licence: str


def list_weights() -> list[Weights]:
    """The embedded parts and all published weights that the program knows."""
    embedded = [_embedded(part) for part in EMBEDDED_PARTS]
    published = [
        Weights(name, known.size, _present(name), known.licence)
        for name, known in KNOWN.items()
        if name != EMBEDDED
    ]
    return embedded + published


def pinned(source: str) -> str:
    """A source with its digest behind it, `source@sha256:<digest>`; a pin that it has already is checked.

    Args:
        source: a model folder, a weight file or a hub id on this machine.

    Raises:
        ModelError: it is not here, or has another digest than its pin.
    """
    name, _ = split_pin(source)
    path = resolve_file(source) or resolve(source, "pipeline")
    return f"{name}@sha256:{digest_of_weights(path)}"


def _embedded(part: str) -> Weights:
    name = f"{EMBEDDED} ({part})"
    try:
        folder = embedded_folder(part)
    except ModelError:
        return Weights(name, KNOWN[EMBEDDED].size, False, licence_of(EMBEDDED))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Weights(name, f"{size / 1e6:.1f} MB", True, licence_of(EMBEDDED))


def _present(source: str) -> bool:
    if source != "resnet50":
        return is_present(source, "")
    from mcpmix.networks.features import resnet_file  # its library is heavy

    return resnet_file().is_file()
