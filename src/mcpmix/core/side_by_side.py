"""Independent pieces of work in processes of their own, with their progress shown by the parent."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from mcpmix.core.device import Runtime
from mcpmix.core.progress import Channel, ChannelProgress, Progress, end_with_parent, relay

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
        progress: where to report.

    Returns:
        Their results, in the order of `tasks`.

    Raises:
        Exception: what the first failed task raised; the failures of others are said.
    """
    if not tasks or workers == 1:
        return {name: task(runtime=open_runtime(), progress=progress) for name, task in tasks.items()}
    context = multiprocessing.get_context("spawn")
    made: dict[str, T] = {}
    errors: dict[str, BaseException] = {}
    with context.Manager() as manager:
        channel = manager.Queue()
        with (
            relay(channel, progress),
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
        first, *others = errors.values()
        for name, error in zip(list(errors)[1:], others, strict=True):
            if str(error) != str(first):  # a killed worker fails all tasks alike
                progress.say(f"{name} failed too: {error}")
        raise first
    return {name: made[name] for name in tasks}


_here: dict[str, Any] = {}  # of a worker process, set when it starts


def _start(channel: Channel, open_runtime: Callable[[], Runtime]) -> None:
    end_with_parent()
    # Ctrl-C reaches workers too. The last checkpoint is on disk, so they end at once and quietly.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _here.update(runtime=open_runtime(), progress=ChannelProgress(channel))


def _work(task: Callable[..., T]) -> T:
    return task(**_here)
