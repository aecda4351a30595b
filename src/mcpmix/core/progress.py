"""How long work reports that it goes on. The library is silent; the command line passes a bar."""

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import wait
from typing import Any, Protocol


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


class SilentProgress:
    """Reports nothing."""

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:  # noqa: ARG002
        """A task whose steps nobody sees."""

        def advance(steps: int = 1, note: str = "") -> None:
            del steps, note

        yield advance

    def say(self, message: str) -> None:
        """Drop the line."""


SILENT: Progress = SilentProgress()


_LOOK = 0.2  # seconds between two looks at the launcher


class Channel(Protocol):
    """The part of a multiprocessing queue that is used here."""

    def put(self, item: Any) -> None: ...  # noqa: ANN401, D102

    def get(self) -> Any: ...  # noqa: ANN401, D102


class ChannelProgress:
    """Reports into a queue; lives in a worker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Open a task in the parent."""
        task = (os.getpid(), next(self._numbers))
        self._channel.put(("open", task, title, total, done))

        def advance(steps: int = 1, note: str = "") -> None:
            self._channel.put(("advance", task, steps, note))

        try:
            yield advance
        finally:
            self._channel.put(("close", task))

    def say(self, message: str) -> None:
        """A line in the parent."""
        self._channel.put(("say", message))


@contextmanager
def relay(channel: Channel, progress: Progress) -> Iterator[None]:
    """Show in `progress` what workers put into the channel, until the context ends."""
    thread = threading.Thread(target=_show, args=(channel, progress), daemon=True)
    thread.start()
    try:
        yield
    finally:
        channel.put(("stop",))
        thread.join()


def _show(channel: Channel, progress: Progress) -> None:
    contexts: dict[tuple[int, int], AbstractContextManager[Advance]] = {}
    advances: dict[tuple[int, int], Advance] = {}
    while True:
        kind, *values = channel.get()
        if kind == "open":
            task, title, total, done = values
            contexts[task] = progress.track(title, total, done)
            advances[task] = contexts[task].__enter__()
        elif kind == "advance":
            task, steps, note = values
            advances[task](steps, note)
        elif kind == "close":
            contexts.pop(values[0]).__exit__(None, None, None)
        elif kind == "say":
            progress.say(values[0])
        else:
            break
    for context in contexts.values():
        context.__exit__(None, None, None)


def end_with_parent() -> None:
    """Called in a worker: end at once when the parent is gone, so that no orphan holds a folder's lock."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_launcher() -> None:
    """Called in a process of torchrun: end at once when torchrun is gone.

    Torchrun ends its processes when it ends, but not when it is killed; they would go on by themselves and
    hold the lock of the run's folder. Processes of other launchers may be meant to outlive them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
