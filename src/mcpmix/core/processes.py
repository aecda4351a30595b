"""Several processes that train one network, as `torchrun` starts them.

Every process holds all weights and takes its share of each step's batch. Gradients are averaged, so all of
them take the same step; only the first one, the leader, writes files.
"""

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError, TrainingError
from mcpmix.core.progress import end_with_launcher

_BUCKET = 2**23  # gradients sent at once: 32 MB of float32
# Long: others wait while the leader prepares data or validates. A dead process is noticed by the launcher.
_PATIENCE = timedelta(hours=24)


@dataclass(frozen=True)
class Processes:
    """This process among those of its run.

    Attributes:
        rank: number of this process, 0 for the leader.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all processes are here."""
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
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat)
            flat /= self.count
            sizes = [gradient.numel() for gradient in bucket]
            for gradient, mean in zip(bucket, flat.split(sizes), strict=True):
                gradient.copy_(mean.view_as(gradient))

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
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        if runtime.device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
            torch.cuda.set_device(device)
            return replace(runtime, device=device)
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
        ConfigError: another number was started. Some launchers start one process without a word where two
            were asked for, which would train with half the batch.
    """
    started = launched()
    if started != expected:
        raise ConfigError(_wrong_count(expected, started))
    return connect()


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


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of gradients that are sent at once; a single one may be larger."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and sum(part.numel() for part in bucket) + gradient.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def _wrong_count(expected: int, started: int) -> str:
    if expected == 1:
        return (
            f"{started} processes were started, but finetune.processes is 1. Set "
            f"finetune.processes={started}, or start the command without torchrun."
        )
    return (
        f"finetune.processes is {expected}, but {started} process{'es were' if started > 1 else ' was'} "
        f"started. Start it with `torchrun --standalone --nproc-per-node {expected} -m mcpmix finetune "
        "CONFIG`, or set finetune.processes=1. (On a CPU `accelerate launch` starts one process, whatever "
        "number it is given.)"
    )
