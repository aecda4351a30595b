"""Processes that make counterparts while something else goes on.

Nothing is shared that a dying process could leave locked. Each worker has a pipe of its own for short
messages; images come back through slots of shared memory, whose number bounds how much can be under way. This
module imports little, so that a worker soon watches its parent: one whose parent is gone ends at once.
"""

import math
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import Array, c_ubyte
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from mcpmix.core.errors import McpmixError, TrainingError
from mcpmix.core.progress import end_with_parent
from mcpmix.generator.bank import Maker, Pixels, make_filled

if TYPE_CHECKING:
    from mcpmix.generator.counterparts import Request

MakeMaker = Callable[[], Maker]
Shape = tuple[int, int, int, int, int]
_SECONDS_TO_END = 5.0


class Pool(Protocol):
    """Makes batches of counterparts, somewhere else and in any order."""

    @property
    def has_room(self) -> bool:
        """Whether another batch may be submitted."""
        ...

    def submit(self, requests: Sequence["Request"]) -> None:
        """Ask for 1 to a batch of counterparts; needs room."""
        ...

    def collect(self) -> tuple[Sequence["Request"], Pixels]:
        """Wait for a batch that was submitted: its requests and their B,S,S,3 uint8 images; makes room."""
        ...

    def close(self) -> None:
        """End it; what is under way is dropped."""
        ...


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    slots: list[int] = field(default_factory=list)  # under way, oldest first


@final
class WorkerPool:
    """Spawned processes, each with a generator of its own.

    Interrupts (Ctrl-C) are the parent's business: workers do not hear them, and the parent ends the workers
    in `close`. If the parent is killed, they end by themselves.

    Args:
        make_maker: builds the generator inside a worker; must be picklable.
        workers: number of processes.
        slots: batches under way or waiting to be collected at most.
        batch_size: images per call of the generator.
        size: side of an image in pixels.
    """

    def __init__(
        self, make_maker: MakeMaker, *, workers: int, slots: int, batch_size: int, size: int
    ) -> None:
        context = get_context("spawn")
        shape: Shape = (max(slots, workers), batch_size, size, size, 3)
        memory: Array[c_ubyte] = context.RawArray(c_ubyte, math.prod(shape))
        self._images = _view(memory, shape)
        self._free = list(range(shape[0]))
        self._requests: dict[int, Sequence[Request]] = {}
        self._workers: list[_Worker] = []
        arguments = (memory, shape, pickle.dumps(make_maker))
        with _interrupts_held():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, *arguments), daemon=True)
                process.start()
                there.close()  # or the end of the worker would not be seen as the end of the pipe
                self._workers.append(_Worker(process, here))

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def submit(self, requests: Sequence["Request"]) -> None:
        """Give a batch to the worker that has least to do."""
        worker = min(self._workers, key=lambda each: len(each.slots))
        slot = self._free.pop()
        self._requests[slot] = requests
        try:
            worker.connection.send((slot, list(requests)))
        except OSError:
            while True:  # until what it said before it ended, or that it ended
                self._receive(worker)
        worker.slots.append(slot)

    def collect(self) -> tuple[Sequence["Request"], Pixels]:
        """The next finished batch.

        Raises:
            TrainingError: a worker failed or was killed.
        """
        busy = {each.connection: each for each in self._workers if each.slots}
        ready = wait(list(busy))
        slot = self._receive(busy[ready[0]])  # type: ignore[index]
        self._free.append(slot)
        requests = self._requests.pop(slot)
        return requests, self._images[slot, : len(requests)].copy()

    def close(self) -> None:
        """End all workers at once, also in the middle of an image; can be called twice."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_SECONDS_TO_END)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers = []

    def _receive(self, worker: _Worker) -> int:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(_SECONDS_TO_END)
            raise TrainingError(
                "A process that makes counterparts ended without a word "
                f"(exit code {worker.process.exitcode}). If the machine ran out of memory, lower "
                "synthesis.workers or synthesis.batch_size; training goes on from its last checkpoint."
            ) from None
        if isinstance(message, int):
            worker.slots.remove(message)
            return message
        text, trace = message
        error = TrainingError(f"Counterparts cannot be made: {text}")
        error.add_note(trace)
        raise error


# --- inside a worker -------------------------------------------------------------------------------------


def _work(connection: Connection, memory: "Array[c_ubyte]", shape: Shape, payload: bytes) -> None:
    """Build a maker, then make batches until the parent closes the pipe."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    images = _view(memory, shape)
    try:
        maker: Maker = pickle.loads(payload)()
        for slot, requests in _messages(connection):
            images[slot, : len(requests)] = make_filled(maker, requests, shape[1])
            connection.send(slot)
    except Exception as error:  # whatever it is, the parent tells it
        text = str(error) if isinstance(error, McpmixError) else f"{type(error).__name__}: {error}"
        connection.send((text, traceback.format_exc()))


def _messages(connection: Connection) -> Iterator[tuple[int, Sequence["Request"]]]:
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        yield message


def _view(memory: "Array[c_ubyte]", shape: Shape) -> Pixels:
    return np.frombuffer(memoryview(memory), np.uint8).reshape(shape)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back; processes started here never see it, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
