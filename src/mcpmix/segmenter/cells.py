"""All arms with all seeds: what is finished is reused, what is left is done side by side."""

from collections.abc import Callable, Mapping
from functools import partial

from mcpmix.config import Config
from mcpmix.core.device import Runtime, setup, thread_count, worker_count
from mcpmix.core.progress import Progress
from mcpmix.core.side_by_side import side_by_side
from mcpmix.core.stage_folder import Artifact, StageKey, reuse

Cell = tuple[str, int]
"""An arm and a seed: one training with its evaluation."""


def make_cells(
    config: Config,
    stage: str,
    work: Mapping[Cell, tuple[StageKey, Callable[..., Artifact]]],
    runtime: Runtime,
    progress: Progress,
) -> dict[Cell, Artifact]:
    """A stage of all arms with all seeds, side by side where the machine allows it."""
    made: dict[Cell, Artifact | None] = {}
    todo: dict[str, Callable[..., Artifact]] = {}
    for (arm, seed), (key, task) in work.items():
        name = f"{stage}/{arm}/seed-{seed}"
        made[arm, seed] = reuse(config.folder / name, key, progress, name)
        if made[arm, seed] is None:
            todo[f"{stage} {arm} seed {seed}"] = partial(task, out=config.folder / name)
    settings = config.runtime
    # Counted over all of them, not over those left: a resumed run must round like an uninterrupted one.
    workers, threads = share_machine(config, runtime, len(work))
    open_runtime = partial(setup, settings.device, settings.precision, threads, settings.deterministic)
    if stage == "segmenter" and len(work) > 1 and todo:  # one bar over all, with the time that is left
        with progress.track("trainings", len(work), len(work) - len(todo)) as advance:
            new = iter(side_by_side(todo, workers, open_runtime, progress, advance).values())
    else:
        new = iter(side_by_side(todo, workers, open_runtime, progress).values())
    return {cell: artifact or next(new) for cell, artifact in made.items()}


def share_machine(config: Config, runtime: Runtime, count: int) -> tuple[int, int]:
    """How many of `count` trainings run side by side, and the CPU threads of each."""
    workers = worker_count(config.runtime.jobs, runtime.device, count)
    return workers, max(1, (config.runtime.threads or thread_count()) // workers)
