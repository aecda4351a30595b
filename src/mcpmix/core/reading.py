"""Reads files that may be anything: a pipe that never answers, a text without end, JSON nested too deeply.

What cannot be read is an OSError or a ValueError, whatever it is, so that callers need not know more.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

_LARGEST_TEXT = 2**30  # bytes; tables of a million images are a tenth of it
_STRAYS = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})


def is_stray(path: Path) -> bool:
    """Whether a relative path names what desktops leave behind in any folder: hidden files, Thumbs.db."""
    return any(part.startswith(".") or part.lower() in _STRAYS for part in path.parts)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a regular file; pipes and devices, which may block for ever, are an OSError."""
    # Without waiting: opening a pipe that nobody writes to would not return.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"{path} is not a regular file")
        if state.st_size > _LARGEST_TEXT:
            raise OSError(f"{path} has {state.st_size} bytes, more than any such file needs")
        return file.read().decode(encoding)


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """The value of a JSON text; a text that is nested too deeply is a ValueError as others are."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:  # noqa: ANN401
    """The value in a JSON file; OSError or ValueError if it cannot be read."""
    return parse_json(read_text(path))


def expanded(name: str) -> Path:
    """A path with ~ replaced by the user's folder; that of an unknown user stays a name."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises for unknown users


def has_file(path: Path) -> bool:
    """Whether a path from a table or a setting names a file; False for texts that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False
