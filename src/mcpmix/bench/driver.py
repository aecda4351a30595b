"""A grid from its plan to its results: what is there, what it will take, and the work itself."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from statistics import median

import torch

from mcpmix.bench.cells import (
    Outcome,
    Scored,
    find_cell,
    make_group,
    make_transfer,
    read_group,
    read_pace,
    run_cell,
)
from mcpmix.bench.engines import Engine, jobs_here
from mcpmix.bench.grid import Plan, Task
from mcpmix.bench.state import (
    GRID,
    Cell,
    Listed,
    list_cells,
    read_failures,
    relative,
    write_failures,
)
from mcpmix.config import Config
from mcpmix.core.device import setup
from mcpmix.core.errors import McpmixError, StorageError
from mcpmix.core.files import make_folder, storage_errors, write_json
from mcpmix.core.progress import SILENT, Progress, recorded
from mcpmix.core.stage_folder import locked, read_artifact
from mcpmix.data.splits import ALL_PARTS
from mcpmix.estimates import estimate_bytes, part_sizes
from mcpmix.networks.loss import segmentation_loss
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.preflight import require_settings
from mcpmix.segmenter.arms import needs_pairs

_PROBE_STEPS = 3  # of the training step that is timed; the first one warms up and does not count


@contextmanager
def claimed(plan: Plan, progress: Progress = SILENT) -> Iterator[Progress]:
    """Hold the folder of a grid: for one driver, and for the results of one grid.

    Yields progress that also keeps the status of the grid in its folder.

    Raises:
        StorageError: another driver works there, or the folder holds something else.
    """
    with locked(plan.out):
        path = plan.out / GRID
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8")).get("name")
            if held != plan.grid.name:
                raise StorageError(
                    f"{plan.out} holds the results of the grid {held}, not of {plan.grid.name}. Choose "
                    "another folder with --out."
                )
        elif plan.out.is_dir() and any(plan.out.iterdir()):
            raise StorageError(
                f"{plan.out} is not empty and holds no results of a grid. Choose another folder with --out."
            )
        with storage_errors(plan.out):
            make_folder(plan.out)
            write_json(path, plan.grid.model_dump(mode="json"))
        with recorded(progress, plan.out, "tables") as shown:
            yield shown


def run_grid(plan: Plan, engine: Engine, progress: Progress = SILENT) -> Outcome:
    """Make all groups, then all cells that are not finished; a failure is noted and the others go on."""
    for config in {id(task.config): task.config for task in plan.cells.values()}.values():
        require_settings(config)
    found = Outcome(plan)
    write_failures(plan.out, {})
    before: Mapping[Cell, Scored] = {}
    with suppress(McpmixError):  # the work itself says what is damaged
        before = look(plan).cells
    _list_cells(plan, before)

    def note(name: str, error: BaseException) -> None:
        found.failures[name] = f"{type(error).__name__}: {error}"
        progress.say(f"{name} failed: {error}")
        write_failures(plan.out, found.failures)

    groups = {name: partial(make_group, group) for name, group in plan.groups.items()}
    for name, made in engine.run(groups, progress, wide=True):
        if isinstance(made, BaseException):
            note(f"inputs {name}", made)
        else:
            found.groups[name] = made
    sets = {name: partial(make_transfer, config) for name, config in plan.transfer.items()}
    for name, tested in engine.run(sets, progress, wide=True) if sets else ():
        if isinstance(tested, BaseException):
            note(f"transfer {name}", tested)
        else:
            found.transfer[name] = tested

    todo = {}
    for cell, task in plan.cells.items():
        inputs = found.groups.get(task.group)
        if inputs is None:
            note(cell.name, RuntimeError(f"its inputs {task.group} failed"))
            continue
        work = (task, cell.seed, inputs, found.transfer, plan.home(cell))
        scored = find_cell(*work)
        if scored is not None:
            found.cells[cell] = scored
        else:
            todo[cell.name] = partial(run_cell, *work)
    _list_cells(plan, found.cells)
    names = {cell.name: cell for cell in plan.cells}
    with progress.track("cells", len(plan.cells), len(plan.cells) - len(todo)) as advance:
        for name, outcome in engine.run(todo, progress) if todo else ():
            if isinstance(outcome, BaseException):
                note(name, outcome)
            else:
                found.cells[names[name]] = outcome
                _list_cells(plan, found.cells)
            advance(1, name)
    return found


def _list_cells(plan: Plan, finished: Mapping[Cell, Scored]) -> None:
    """Leave word of all cells for those who watch."""
    listed = []
    for cell, task in plan.cells.items():
        scored = finished.get(cell)
        listed.append(
            Listed(
                cell,
                plan.grid.label_of(cell.method),
                task.group,
                relative(plan.out, plan.groups[task.group].config.folder),
                _epochs(task.config),
                None if scored is None else relative(plan.out, scored.segmenter.folder),
            )
        )
    list_cells(plan.out, listed)


# --- before and during the work -----------------------------------------------------------------------------


def look(plan: Plan) -> Outcome:
    """What is finished, without any work, and what has failed in the last run."""
    found = Outcome(plan, failures=read_failures(plan.out))
    found.groups = {name: made for name, group in plan.groups.items() if (made := read_group(group))}
    tested = {name: read_artifact(config.folder / "tested") for name, config in plan.transfer.items()}
    found.transfer = {name: item for name, item in tested.items() if item is not None}
    for cell, task in plan.cells.items():
        scored = find_cell(task, cell.seed, found.groups.get(task.group), tested, plan.home(cell))
        if scored is not None:
            found.cells[cell] = scored
    return found


def status_rows(plan: Plan) -> list[list[str]]:
    """Heading and a row for each method in each place of the grid: how its seeds stand."""
    found = look(plan)
    rows = [["data", "labels", "generator", "segmenter", "method", "finished", "begun", "failed"]]
    places: dict[tuple[str, ...], list[Cell]] = {}
    for cell in plan.cells:
        places.setdefault((*cell.place, cell.method), []).append(cell)
    for place, cells in places.items():
        finished = sum(cell in found.cells for cell in cells)
        begun = [
            f"seed {cell.seed}: {done}/{_epochs(plan.cells[cell].config)}"
            for cell in cells
            if cell not in found.cells and (done := plan.home(cell).epochs_done)
        ]
        failed = sum(cell.name in found.failures for cell in cells if cell not in found.cells)
        rows.append([*place, f"{finished}/{len(cells)}", ", ".join(begun), str(failed or "")])
    return rows


def forecast(plan: Plan) -> list[str]:
    """What a run would do: cells, what is reused, and about how much time and disk the rest takes."""
    found = look(plan)
    todo = {cell: task for cell, task in plan.cells.items() if cell not in found.cells}
    lines = [
        f"{len(plan.cells)} cells: {len(found.cells)} finished and reused, {len(todo)} to train "
        f"({sum(1 for cell in todo if plan.home(cell).epochs_done)} of them begun)",
        f"{len(plan.groups)} input groups: {len(found.groups)} ready, "
        f"{len(plan.groups) - len(found.groups)} to make"
        + "".join(f"\n  {name}" for name in plan.groups if name not in found.groups),
    ]
    images: dict[str, Mapping[str, int]] = {}  # of each group whose data set is known
    need = 0.0
    for name, group in plan.groups.items():
        made = found.groups.get(name)
        if made is not None:
            counts = made.dataset.manifest["counts"]
            images[name] = {part: int(counts.get(part, 0)) for part in ALL_PARTS}
        elif group.config.data.source == "phantom":
            images[name] = part_sizes(group.config, None)
        arms = tuple(task.arm for task in todo.values() if task.group == name)
        if arms and name in images:
            train = group.config.train.model_copy(update={"arms": arms, "seeds": (0,)})
            need += estimate_bytes(group.config.model_copy(update={"train": train}), images[name])
    lines.append(f"disk: about {need / 1e9:.2f} GB, as far as the data sets are known")

    seconds, unknown = _training_seconds(found, todo, images)
    jobs = jobs_here(plan.grid.engine, next(iter(plan.groups.values())).config.runtime)
    more = f"; {unknown} cells whose images are not counted yet come on top" if unknown else ""
    lines.append(
        f"time: about {timedelta(seconds=round(seconds))} of training, "
        f"{timedelta(seconds=round(seconds / jobs))} with {jobs} cells side by side on this machine; input "
        f"groups and evaluation come on top{more}"
    )
    return lines


def _training_seconds(
    found: Outcome, todo: Mapping[Cell, Task], images: Mapping[str, Mapping[str, int]]
) -> tuple[float, int]:
    """About how long the trainings take, and how many have a data set that is not counted yet.

    By the pace of finished trainings, else of a step that is timed now.
    """
    plan = found.plan
    paces: dict[tuple[str, str], list[float]] = {}
    for cell in found.cells:
        if (measured := read_pace(plan.home(cell))) is not None:
            paces.setdefault((cell.segmenter, cell.method), []).append(measured)
    timed: dict[str, float] = {}
    seconds, unknown = 0.0, 0
    for cell, task in todo.items():
        config, key = task.config, (cell.segmenter, cell.method)
        labelled = plan.groups[task.group].config.data.labelled
        count = images[task.group]["train"] if task.group in images else labelled
        if count is None:
            unknown += 1
            continue
        if key in paces:
            pace = median(paces[key])
        else:
            if cell.segmenter not in timed:
                timed[cell.segmenter] = _probe(config, plan.grid.engine.cpus)
            # A counterpart for each image: twice the images in a step.
            pace = timed[cell.segmenter] * (2 if needs_pairs(task.arm) else 1)
        left = _epochs(config) - plan.home(cell).epochs_done
        seconds += pace * left * math.ceil(count / config.train.batch_size)
    return seconds, unknown


def _probe(config: Config, threads: int) -> float:
    """Seconds of a training step on real images, measured on noise."""
    wanted, runtime = config.segmenter, config.runtime
    device = setup(runtime.device, runtime.precision, threads, runtime.deterministic).device
    network = build_segmenter(
        wanted.name, wanted.variant, options=wanted.options, channels=config.data.channels
    ).to(device)
    shape = (config.train.batch_size, 3, config.data.size, config.data.size)
    images = torch.rand(shape, device=device)
    masks = (images[:, :1] > 0.5).float().expand(-1, config.data.channels, -1, -1)
    start = 0.0
    for step in range(_PROBE_STEPS):
        start = time.monotonic() if step == 1 else start
        segmentation_loss(network(images), masks).backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.monotonic() - start) / (_PROBE_STEPS - 1)


def _epochs(config: Config) -> int:
    return config.train.epochs + config.train.tail_epochs
