"""Reading folders that a process writes at the same time: what is missing or half there is not an error."""

import json
import os
import socket
import time
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mcpmix.core.errors import DataError, McpmixError
from mcpmix.core.progress import STATUS
from mcpmix.core.stage_folder import MANIFEST, digest_of

_QUIET_SECONDS = 900  # on another machine, whoever has written nothing for so long counts as stopped
RESUMES = "The same command resumes it."

K = TypeVar("K")
V = TypeVar("V")
Tree = dict[str, Any]


class AbsentError(McpmixError):
    """A request is about something that is not there."""

    def __init__(self, message: str = "There is no such thing here; it may have been renamed.") -> None:
        super().__init__(message)


def look_up(found: Mapping[K, V], key: K) -> V:
    """What a request asks for; an AbsentError if it is not there."""
    if key not in found:
        raise AbsentError
    return found[key]


def inside(folder: Path, name: str) -> Path:
    """A file below a folder; a DataError if its name, or a link, leads elsewhere."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DataError(
            f"{name!r} lies outside of {folder}. The files of this run were changed: make it anew."
        )
    return path


def stamp(path: Path) -> float:
    """When a file was changed last; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_object(path: Path) -> Tree:
    """A JSON object; empty if it is not there, or not readable at this moment."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_manifest(folder: Path) -> Tree:
    """The manifest of a finished stage without its list of files; empty if there is none."""
    path = folder / MANIFEST
    try:
        about = path.stat()
    except OSError:
        return {}
    return _manifest(path, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=4096)
def _manifest(path: Path, *_state: int) -> Tree:
    found = read_object(path)
    found.pop("files", None)  # that of a large bank takes megabytes
    return found


class Watched:
    """One look at a folder whose process keeps a status file; what it has read stays as it was.

    Args:
        name: its path below the folder of all runs.
        first: the file that is written first.
    """

    def __init__(self, folder: Path, name: str, first: str) -> None:
        self.folder, self.name, self._first = folder, name, first
        self.id = digest_of(name)[:12]

    @cached_property
    def status(self) -> Tree:
        """What the process said last about itself; empty if it has not said anything."""
        return read_object(self.folder / STATUS)

    @property
    def tasks(self) -> list[Tree]:
        """What it works on: title, total, first, done, since."""
        tasks = self.status.get("tasks", [])
        return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []

    @property
    def age(self) -> float:
        """Seconds since the last start."""
        return max(0.0, time.time() - float(self.status.get("started", stamp(self.folder / self._first))))

    @cached_property
    def said(self) -> tuple[str, str]:
        """State and message by its own account, and by whether its process lives; empty without one."""
        state = str(self.status.get("state", ""))
        if state == "running" and not self._lives:
            return "stopped", f"The process has ended without a word. {RESUMES}"
        if state == "stopped":
            return state, RESUMES
        return state, str(self.status.get("message", "")) if state == "failed" else ""

    @property
    def _lives(self) -> bool:
        """Whether the process that wrote the status still works."""
        if self.status.get("host") != socket.gethostname():
            return is_fresh(stamp(self.folder / STATUS))
        try:
            os.kill(int(self.status["pid"]), 0)
        except PermissionError:
            return True
        except (OSError, KeyError, ValueError, TypeError, OverflowError):
            return False
        return True

    def pace(self, task: Mapping[str, Any]) -> float | None:
        """Seconds of a step of a task so far; None while there is none."""
        steps = task["done"] - task["first"]
        return (float(self.status.get("now", time.time())) - task["since"]) / steps if steps > 0 else None


def is_fresh(written: float) -> bool:
    """Whether something was written so recently that somebody may be at work."""
    return time.time() - written < _QUIET_SECONDS
