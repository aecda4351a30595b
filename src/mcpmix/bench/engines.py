"""Where the tasks of a grid run: in processes of this machine, or on a cluster of Ray.

An engine takes picklable tasks by name, each a stage that is reused when finished and resumed when begun, and
yields their results and errors as they come. Its results do not depend on where a task ran.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeVar

from mcpmix.bench.grid import Resources
from mcpmix.config import RuntimeConfig
from mcpmix.core.device import Runtime, core_count, setup
from mcpmix.core.errors import DependencyError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.side_by_side import as_they_come

T = TypeVar("T")

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Engine:
    """Runs tasks in processes of this machine."""

    resources: Resources
    runtime: RuntimeConfig

    def run(
        self, tasks: Mapping[str, Callable[..., T]], progress: Progress, *, wide: bool = False
    ) -> Iterator[tuple[str, T | BaseException]]:
        """Call each task with `runtime` and `progress`; yield its name with its result or error.

        A task whose process or machine is lost is begun again. `wide` tasks use all cores of a machine.
        """
        jobs = 1 if wide else jobs_here(self.resources, self.runtime)
        workers = max(1, min(jobs, len(tasks)))
        yield from as_they_come(tasks, workers, self.opener(wide), progress, self.resources.retries)

    def opener(self, wide: bool) -> Callable[[], Runtime]:
        """What sets up torch in the process of a task."""
        return partial(_open_runtime, self.runtime, self.runtime.threads if wide else self.resources.cpus)


class RayEngine(Engine):
    """Runs them on a cluster of Ray: the one that RAY_ADDRESS names, or a new one on this machine.

    All machines must see the folder of results, the data and the weights under the same paths.
    """

    def run(  # noqa: D102
        self, tasks: Mapping[str, Callable[..., T]], progress: Progress, *, wide: bool = False
    ) -> Iterator[tuple[str, T | BaseException]]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Tasks without a GPU see what they saw.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray: Any = import_module("ray")  # its types are not complete
        except ImportError as error:
            raise DependencyError(
                "--engine ray needs the package ray: pip install 'mcpmix[cluster]'."
            ) from error
        if not ray.is_initialized():
            # A cluster of one's own is for this machine only; another one is there already.
            home = {} if "RAY_ADDRESS" in os.environ else {"_node_ip_address": "127.0.0.1"}
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **home)
            shared = ray.cluster_resources()
            progress.say(f"ray: {shared.get('CPU', 0):g} CPUs, {shared.get('GPU', 0):g} GPUs")
        remote: Any = ray.remote(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            max_retries=self.resources.retries,  # after the loss of a worker or a machine
        )(lambda task, opened: task(runtime=opened(), progress=SILENT))
        opened = self.opener(wide)
        names = {remote.remote(task, opened): name for name, task in tasks.items()}
        waiting = list(names)
        try:
            while waiting:
                (done, *_), waiting = ray.wait(waiting)
                try:
                    outcome: T | BaseException = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    outcome = error.cause  # what the task raised, in its own type
                except ray.exceptions.RayError as error:
                    outcome = error
                yield names[done], outcome
        finally:  # also after Ctrl-C; what has begun keeps its last checkpoint
            for reference in waiting:
                ray.cancel(reference, force=True)


def open_engine(name: EngineName, resources: Resources, runtime: RuntimeConfig) -> Engine:
    """The engine of this name."""
    return RayEngine(resources, runtime) if name == "ray" else Engine(resources, runtime)


def jobs_here(resources: Resources, runtime: RuntimeConfig) -> int:
    """Cells side by side on this machine: as configured, else as the cores allow, and one on a GPU."""
    if resources.jobs or runtime.jobs:
        return resources.jobs or runtime.jobs
    if _open_runtime(runtime, resources.cpus).device.type != "cpu":
        return 1
    return max(1, (runtime.threads or core_count()) // resources.cpus)


def _open_runtime(settings: RuntimeConfig, threads: int) -> Runtime:
    return setup(settings.device, settings.precision, threads, settings.deterministic)
