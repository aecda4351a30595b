"""One training in several processes that `torchrun` has started.

Every process holds all weights and takes its share of each step's batch. Gradients are averaged, so all of
them take the same step; only the first one, the leader, writes files.

Sharing is done by torch.distributed and not accelerate: its launcher starts one process on a CPU whatever
number it is given, its `prepare` wraps the networks and optimisers whose states our checkpoints hold, and
what would be left of it here is `all_reduce` and `broadcast`.
"""

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError, TrainingError

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
