"""Runs as the files that they leave say: state, stages, progress, figures, warnings, settings.

There is no database: a look at a run reads its manifests, its logs and its status file. All of it is read
while runs are being written, so what is missing or half there is not an error.
"""

import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from mcpmix.config_file import preset_names, resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.core.stage_folder import MANIFEST, Artifact, digest_of
from mcpmix.core.status import STATUS
from mcpmix.report.arms import label_of

_CONFIG = "config.yaml"
_DEPTH = 4  # folders below the one that was named in which runs are looked for
_SINGLE = ("dataset", "unlabelled", "depth", "base", "judge", "pseudo", "generator", "pairs", "edits")
_ALWAYS = ("dataset", "segmenter", "evaluation", "report")  # other stages are shown if they have begun
_QUIET_SECONDS = 900  # on another machine, a run that has written nothing for so long counts as stopped
_PLACES = {"source", "root", "images", "masks", "groups", "unlabelled"}  # of data: no departure from a preset

Tree = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A stage as a step of the flow."""

    name: str
    state: str  # finished, unfinished or missing
    note: str  # for stages of several trainings, how many are finished
    reused: bool  # finished before the last call of the run began
    facts: Mapping[str, Any]
    digest: str = ""


@dataclass(frozen=True)
class Settings:
    """A run's configuration against the preset that is nearest to it."""

    preset: str
    differences: list[tuple[str, Any, Any]]  # setting, value of the preset, value of the run
    text: str


class RunView:
    """One look at a run; what it has read stays as it was.

    Args:
        name: its path below the folder of all runs.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.id = digest_of(name)[:12]

    @cached_property
    def config(self) -> Tree:
        """The settings as written at the start of the run; empty if they cannot be read."""
        return _read_yaml(self.folder / _CONFIG, _stamp(self.folder / _CONFIG))

    @cached_property
    def status(self) -> Tree:
        """What the run said last about itself; empty for runs of earlier versions."""
        return _read_json(self.folder / STATUS)

    @cached_property
    def arms(self) -> list[str]:
        """The configured arms."""
        return [str(arm) for arm in self.config.get("train", {}).get("arms", ())]

    @cached_property
    def seeds(self) -> list[int]:
        """The configured seeds."""
        return [int(seed) for seed in self.config.get("train", {}).get("seeds", ())]

    @property
    def size(self) -> int:
        """Side of the images in training, pixels."""
        return int(self.config.get("data", {}).get("size", 128))

    def artifact(self, stage: str) -> Artifact | None:
        """A finished stage; None if it is not finished."""
        manifest = _read_json(self.folder / stage / MANIFEST)
        return Artifact(self.folder / stage, manifest) if "digest" in manifest else None

    def cells(self, stage: str) -> dict[tuple[str, int], Path]:
        """The folders of "segmenter" or "evaluation" that exist, finished or not, by arm and seed."""
        found = {}
        for arm in self.arms:
            for seed in self.seeds:
                place = self.folder / stage / arm / f"seed-{seed}"
                partial = place.with_name(f"{place.name}.partial")
                if (place / MANIFEST).exists():
                    found[arm, seed] = place
                elif partial.is_dir():
                    found[arm, seed] = partial
        return found

    def finished_cells(self, stage: str) -> dict[tuple[str, int], Artifact]:
        """Those that are finished."""
        found = {}
        for (arm, seed), place in self.cells(stage).items():
            artifact = self.artifact(place.relative_to(self.folder).as_posix())
            if artifact is not None and not place.name.endswith(".partial"):
                found[arm, seed] = artifact
        return found

    # --- what is going on ---------------------------------------------------------------------------------

    @cached_property
    def state(self) -> tuple[str, str]:
        """`finished`, `running`, `stopped` or `failed`, and a message that may be empty."""
        said = str(self.status.get("state", ""))
        if said == "failed":
            return said, str(self.status.get("message", ""))
        if said == "running":
            if _lives(self.status, _stamp(self.folder / STATUS)):
                return said, ""
            return "stopped", "The process has ended without a word. The same command resumes it."
        if said == "stopped":
            return said, "The same command resumes it."
        if self.artifact("report") is not None:
            return "finished", ""
        if said == "finished":
            return said, f"as far as {self.status.get('until')}, which was all that was asked for"
        newest = max((_stamp(path) for path in self.folder.glob("**/*.partial/*")), default=0.0)
        if time.time() - newest < _QUIET_SECONDS:
            return "running", ""
        return "stopped", "The same command resumes it."

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages in the order of the run: those that every run has, and others that have begun."""
        started = float(self.status.get("started", math.inf))
        found = []
        for name in (*_SINGLE, "segmenter", "evaluation", "report"):
            if name in ("segmenter", "evaluation"):
                found.append(self._many(name, started))
                continue
            artifact, partial = self.artifact(name), self.folder / f"{name}.partial"
            if artifact is not None:
                reused = _stamp(artifact / MANIFEST) < started
                facts = _plain_facts(artifact.manifest.get("counts", {}))
                found.append(Stage(name, "finished", "", reused, facts, artifact.digest))
            elif partial.is_dir():
                found.append(Stage(name, "unfinished", "", False, {}))
            elif name in _ALWAYS:
                found.append(Stage(name, "missing", "", False, {}))
        return found

    def _many(self, name: str, started: float) -> Stage:
        """A stage that is made once for each arm and seed."""
        wanted, begun, done = len(self.arms) * len(self.seeds), self.cells(name), self.finished_cells(name)
        state = "finished" if wanted and len(done) == wanted else "unfinished" if begun else "missing"
        reused = state == "finished" and all(_stamp(item / MANIFEST) < started for item in done.values())
        return Stage(name, state, f"{len(done)} of {wanted}", reused, {})

    @cached_property
    def progress(self) -> float:
        """Share of the work that is done, in [0, 1]: stages, and trainings each for themselves."""
        cells = len(self.arms) * len(self.seeds)
        units, done = 0.0, 0.0
        for stage in self.stages:
            weight = cells if stage.name in ("segmenter", "evaluation") else 1
            units += weight
            done += len(self.finished_cells(stage.name)) if weight != 1 else stage.state == "finished"
        running = self.tasks if self.state[0] == "running" else []
        done += sum(task["done"] / max(task["total"], 1) for task in running)
        return min(1.0, done / units) if units else 0.0

    @property
    def tasks(self) -> list[Tree]:
        """What it works on: title, total, first, done, since."""
        tasks = self.status.get("tasks", [])
        return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []

    @cached_property
    def seconds_left(self) -> float | None:
        """Of the open tasks and the trainings after them, at the pace so far; None while it is not known."""
        if self.state[0] != "running" or not self.tasks:
            return None
        now, lefts, whole = time.time(), [], []
        for task in self.tasks:
            steps = task["done"] - task["first"]
            if steps <= 0:
                return None
            pace = (float(self.status.get("now", now)) - task["since"]) / steps
            lefts.append(max(0.0, pace * (task["total"] - task["done"])))
            whole.append(pace * task["total"])
        waiting = 0
        if any(" seed " in task["title"] for task in self.tasks):  # trainings or evaluations, side by side
            stage = "evaluation" if self.tasks[0]["title"].startswith("evaluate") else "segmenter"
            wanted = len(self.arms) * len(self.seeds)
            waiting = max(0, wanted - len(self.finished_cells(stage)) - len(self.tasks))
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
                return means[best], f"{label_of(best)}, {where}"
        return None

    @cached_property
    def warnings(self) -> list[tuple[str, str]]:
        """Where and what, of all finished stages."""
        found = []
        artifacts = [(name, self.artifact(name)) for name in _SINGLE]
        for stage in ("segmenter", "evaluation"):
            cells = self.finished_cells(stage).items()
            artifacts += [(f"{label_of(arm)}, seed {seed}", item) for (arm, seed), item in cells]
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
    def age(self) -> float:
        """Seconds since the run was last started."""
        return max(0.0, time.time() - float(self.status.get("started", _stamp(self.folder / _CONFIG))))

    @cached_property
    def settings(self) -> Settings:
        """The configuration, and what differs from the nearest preset."""
        path = self.folder / _CONFIG
        preset, differences = _nearest(json.dumps(self.config, default=str, sort_keys=True))
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return Settings(preset, differences, text)


class Runs:
    """All runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def all(self) -> list[RunView]:
        """Every run, the one started last first."""
        found = [RunView(path, self._name(path)) for path in _search(self.folder, _DEPTH)]
        return sorted(found, key=lambda run: (run.age, run.name))

    def get(self, identity: str) -> RunView:
        """The run with an id; a KeyError if there is none. No path is made from what a request says."""
        for path in _search(self.folder, _DEPTH):
            run = RunView(path, self._name(path))
            if run.id == identity:
                return run
        raise KeyError(identity)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.name


def _search(folder: Path, depth: int) -> Iterator[Path]:
    """Folders of runs, not following links; a run holds no other run."""
    if (folder / _CONFIG).is_file() and any(
        (folder / name).exists() for name in (STATUS, "dataset", "dataset.partial")
    ):
        yield folder
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


def _lives(status: Mapping[str, Any], written: float) -> bool:
    """Whether the process that wrote a status still works."""
    if status.get("host") != socket.gethostname():
        return time.time() - written < _QUIET_SECONDS
    try:
        os.kill(int(status["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, KeyError, ValueError, TypeError, OverflowError):
        return False
    return True


def _stamp(path: Path) -> float:
    """When a file was changed last; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_json(path: Path) -> Tree:
    """A JSON object; empty if it is not there, or not readable at this moment."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=512)
def _read_yaml(path: Path, _stamp_of_file: float) -> Tree:
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain_facts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a manifest that fit on a line."""
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in counts.items()
        if isinstance(value, int | float | str) and 0 < len(str(value)) < 40
    }


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
