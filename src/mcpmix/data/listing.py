"""What a place on disk holds, by content: the identity of own data, whatever its files' times are."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcpmix.core.reading import is_stray, read_json
from mcpmix.core.stage_folder import digest_of, file_digest, write_json
from mcpmix.data.archives import MARK


def listing(place: Path, notes: Path | None = None) -> str:
    """A digest of the names and contents of all files of a place, a file or a folder.

    What desktops leave behind, such as .DS_Store, and what was unpacked from archives here does not count.

    Args:
        notes: file that remembers digests between two commands, so that only files whose size or times have
            changed are read again. It can be deleted at any time.
    """
    known: dict[str, Any] = {}
    if notes is not None:
        with suppress(OSError, ValueError):
            known = dict(read_json(notes))
    found: dict[str, list[Any]] = {}
    names = [""] if place.is_file() else sorted(_names(place))
    for name in names:
        path = place.absolute() / name
        state = path.stat()
        mark = [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        before = known.get(str(path))
        same = isinstance(before, list) and before[:-1] == mark
        found[name] = [*mark, before[-1] if same and before else file_digest(path)]
    fresh = {str(place.absolute() / name): row for name, row in found.items()}
    if notes is not None and any(known.get(name) != row for name, row in fresh.items()):
        with suppress(OSError):  # on read-only storage all is read again the next time
            notes.parent.mkdir(parents=True, exist_ok=True)
            write_json(notes, {**known, **fresh})
    return digest_of([[name, row[-1]] for name, row in found.items()])


def _names(place: Path) -> list[str]:
    paths = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if MARK not in path.as_posix() and not is_stray(path)]


def seen_from(home: Path, place: Path) -> str:
    """A place as seen from a folder: it stays the same when both are moved together."""
    try:
        return Path(os.path.relpath(place, home)).as_posix()
    except ValueError:  # on another drive
        return place.absolute().as_posix()
