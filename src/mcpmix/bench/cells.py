"""The work of a grid, input groups and cells, and what it has made.

Everything is a stage folder, reused by its key, resumable. The functions that work run in other processes and
on other machines; what they take and return can be pickled.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.bench.grid import Group, Plan, Selection, Task
from mcpmix.bench.state import Cell, Home
from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import StorageError
from mcpmix.core.files import write_json
from mcpmix.core.progress import SILENT, Advance, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, digest_of, read_artifact, reuse, workspace
from mcpmix.data import dataset
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.leakage import LeakSearch
from mcpmix.data.splits import KNOWN
from mcpmix.generator import adapt
from mcpmix.generator.ledger import read_review
from mcpmix.report.tables import read_metrics
from mcpmix.run import run
from mcpmix.segmenter import evaluate, train
from mcpmix.segmenter.arms import Inputs, needs_generator

_READY = "ready.json"  # of an input group: what it has made, and for which settings
_PACE = "pace"  # of a cell: seconds of a training step, beside its stages


@dataclass(frozen=True)
class Made:
    """A finished input group."""

    inputs: Mapping[str, Inputs]  # of each arm
    base: str  # the generator's base, perhaps an adapted one
    search: LeakSearch | None = None  # the test images among all that the networks will see

    @property
    def dataset(self) -> Artifact:
        """The data set that all arms share."""
        return next(iter(self.inputs.values())).dataset

    def place(self, config: Config) -> Config:
        """The configuration of a cell, on the group's base."""
        return config.on_base(Path(self.base)) if self.base != config.generator.base else config


def make_group(group: Group, runtime: Runtime, progress: Progress = SILENT) -> Made:
    """Make all that the trainings of a group read, and refuse test images that they would see."""
    del runtime  # the run opens its own
    config = group.config
    if group.share is not None:
        whole = config.model_copy(update={"name": f"{config.name}-split"})
        split = run(whole, progress, until="dataset").dataset
        assert split is not None
        count = max(1, round(group.share * split.manifest["counts"]["train"]))
        config = config.model_copy(update={"data": config.data.model_copy(update={"labelled": count})})
    made = run(config, progress, until="inputs")
    assert made.dataset is not None
    base = config.generator.base if made.base is None else str(made.base / adapt.PIPELINE)
    inputs = {arm: made.inputs(config, arm) for arm in config.train.arms}
    generated = any(needs_generator(config, arm) for arm in config.train.arms)
    search = evaluate.search_leaks(made.on_base(config), made.dataset, with_generator=generated)
    folders = {
        arm: {
            name: item.folder.relative_to(config.folder).as_posix()
            for name, item in vars(found).items()
            if isinstance(item, Artifact)
        }
        for arm, found in inputs.items()
    }
    write_json(config.folder / _READY, {"digest": _identity(group), "base": base, "inputs": folders})
    return Made(inputs, base, search)


def _identity(group: Group) -> str:
    """Digest of the settings that stages before training may read."""
    config = group.config
    settings = config.model_dump(mode="json", exclude={"segmenter", "train", "rla", "evaluation", "runtime"})
    return digest_of([settings, config.train.arms, config.rla.features, group.share])


def read_group(group: Group) -> Made | None:
    """A group that was made from these settings and is still there; its source is not looked at."""
    folder = group.config.folder
    try:
        ready: dict[str, Any] = json.loads((folder / _READY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if ready.get("digest") != _identity(group):
        return None
    inputs = {}
    for arm, places in ready["inputs"].items():
        found = {name: read_artifact(folder / place) for name, place in places.items()}
        if None in found.values():
            return None
        pairs = found.get("pairs")
        review = read_review(pairs) if pairs is not None else None
        inputs[arm] = Inputs(**found, review=review)  # type: ignore[arg-type]  # none is None
    return Made(inputs, ready["base"])


def make_transfer(config: Config, runtime: Runtime, progress: Progress = SILENT) -> Artifact:
    """A data set all of whose images are test images, whatever its own split says."""
    del runtime
    source = dataset.run(config, config.folder / "dataset", progress)
    key = StageKey("transfer", {}, {"dataset": source.digest})
    if (finished := reuse(config.folder / "tested", key, progress)) is not None:
        return finished
    with workspace(config.folder / "tested", key) as space:
        records = tuple(replace(record, split="test") for record in DatasetIndex.read(source).records)
        index = DatasetIndex(records)
        index.write(space.folder)
        return space.finish(test=len(records), content=index.digest)


@dataclass(frozen=True)
class Scored:
    """A finished cell: its segmenter, and its evaluations by what they are on (`test` or a transfer set)."""

    segmenter: Artifact
    evaluations: Mapping[str, Artifact]


def run_cell(
    task: Task,
    seed: int,
    made: Made,
    transfer: Mapping[str, Artifact],
    home: Home,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Scored:
    """Train and evaluate; what is finished is reused, what was begun is continued.

    A segmenter that a run of the same input group has trained before is taken as it is.
    """
    config, inputs = made.place(task.config), made.inputs[task.arm]
    key = train.key(config, inputs, task.arm, seed)
    segmenter = reuse(home.stage("segmenter"), key, progress, home.tail)
    segmenter = segmenter or _finished(_place_in_run(config, task.arm, seed), key)
    if segmenter is None:
        clock = _Clock(progress)
        segmenter = train.run(config, inputs, task.arm, seed, home.stage("segmenter"), runtime, clock)
        counts = segmenter.manifest["counts"]
        if clock.steps:  # epochs that this process has trained
            _pace_file(home).parent.mkdir(parents=True, exist_ok=True)
            write_json(_pace_file(home), clock.seconds / clock.steps * counts["epochs"] / counts["steps"])
    evaluations = {}
    for name, data in {"test": inputs.dataset, **transfer}.items():
        place = _evaluated(home, name)
        key = evaluate.key(config, data, segmenter)
        search = made.search if name == "test" else None
        evaluations[name] = reuse(place, key, progress) or evaluate.run(
            config, data, segmenter, inputs.generator, search, place, runtime, progress
        )
    return Scored(segmenter, evaluations)


class _Clock:
    """Passes progress on, and notes how long the steps of the last task took."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.steps, self.seconds = 0, 0.0

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        with self._progress.track(title, total, done) as report:
            start = time.monotonic()

            def advance(steps: int = 1, note: str = "") -> None:
                self.steps, self.seconds = self.steps + steps, time.monotonic() - start
                report(steps, note)

            yield advance

    def say(self, message: str) -> None:
        self._progress.say(message)


def _place_in_run(config: Config, arm: str, seed: int) -> Path:
    """Where the run of the input group itself would have the segmenter."""
    return config.folder / "segmenter" / arm / f"seed-{seed}"


def _evaluated(home: Home, name: str) -> Path:
    return home.stage("evaluation" if name == "test" else f"transfer/{name}")


# --- what is there, without any work ------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a grid has made: groups and cells by name, and why others failed."""

    plan: Plan
    groups: dict[str, Made] = field(default_factory=dict)
    transfer: dict[str, Artifact] = field(default_factory=dict)
    cells: dict[Cell, Scored] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def selected(self, wanted: Selection) -> list[Cell]:
        """The finished cells of a selection, in the order of the grid."""
        return [cell for cell in self.plan.selected(wanted) if cell in self.cells]

    def first_place(self, wanted: Selection) -> list[Cell]:
        """Those of the first data set, number of labels and network that have any."""
        cells = self.selected(wanted)
        places = [(cell.dataset, cell.labels, cell.segmenter) for cell in cells]
        return [cell for cell, place in zip(cells, places, strict=True) if place == places[0]]

    def made(self, cell: Cell) -> Made:
        """The input group of a cell."""
        return self.groups[self.plan.cells[cell].group]

    def tested(self, cell: Cell, part: str = "test") -> list[Record]:
        """The images of `test`, `known` or a transfer set, everything of which is tested."""
        data = self.transfer[part] if part in self.transfer else self.made(cell).dataset
        return DatasetIndex.read(data).part(KNOWN if part == KNOWN else "test")

    def scores(
        self, cell: Cell, images: Sequence[Record], metrics: Sequence[str], part: str = "test"
    ) -> np.ndarray:
        """(n, K) scores of a cell on the images of a part, NaN where undefined."""
        known = part in evaluate.TESTED
        evaluation = self.cells[cell].evaluations["test" if known else part]
        path = evaluation / f"scores{evaluate.TESTED[part] if known else ''}.csv"
        rows = read_metrics(path, metrics, [image.id for image in images])
        return np.array([rows[image.id] for image in images])


def find_cell(
    task: Task, seed: int, made: Made | None, transfer: Mapping[str, Artifact | None], home: Home
) -> Scored | None:
    """A cell that is finished and was made from these inputs and settings; None if there is work to do."""
    if made is None or task.arm not in made.inputs:
        return None
    config, inputs = made.place(task.config), made.inputs[task.arm]
    key = train.key(config, inputs, task.arm, seed)
    segmenter = _finished(home.stage("segmenter"), key)
    segmenter = segmenter or _finished(_place_in_run(config, task.arm, seed), key)
    if segmenter is None:
        return None
    evaluations = {}
    for name, data in {"test": inputs.dataset, **transfer}.items():
        if data is None:
            return None
        scores = _finished(_evaluated(home, name), evaluate.key(config, data, segmenter))
        if scores is None:
            return None
        evaluations[name] = scores
    return Scored(segmenter, evaluations)


def _finished(folder: Path, key: StageKey) -> Artifact | None:
    """What was made from exactly this key; its files are not verified."""
    found = read_artifact(folder)
    return found if found is not None and found.digest == key.digest else None


def _pace_file(home: Home) -> Path:
    return home.stage(_PACE).with_suffix(".json")


def read_pace(home: Home) -> float | None:
    """Seconds of a training step of a finished cell; None if they were not measured."""
    path = _pace_file(home)
    try:
        return float(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}). Delete it.") from error
