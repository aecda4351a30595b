"""Looks whether a bank on disk is what its ledger says. Writes nothing."""

import json
from pathlib import Path

from mcpmix.core.artifacts import Artifact, read_artifact
from mcpmix.core.errors import StorageError, bullet_list
from mcpmix.synthesis.bank import damaged
from mcpmix.synthesis.ledger import LEDGER, Row, parse, read_verified, verify

_MOST_NAMED = 10  # damaged files in a message


def inspect_bank(folder: Path) -> str:
    """What there is, in a few words.

    Args:
        folder: of the pairs; it or its unfinished `.partial` may exist, both or none.

    Raises:
        StorageError: a ledger row was changed, or images are damaged or missing.
    """
    artifact = read_artifact(folder)
    if artifact is not None:
        return _finished(artifact)
    partial = folder.with_name(folder.name + ".partial")
    if not (partial / LEDGER).exists():
        return "none yet"
    rows = _unfinished_rows(partial)
    _refuse_damage(partial, rows)
    return f"unfinished, {len(rows)} images tried so far; the ledger is whole"


def _finished(artifact: Artifact) -> str:
    head = artifact.manifest["counts"].get("ledger")
    if head is None:
        return "made by an earlier version, without seals; they will be made again"
    rows = read_verified(artifact.folder, artifact.digest, str(head))
    _refuse_damage(artifact.folder, rows)
    admitted = sum(bool(row["admitted"]) for row in rows)
    return f"{admitted} admitted of {len(rows)} images tried; ledger and images are whole"


def _unfinished_rows(folder: Path) -> list[Row]:
    """Finished rows, verified; a line that a kill cut short is left out."""
    path = folder / LEDGER
    text = path.read_bytes()
    rows = parse(path, text[: text.rfind(b"\n") + 1])
    try:
        root = str(json.loads((folder / "key.json").read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # without its key the folder is foreign: the next run starts anew
    verify(path, rows, root)
    return rows


def _refuse_damage(folder: Path, rows: list[Row]) -> None:
    bad = damaged(folder, rows)
    if not bad:
        return
    named = [str(row["file"]) for row in bad[:_MOST_NAMED]]
    if len(bad) > _MOST_NAMED:
        named.append(f"and {len(bad) - _MOST_NAMED} more")
    headline = (
        f"Images in {folder} are damaged or missing. `mcpmix synthesize` or any later stage makes them "
        "again, to the same bits:"
    )
    raise StorageError(bullet_list(headline, named))
