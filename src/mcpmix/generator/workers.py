"""Processes that generate counterparts while the segmenter trains.

Neither a torch DataLoader nor a ProcessPoolExecutor does this. A DataLoader has to know its whole order
before it starts and restarts with every epoch, while the images of the next epoch are made during this one,
follow the gates logged until then, and give way to what is asked for out of turn. The workers of an executor
share one pipe for their answers: a worker killed while it writes an image leaves the parent waiting for ever.
Here each worker has a pipe of its own, whose end tells that the worker ended, and a thread that waits for it.

A worker whose parent is gone ends at once. This module imports no networks, so that it soon watches for that.
"""

import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import final

from mcpmix.core.errors import McpmixError, TrainingError
from mcpmix.core.pixels import Pixels
from mcpmix.core.side_by_side import end_with_parent, interrupts_held

_SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class Request:
    """One counterpart to make: replica number `replica` of the sample at `index` of the arrays."""

    index: int
    replica: int


Make = Callable[[Sequence[Request]], Pixels]
"""Makes 1 to a batch of counterparts, B,S,S,3 uint8."""


@final
class WorkerPool:
    """Spawned processes, each with its own generator.

    Interrupts (Ctrl-C) are the parent's business: workers do not hear them, and the parent ends the workers
    in `close`. If the parent is killed, they end by themselves.

    Args:
        prepare: builds the generator inside a worker and gives what makes counterparts; must be picklable.
    """

    def __init__(self, prepare: Callable[[], Make], *, workers: int) -> None:
        context, payload = get_context("spawn"), pickle.dumps(prepare)
        self.processes = []
        self._idle: SimpleQueue[int] = SimpleQueue()
        self._pipes: list[Connection] = []
        with interrupts_held():
            for number in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, payload), daemon=True)
                process.start()
                there.close()  # or the end of the worker would not be seen as the end of the pipe
                self.processes.append(process)
                self._pipes.append(here)
                self._idle.put(number)
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, requests: Sequence[Request]) -> "Future[list[Pixels]]":
        """Ask for 1 to a batch of counterparts, S,S,3 each.

        The future raises TrainingError if the worker failed or was killed.
        """
        return self._threads.submit(self._ask, list(requests))

    def _ask(self, requests: list[Request]) -> list[Pixels]:
        number = self._idle.get()
        with suppress(OSError):  # it may have ended; what it said before that is still in the pipe
            self._pipes[number].send(requests)
        try:
            answer = self._pipes[number].recv()
        except (EOFError, OSError):
            process = self.processes[number]
            process.join(_SECONDS_TO_END)
            raise TrainingError(
                f"A process that makes counterparts ended unexpectedly (exit code {process.exitcode}). If "
                "the machine ran out of memory, lower synthesis.workers or synthesis.batch_size; training "
                "resumes from its last checkpoint."
            ) from None
        finally:
            self._idle.put(number)
        if isinstance(answer, TrainingError):
            raise answer
        return list(answer)

    def close(self) -> None:
        """Stop all workers at once, even in the middle of an image; can be called twice."""
        for process in self.processes:
            process.kill()
            process.join()
        self._threads.shutdown(cancel_futures=True)
        for pipe in self._pipes:
            pipe.close()


def _work(pipe: Connection, payload: bytes) -> None:
    """Inside a worker: build the generator, then make batches until the parent closes the pipe."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        make: Make = pickle.loads(payload)()
        while True:
            try:
                requests = pipe.recv()
            except EOFError:
                return
            # One by one: a view would keep the whole batch in memory as long as one of its images.
            pipe.send(list(make(requests)))
    except Exception as error:  # whatever it is, the parent tells it
        text = str(error) if isinstance(error, McpmixError) else f"{type(error).__name__}: {error}"
        problem = TrainingError(f"Counterparts cannot be made: {text}")
        problem.add_note(traceback.format_exc())
        pipe.send(problem)
