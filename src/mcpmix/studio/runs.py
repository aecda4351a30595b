"""Runs as the files that they leave say: state, stages, progress, figures, warnings, settings.

There is no database: a look at a run reads its manifests, its logs and its status file. All of it is read
while runs are being written, so what is missing or half there is not an error.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from mcpmix.bench.state import GRID, VERDICT, Listed
from mcpmix.config_file import preset_names, resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.core.progress import STATUS
from mcpmix.core.stage_folder import MANIFEST, Artifact
from mcpmix.report.arms import Arm, arms_of
from mcpmix.studio.grids import GridView
from mcpmix.studio.reading import RESUMES, Tree, Watched, is_fresh, look_up, read_manifest, stamp

_CONFIG = "config.yaml"
_DEPTH = 4  # folders below the one that was named in which runs are looked for
_SINGLE = ("dataset", "unlabelled", "depth", "base", "judge", "pseudo", "generator", "pairs", "edits")
_MANY = ("segmenter", "evaluation")  # made once for each arm and seed
_ALWAYS = ("dataset", "segmenter", "evaluation", "report")  # other stages are shown if they have begun
_PLACES = {"source", "root", "images", "masks", "groups", "unlabelled"}  # of data: no departure from a preset


@dataclass(frozen=True)
class Stage:
    """A stage as a step of the flow."""

    name: str
    state: str  # finished, unfinished or missing
    note: str  # for stages of several trainings, how many are finished
    reused: bool  # finished before the last call of the run began
    facts: Mapping[str, Any]


class RunView(Watched):
    """One look at a run.

    Args:
        grid: whose input group this run makes; the cells that read it are shown as its trainings.
        group: the name of the group.
    """

    def __init__(self, folder: Path, name: str, grid: GridView | None = None, group: str = "") -> None:
        super().__init__(folder, name, _CONFIG)
        self.grid, self.group = grid, group

    def anew(self) -> "RunView":
        """Another look at the same run."""
        grid = None if self.grid is None else self.grid.anew()
        return RunView(self.folder, self.name, grid, self.group)

    @cached_property
    def config(self) -> Tree:
        """The settings as written at the start of the run; empty if they cannot be read."""
        return _read_yaml(self.folder / _CONFIG, stamp(self.folder / _CONFIG))

    @cached_property
    def lent(self) -> dict[tuple[str, int], Listed]:
        """The cells of the grid that train on what this run has made, by name and seed."""
        return {} if self.grid is None else self.grid.trainings(self.group)

    @cached_property
    def trainings(self) -> list[tuple[str, int]]:
        """Arm and seed of all trainings that are to be made."""
        train = self.config.get("train", {})
        own = ((str(arm), int(seed)) for arm in train.get("arms", ()) for seed in train.get("seeds", ()))
        return list(self.lent if self.grid is not None else own)

    @property
    def arms(self) -> list[str]:
        """The arms in their order."""
        return list(dict.fromkeys(arm for arm, _ in self.trainings))

    @property
    def seeds(self) -> list[int]:
        """The seeds in their order."""
        return list(dict.fromkeys(seed for _, seed in self.trainings))

    @cached_property
    def named_arms(self) -> tuple[Arm, ...]:
        """The arms with their labels and colours."""
        labels = {name: item.label for (name, _), item in self.lent.items()}
        return tuple(replace(arm, label=labels.get(arm.name, arm.label)) for arm in arms_of(self.arms))

    def label(self, arm: str) -> str:
        """What readers call an arm."""
        return next(found.label for found in self.named_arms if found.name == arm)

    @property
    def size(self) -> int:
        """Side of the images in training, pixels."""
        return int(self.config.get("data", {}).get("size", 128))

    def artifact(self, stage: str) -> Artifact | None:
        """A finished stage; None if it is not finished."""
        return _finished(self.folder / stage)

    def cells(self, stage: str) -> dict[tuple[str, int], Path]:
        """The folders of "segmenter" or "evaluation" that exist, finished or not, by arm and seed."""
        found = {}
        for arm, seed in self.trainings:
            if self.grid is None:
                place = self.folder / stage / arm / f"seed-{seed}"
            else:
                place = self.grid.place(self.lent[arm, seed], stage)
            partial = place.with_name(f"{place.name}.partial")
            if (place / MANIFEST).exists():
                found[arm, seed] = place
            elif partial.is_dir():
                found[arm, seed] = partial
        return found

    def finished_cells(self, stage: str) -> dict[tuple[str, int], Artifact]:
        """Those that are finished."""
        places = {key: place for key, place in self.cells(stage).items() if place.suffix != ".partial"}
        return {key: made for key, place in places.items() if (made := _finished(place)) is not None}

    # --- what is going on ---------------------------------------------------------------------------------

    @cached_property
    def state(self) -> tuple[str, str]:
        """`finished`, `running`, `stopped` or `failed`, and a message that may be empty."""
        said, message = self.said
        if said in ("failed", "running", "stopped"):
            return said, message
        if self.grid is not None:
            done, wanted = len(self.finished_cells("evaluation")), len(self.trainings)
            return ("finished", "") if done == wanted else (self.grid.state[0], f"{done} of {wanted} cells")
        if self.artifact("report") is not None:
            return "finished", ""
        if said == "finished":
            return said, f"as far as {self.status.get('until')}, which was all that was asked for"
        newest = max((stamp(path) for path in self.folder.glob("**/*.partial/*")), default=0.0)
        return ("running", "") if is_fresh(newest) else ("stopped", RESUMES)

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages in the order of the run: those that every run has, and others that have begun."""
        started = float(self.status.get("started", math.inf))
        found = []
        for name in (*_SINGLE, *_MANY, "report"):
            note, facts, artifact = "", {}, self.artifact(name)
            if name in _MANY:
                made, wanted = list(self.finished_cells(name).values()), len(self.trainings)
                note, begun = f"{len(made)} of {wanted}", bool(self.cells(name))
            else:
                made, wanted = [] if artifact is None else [artifact], 1
                begun = (self.folder / f"{name}.partial").is_dir()
            if artifact is not None:
                facts = {  # those that fit on a line
                    key: round(value, 3) if isinstance(value, float) else value
                    for key, value in artifact.manifest.get("counts", {}).items()
                    if isinstance(value, int | float | str) and 0 < len(str(value)) < 40
                }
            state = "finished" if 0 < wanted == len(made) else "unfinished" if begun else "missing"
            reused = state == "finished" and all(stamp(item / MANIFEST) < started for item in made)
            shown = name in _ALWAYS and (name != "report" or self.grid is None)  # a grid has its own page
            if shown or state != "missing":
                found.append(Stage(name, state, note, reused, facts))
        return found

    @cached_property
    def progress(self) -> float:
        """Share of the work that is done, in [0, 1]: stages, and trainings each for themselves."""
        units, done = 0.0, 0.0
        for stage in self.stages:
            many = stage.name in _MANY
            units += len(self.trainings) if many else 1
            done += len(self.finished_cells(stage.name)) if many else stage.state == "finished"
        running = self.tasks if self.state[0] == "running" else []
        done += sum(task["done"] / max(task["total"], 1) for task in running)
        return min(1.0, done / units) if units else 0.0

    @cached_property
    def seconds_left(self) -> float | None:
        """Of the open tasks and the trainings after them, at the pace so far; None while it is not known."""
        if self.state[0] != "running" or not self.tasks:
            return None
        lefts, whole = [], []
        for task in self.tasks:
            pace = self.pace(task)
            if pace is None:
                return None
            lefts.append(max(0.0, pace * (task["total"] - task["done"])))
            whole.append(pace * task["total"])
        waiting = 0
        if any(" seed " in task["title"] for task in self.tasks):  # trainings or evaluations, side by side
            stage = "evaluation" if self.tasks[0]["title"].startswith("evaluate") else "segmenter"
            waiting = max(0, len(self.trainings) - len(self.finished_cells(stage)) - len(self.tasks))
        return max(lefts) + waiting * sum(whole) / len(whole) / len(whole)

    # --- what came out --------------------------------------------------------------------------------------

    @cached_property
    def best(self) -> tuple[float, str] | None:
        """Highest DSC of an arm, the mean over its seeds, and where: on test images if there are scores."""
        for stage, key, where in (
            ("evaluation", "dsc", "test"),
            ("segmenter", "validation_dsc", "validation"),
        ):
            values: dict[str, list[float]] = {}
            for (arm, _), artifact in self.finished_cells(stage).items():
                value = artifact.manifest.get("counts", {}).get(key)
                if isinstance(value, int | float) and math.isfinite(value):
                    values.setdefault(arm, []).append(float(value))
            if values:
                means = {arm: sum(found) / len(found) for arm, found in values.items()}
                best = max(means, key=lambda arm: means[arm])
                return means[best], f"{self.label(best)}, {where}"
        return None

    @cached_property
    def warnings(self) -> list[tuple[str, str]]:
        """Where and what, of all finished stages."""
        found = []
        artifacts = [(name, self.artifact(name)) for name in _SINGLE]
        for stage in _MANY:
            cells = self.finished_cells(stage).items()
            artifacts += [(f"{self.label(arm)}, seed {seed}", item) for (arm, seed), item in cells]
        for where, artifact in artifacts:
            counts = artifact.manifest.get("counts", {}) if artifact is not None else {}
            found += [(where, str(text)) for text in counts.get("warnings", ())]
            if counts.get("leaks"):
                found.append((where, f"leaks, so the figures are too good: {counts['leaks']}"))
        return found

    @property
    def data(self) -> str:
        """Where its images come from."""
        data = self.config.get("data", {})
        return str(data.get("root") or data.get("images") or data.get("source") or "?")

    @property
    def config_text(self) -> str:
        """The file of its settings; empty if there is none."""
        path = self.folder / _CONFIG
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def nearest_preset(self) -> tuple[str, list[tuple[str, Any, Any]]]:
        """Its name, and what differs from it: setting, value of the preset, value of the run."""
        return _nearest(json.dumps(self.config, default=str, sort_keys=True))


class Runs:
    """All runs and grids below a folder. No path is made from what a request says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._known: dict[str, RunView] = {}

    def all(self) -> list[RunView]:
        """Every run but the inputs of grids, the one started last first."""
        found = [RunView(path, self._name(path)) for path in self._folders(_is_run)]
        return sorted(found, key=lambda run: (run.age, run.name))

    def grids(self) -> list[GridView]:
        """Every grid, the one started last first."""
        found = [GridView(path, self._name(path), self.folder) for path in self._folders(_is_grid)]
        return sorted(found, key=lambda grid: (grid.age, grid.name))

    def members(self, grid: GridView) -> list[RunView]:
        """The runs that make the inputs of a grid, with its cells as their trainings."""
        return [RunView(path, f"{grid.name}/{group}", grid, group) for group, path in grid.groups.items()]

    def get(self, identity: str) -> RunView:
        """The run with an id; an AbsentError if there is none."""
        known = self._known.get(identity)
        if known is None or not known.folder.is_dir():
            inputs = [run for grid in self.grids() for run in self.members(grid)]
            self._known = {run.id: run for run in [*self.all(), *inputs]}
            known = look_up(self._known, identity)
        return known.anew()

    def grid(self, identity: str) -> GridView:
        """The grid with an id; an AbsentError if there is none."""
        return look_up({grid.id: grid for grid in self.grids()}, identity)

    def _folders(self, wanted: Callable[[Path], bool]) -> list[Path]:
        return [path for path in _search(self.folder, _DEPTH) if wanted(path)]

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.name


def _is_run(folder: Path) -> bool:
    begun = (STATUS, "dataset", "dataset.partial")
    return (folder / _CONFIG).is_file() and any((folder / name).exists() for name in begun)


def _is_grid(folder: Path) -> bool:
    return (folder / GRID).is_file()


def _search(folder: Path, depth: int) -> Iterator[Path]:
    """Folders of runs and grids, not following links; a run holds no other run, but perhaps a verdict."""
    if _is_run(folder) or _is_grid(folder):
        yield folder
        if _is_grid(folder / VERDICT) and not (folder / VERDICT).is_symlink():
            yield folder / VERDICT
        return
    if depth == 0:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # vanished meanwhile, or not ours to read
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _search(Path(entry.path), depth - 1)


def _finished(folder: Path) -> Artifact | None:
    """The finished stage in a folder; None if it is not finished."""
    manifest = read_manifest(folder)
    return Artifact(folder, manifest) if "digest" in manifest else None


@lru_cache(maxsize=512)
def _read_yaml(path: Path, _written: float) -> Tree:
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """`train.epochs` and its value, for all settings of a configuration."""
    for name, value in tree.items():
        place = f"{path}.{name}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from flat(value, place)
        else:
            yield place, value


@lru_cache(maxsize=64)
def _nearest(config: str) -> tuple[str, list[tuple[str, Any, Any]]]:
    """The preset with the fewest settings that differ, and these; name and places of files do not count."""
    tree: Tree = json.loads(config)
    given = dict(flat(tree))
    places = {name: value for name, value in tree.get("data", {}).items() if name in _PLACES}
    best: tuple[str, list[tuple[str, Any, Any]]] | None = None
    for preset in preset_names():
        try:
            start = resolve_config({"preset": preset, "data": places}).model_dump(mode="json")
        except ConfigError:  # cannot be the start of this run
            continue
        usual = dict(flat(start))
        differences = [
            (name, usual.get(name), given.get(name))
            for name in sorted(usual.keys() | given.keys())
            if name not in ("name", "output") and usual.get(name) != given.get(name)
        ]
        if best is None or len(differences) < len(best[1]):
            best = preset, differences
    return best if best is not None and tree else ("none", [])
