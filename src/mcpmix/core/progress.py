"""How work that takes long reports its progress. The library is silent; the command line passes a bar.

A run also keeps `status.json` in its folder, for those who watch. Nothing depends on the file. It says since
when the run works, in which process, on which tasks, and how it ended: finished, stopped (Ctrl+C) or failed,
with the message. A killed run cannot write; whoever reads the file looks whether the process still lives.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, Self

from mcpmix.core.files import make_folder, storage_errors, write_json

STATUS = "status.json"
_SECONDS_BETWEEN = 2.0  # two writings of progress


class Advance(Protocol):
    """Reports `steps` more steps done, with an optional short note such as the current loss."""

    def __call__(self, steps: int = 1, note: str = "") -> None: ...  # noqa: D102


class Progress(Protocol):
    """Where long work reports to."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Advance]:
        """Open a task of `total` steps of which `done` are finished already (a resumed run)."""
        ...

    def say(self, message: str) -> None:
        """A line that stays on the screen."""
        ...


class _Silent:
    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:  # noqa: ARG002
        def advance(steps: int = 1, note: str = "") -> None:
            del steps, note

        yield advance

    def say(self, message: str) -> None:
        del message


SILENT: Progress = _Silent()


# --- the status of a run -----------------------------------------------------------------------------------


class RecordedProgress:
    """Passes progress on, and keeps a status file up to date with the open tasks, from enter to exit."""

    def __init__(self, progress: Progress, path: Path, until: str) -> None:
        self._progress, self._path, self._lock = progress, path, Lock()
        self._tasks: dict[int, dict[str, Any]] = {}
        self._written = 0.0
        self._facts = {
            "until": until,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
        }

    def __enter__(self) -> Self:
        self.write("running")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self.write("finished")
        else:
            stopped = isinstance(error, KeyboardInterrupt)
            self.write("stopped" if stopped else "failed", str(error) or type(error).__name__)

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Open a task."""
        task: dict[str, Any] = {
            "title": title,
            "total": total,
            "first": done,
            "done": done,
            "since": time.time(),
        }
        with self._progress.track(title, total, done) as advance:
            with self._lock:
                self._tasks[id(task)] = task
            self._refresh(at_once=True)

            def both(steps: int = 1, note: str = "") -> None:
                task["done"] += steps
                advance(steps, note)
                self._refresh()

            try:
                yield both
            finally:
                with self._lock:
                    del self._tasks[id(task)]
                self._refresh(at_once=True)

    def say(self, message: str) -> None:
        """Pass a line on."""
        self._progress.say(message)

    def _refresh(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._written >= _SECONDS_BETWEEN:
            self.write("running")

    def write(self, state: str, message: str = "") -> None:
        """Write the file; a disk that cannot take it is the business of the stages."""
        with self._lock, suppress(OSError):
            self._written = time.monotonic()
            tasks = list(self._tasks.values())
            facts = {**self._facts, "now": time.time(), "tasks": tasks}
            write_json(self._path, {"state": state, "message": message, **facts})


@contextmanager
def recorded(progress: Progress, folder: Path, until: str, *, writes: bool = True) -> Iterator[Progress]:
    """Progress that also keeps the status of the run in a folder; of several processes, one `writes`."""
    if not writes:
        yield progress
        return
    with storage_errors(folder):
        make_folder(folder)
    with RecordedProgress(progress, folder / STATUS, until) as status:
        yield status
