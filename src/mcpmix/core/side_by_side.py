"""Independent pieces of work in processes of their own, with their progress shown by the parent."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from queue import Queue
from typing import Any, TypeVar

from mcpmix.core.device import Runtime
from mcpmix.core.progress import Advance, Progress

T = TypeVar("T")


def side_by_side(
    tasks: Mapping[str, Callable[..., T]],
    workers: int,
    open_runtime: Callable[[], Runtime],
    progress: Progress,
) -> dict[str, T]:
    """Call all tasks, each with `runtime` and `progress` as keywords, in several processes.

    A task that fails does not stop the others: what they finish is kept.

    Args:
        tasks: picklable callables by a name for messages.
        workers: number of processes; with one, the work is done in this process.
        open_runtime: sets up torch in the process that works.

    Returns:
        Their results, in the order of `tasks`.

    Raises:
        Exception: what the first failed task raised; the failures of others are reported.
    """
    if not tasks or workers == 1:
        return {name: task(runtime=open_runtime(), progress=progress) for name, task in tasks.items()}
    context = multiprocessing.get_context("spawn")
    made: dict[str, T] = {}
    errors: dict[str, BaseException] = {}
    with context.Manager() as manager:
        channel = manager.Queue()
        with (
            _relay(channel, progress),
            ProcessPoolExecutor(workers, context, _start, (channel, open_runtime)) as pool,
        ):
            futures = {pool.submit(_work, task): name for name, task in tasks.items()}
            try:
                for future in as_completed(futures):
                    if (error := future.exception()) is None:
                        made[futures[future]] = future.result()
                    else:
                        errors[futures[future]] = error
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    if errors:
        first = next(iter(errors.values()))
        for name, error in errors.items():
            if str(error) != str(first):  # a killed worker fails all tasks alike
                progress.say(f"{name} failed too: {error}")
        raise first
    return {name: made[name] for name in tasks}


def end_with_parent() -> None:
    """Called in a worker: end at once when the parent is gone, so that no orphan holds a folder's lock."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# --- in a worker -------------------------------------------------------------------------------------------

_here: dict[str, Any] = {}  # of a worker process, set when it starts


def _start(channel: Queue[Any], open_runtime: Callable[[], Runtime]) -> None:
    end_with_parent()
    # Ctrl-C reaches workers too. The last checkpoint is on disk, so they end at once and quietly.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _here.update(runtime=open_runtime(), progress=_ChannelProgress(channel))


def _work(task: Callable[..., T]) -> T:
    return task(**_here)


# --- progress of workers -----------------------------------------------------------------------------------


class _ChannelProgress:
    """Reports into a queue; lives in a worker."""

    def __init__(self, channel: Queue[Any]) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        task = (os.getpid(), next(self._numbers))
        self._channel.put(("open", task, title, total, done))

        def advance(steps: int = 1, note: str = "") -> None:
            self._channel.put(("advance", task, steps, note))

        try:
            yield advance
        finally:
            self._channel.put(("close", task))

    def say(self, message: str) -> None:
        self._channel.put(("say", message))


@contextmanager
def _relay(channel: Queue[Any], progress: Progress) -> Iterator[None]:
    """Show in `progress` what workers put into the channel, until the context ends."""

    def show() -> None:
        tasks: dict[tuple[int, int], tuple[ExitStack, Advance]] = {}
        while (message := channel.get()) is not None:
            kind, *values = message
            if kind == "open":
                task, *what = values
                stack = ExitStack()
                tasks[task] = stack, stack.enter_context(progress.track(*what))
            elif kind == "advance":
                task, steps, note = values
                tasks[task][1](steps, note)
            elif kind == "close":
                tasks.pop(values[0])[0].close()
            else:
                progress.say(values[0])
        for stack, _ in tasks.values():  # of workers that were killed
            stack.close()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        channel.put(None)
        thread.join()
