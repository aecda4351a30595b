"""Tasks side by side, in processes that know nothing of each other; the parent shows their progress.

A pool of concurrent.futures does not do: when one of its processes is killed, for want of memory as a rule,
all its tasks fail. Here each process has a pipe of its own, and its death costs one task. There is no process
but these, and they end with the parent. Torch is not imported, so that a new process soon watches for that.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from mcpmix.core.device import Runtime
from mcpmix.core.errors import TrainingError
from mcpmix.core.progress import Advance, Progress

T = TypeVar("T")


def side_by_side(
    tasks: Mapping[str, Callable[..., T]],
    workers: int,
    open_runtime: Callable[[], Runtime],
    progress: Progress,
    finished: Callable[[], None] = lambda: None,
) -> dict[str, T]:
    """Call all tasks, each with `runtime` and `progress` as keywords, in several processes.

    A task that fails, or whose process is killed, does not stop the others: what they finish is kept.

    Args:
        tasks: picklable callables by a name for messages.
        workers: number of processes; with one, the work is done in this process.
        open_runtime: sets up torch in the process that works.
        finished: called after each task that has not failed.

    Returns:
        Their results, in the order of `tasks`.

    Raises:
        Exception: what the first failed task raised; the failures of others are reported.
    """
    made: dict[str, T] = {}
    if not tasks or workers == 1:
        for name, task in tasks.items():
            made[name] = task(runtime=open_runtime(), progress=progress)
            finished()
        return made
    errors: dict[str, Exception] = {}
    for name, outcome in as_they_come(tasks, workers, open_runtime, progress):
        if isinstance(outcome, Exception):
            errors[name] = outcome
        else:
            made[name] = outcome
            finished()
    for name, error in list(errors.items())[1:]:
        if str(error) != str(next(iter(errors.values()))):  # a full disk fails all tasks alike
            progress.say(f"{name} failed too: {error}")
    if errors:
        raise next(iter(errors.values()))
    return {name: made[name] for name in tasks}


def as_they_come(
    tasks: Mapping[str, Callable[..., T]],
    workers: int,
    open_runtime: Callable[[], Runtime],
    progress: Progress,
    retries: int = 0,
) -> Iterator[tuple[str, T | Exception]]:
    """Call all tasks as `side_by_side` does; yield the name and the result, or the error, of each in turn.

    Args:
        retries: how often a task is begun again in a new process after its process was killed.
    """
    left = dict.fromkeys(tasks, retries)
    waiting, idle, busy = deque(tasks), list[_Worker](), dict[Connection, _Worker]()
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(open_runtime)
                worker.begin(waiting[0], tasks[waiting.popleft()])
                busy[worker.pipe] = worker
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                try:
                    kind, *values = pipe.recv()
                except (EOFError, OSError):
                    error = worker.death()
                    del busy[pipe]
                    if left[worker.task]:
                        left[worker.task] -= 1
                        waiting.append(worker.task)
                    else:
                        yield worker.task, error
                    continue
                if kind not in ("done", "failed"):
                    worker.show(progress, kind, *values)
                    continue
                idle.append(busy.pop(pipe))
                yield worker.task, values[0]
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()


class _Worker:
    """A process that does one task after the other, as its parent sees it."""

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        # Not a daemon: a training may have processes of its own, which end with it.
        self.process = context.Process(target=_serve, args=(there, open_runtime))
        with interrupts_held():
            self.process.start()
        there.close()  # or the end of the worker would not be seen as the end of the pipe
        self.task = ""
        self._bars: dict[int, tuple[ExitStack, Advance]] = {}

    def begin(self, name: str, task: Callable[..., object]) -> None:
        self.task = name
        with suppress(OSError):  # it may have been killed; the end of the pipe tells
            self.pipe.send(task)

    def show(self, progress: Progress, kind: str, *values: Any) -> None:  # noqa: ANN401
        """Show what the worker reports."""
        if kind == "say":
            progress.say(*values)
            return
        number, *what = values
        if kind == "open":
            stack = ExitStack()
            self._bars[number] = stack, stack.enter_context(progress.track(*what))
        elif kind == "advance":
            self._bars[number][1](*what)
        else:
            self._bars.pop(number)[0].close()

    def death(self) -> TrainingError:
        """What to say when the process has ended in the middle of its task."""
        self.end()
        code = self.process.exitcode or 0
        how = f"was killed (signal {-code})" if code < 0 else f"ended unexpectedly (exit code {code})"
        return TrainingError(
            f"{self.task}: its process {how}. If memory ran out, lower runtime.jobs (trainings side by "
            "side), train.batch_size or data.size. The others went on; run the same command again to resume "
            "this one."
        )

    def end(self) -> None:
        """End the process, at whatever it is: checkpoints are on disk."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        for stack, _ in self._bars.values():
            stack.close()


def _serve(pipe: Connection, open_runtime: Callable[[], Runtime]) -> None:
    """Inside a worker: do tasks until the parent closes the pipe."""
    end_with_parent()
    runtime, progress = None, _PipeProgress(pipe)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            runtime = runtime or open_runtime()
            progress.send("done", task(runtime=runtime, progress=progress))
        except Exception as error:  # whatever it is, the parent tells it
            error.add_note(traceback.format_exc())
            progress.send("failed", _portable(error))


def _portable(error: Exception) -> Exception:
    """An error that survives the pipe."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors of other libraries may ask for arguments that pickle does not know
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__notes__ = error.__notes__
        return portable
    return error


class _PipeProgress:
    """Reports into a pipe; lives in a worker, whose threads may report too."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._numbers = count()
        self._lock = threading.Lock()

    def send(self, *message: object) -> None:
        with self._lock:
            self._pipe.send(message)

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        number = next(self._numbers)
        self.send("open", number, title, total, done)

        def advance(steps: int = 1, note: str = "") -> None:
            self.send("advance", number, steps, note)

        try:
            yield advance
        finally:
            self.send("close", number)

    def say(self, message: str) -> None:
        self.send("say", message)


# --- for all processes that this package starts ------------------------------------------------------------


def end_with_parent() -> None:
    """Called in a worker: end at once when the parent is gone, so that no orphan holds a folder's lock."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C: processes started here never receive it; their parent does, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
