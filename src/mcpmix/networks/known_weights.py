"""Weights that a configuration may name: size, licence, and whether they are on this machine."""

from mcpmix.networks.weight_files import (
    EMBEDDED,
    KNOWN,
    digest_of_weights,
    embedded_folder,
    is_present,
    resolve,
    resolve_file,
    split_pin,
)


def list_weights() -> list[tuple[str, str, bool, str]]:
    """Name, size, whether on this machine, and licence: embedded parts first, then published weights."""
    from mcpmix.networks.features import resnet_file  # its library is heavy

    rows = []
    for part in ("pipeline", "control", "depth", "features", "segmenter"):
        size, here = KNOWN[EMBEDDED].size, is_present(EMBEDDED, part)
        if here:
            files = (path for path in embedded_folder(part).rglob("*") if path.is_file())
            size = f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
        rows.append((f"{EMBEDDED} ({part})", size, here, KNOWN[EMBEDDED].licence))
    for name, known in KNOWN.items():
        if name != EMBEDDED:
            here = resnet_file().is_file() if name == "resnet50" else is_present(name, "")
            rows.append((name, known.size, here, known.licence))
    return rows


def pinned(source: str) -> str:
    """A source with its digest behind it, `source@sha256:<digest>`; a pin that it has already is checked.

    Args:
        source: a model folder, a weight file or a hub id on this machine.

    Raises:
        ModelError: it is not here, or has another digest than its pin.
    """
    path = resolve_file(source) or resolve(source, "pipeline")
    return f"{split_pin(source)[0]}@sha256:{digest_of_weights(path)}"
