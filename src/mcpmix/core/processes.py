"""Work in several processes: one training that `torchrun` shares out, or many tasks side by side.

Every process of a shared training holds all weights and takes its share of each step's batch. Gradients are
averaged, so all of them take the same step; only the first one, the leader, writes files. Tasks side by side
know nothing of each other, and the parent shows their progress.

Sharing is done by torch.distributed and not accelerate: its launcher starts one process on a CPU whatever
number it is given, its `prepare` wraps the networks and optimisers whose states our checkpoints hold, and
what would be left of it here is `all_reduce` and `broadcast`.
"""

import atexit
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import wait
from queue import Queue
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError, TrainingError
from mcpmix.core.progress import Advance, Progress

T = TypeVar("T")

_BUCKET = 2**23  # gradients sent at once: 32 MB of float32
# Long: others wait while the leader prepares data or validates. A dead process is noticed by the launcher.
_PATIENCE = timedelta(hours=24)
_LOOK = 0.2  # seconds between two looks at the launcher


@dataclass(frozen=True)
class Processes:
    """This process, number `rank`, among the `count` processes of its run."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        self.mean(0.0)

    def mean(self, value: float) -> float:
        """The mean of a number over all processes."""
        if self.count == 1:
            return value
        total = torch.tensor([value, 1.0], dtype=torch.float64)  # on the CPU, whatever the device of networks
        dist.all_reduce(total)
        if int(total[1]) != self.count:
            raise TrainingError(f"{self.count} processes should take part, {int(total[1])} answered.")
        return float(total[0] / total[1])

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over all processes."""
        if self.count == 1:
            return
        bucket: list[Tensor] = []
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for place, gradient in enumerate(gradients, 1):
            bucket.append(gradient)
            size = sum(part.numel() for part in bucket)
            if place < len(gradients) and size + gradients[place].numel() <= _BUCKET:
                continue  # the next one still fits; a single one may be larger
            flat = torch.cat([part.reshape(-1) for part in bucket])
            dist.all_reduce(flat)
            flat /= self.count
            for part, mean in zip(bucket, flat.split([part.numel() for part in bucket]), strict=True):
                part.copy_(mean.view_as(part))
            bucket = []

    @torch.no_grad()
    def copy_from_leader(self, network: nn.Module) -> None:
        """Give all processes the leader's weights."""
        if self.count == 1:
            return
        for tensor in network.state_dict().values():
            dist.broadcast(tensor, src=0)

    def place(self, runtime: Runtime) -> Runtime:
        """The runtime of this process: a GPU of its own, or its share of the CPU's threads."""
        if self.count == 1:
            return runtime
        if runtime.device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
            torch.cuda.set_device(device)
            return replace(runtime, device=device)
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        torch.set_num_threads(max(1, torch.get_num_threads() // neighbours))
        return runtime


def launched() -> int:
    """How many processes the launcher says it started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(expected: int) -> Processes:
    """Take one's place among the processes of this run.

    Args:
        expected: how many the configuration asks for.

    Raises:
        ConfigError: another number was started. Some launchers silently start one process where two
            were asked for, which would train with half the batch.
    """
    started = launched()
    if started == expected:
        return connect()
    if expected == 1:
        raise ConfigError(
            f"{started} processes were started, but finetune.processes is 1. Set "
            f"finetune.processes={started}, or start the command without torchrun."
        )
    raise ConfigError(
        f"finetune.processes is {expected}, but {started} process{'es were' if started > 1 else ' was'} "
        f"started. Start it with `torchrun --standalone --nproc-per-node {expected} -m mcpmix finetune "
        "CONFIG`, or set finetune.processes=1. (On a CPU `accelerate launch` starts one process, whatever "
        "number it is given.)"
    )


def connect() -> Processes:
    """Connect to the other processes, once; alone if no launcher started any."""
    if launched() == 1:
        return Processes()
    if dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    end_with_launcher()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    atexit.register(dist.destroy_process_group)
    processes = Processes(dist.get_rank(), dist.get_world_size())
    processes.wait()  # counts who is really there
    return processes


@contextmanager
def leader_first() -> Iterator[Processes]:
    """The leader does the work inside while the others wait; then they do it, finding it done."""
    processes = connect()
    if not processes.leads:
        processes.wait()
    yield processes
    if processes.leads:
        processes.wait()


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


# --- side by side -----------------------------------------------------------------------------------------


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


_here: dict[str, Any] = {}  # of a worker process, set when it starts


def _start(channel: Queue[Any], open_runtime: Callable[[], Runtime]) -> None:
    end_with_parent()
    # Ctrl-C reaches workers too. The last checkpoint is on disk, so they end at once and quietly.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _here.update(runtime=open_runtime(), progress=_ChannelProgress(channel))


def _work(task: Callable[..., T]) -> T:
    return task(**_here)


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
