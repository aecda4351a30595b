"""How work that takes long reports its progress. The library is silent; the command line passes a bar."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
