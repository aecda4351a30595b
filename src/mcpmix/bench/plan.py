"""What a grid stands for: the input groups and cells that its values combine to, checked.

A cell is one training with its evaluation. An input group is what trainings read: a data set with so many
labels and, unless all its arms do without, one generator with its pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from mcpmix.bench.grid import ALL, Grid, Labels, Method, Selection, name_problems
from mcpmix.bench.state import REAL, Cell, Home, home_of
from mcpmix.config import Config
from mcpmix.config_file import Tree, merge, resolve_config
from mcpmix.core.errors import ConfigError, bullet_list
from mcpmix.segmenter.arms import needs_generator, needs_unlabelled


@dataclass(frozen=True)
class Task:
    """What a cell trains: the arm, its configuration, and the input group that it reads."""

    arm: str
    config: Config
    group: str


@dataclass(frozen=True)
class Group:
    """An input group: the configuration of its run, and which share of the images keeps its masks."""

    config: Config
    share: float | None = None


@dataclass(frozen=True)
class Plan:
    """All that a grid stands for, by name."""

    grid: Grid
    out: Path
    groups: Mapping[str, Group]
    cells: Mapping[Cell, Task]
    transfer: Mapping[str, Config]

    def home(self, cell: Cell) -> Home:
        """Where a cell's segmenter and evaluations are."""
        return home_of(self.out, cell)

    def selected(self, wanted: Selection) -> list[Cell]:
        """The cells of a selection, in the order of the grid."""
        return [cell for cell in self.cells if _fits(cell, wanted)]


def expand(grid: Grid, out: Path) -> Plan:
    """All groups and cells of a grid, checked.

    Raises:
        ConfigError: with every problem: unknown names, no cell at all, combinations that cannot be trained,
            settings that are wrong.
    """
    problems = list(name_problems(grid))
    if problems:
        raise ConfigError(bullet_list(f"grid {grid.name}: {len(problems)} problem(s)", problems))
    return _Expansion(grid, out).plan()


class _Expansion:
    """Collects groups, cells and problems while the combinations are gone through."""

    def __init__(self, grid: Grid, out: Path) -> None:
        self.grid, self.out = grid, out
        self.groups: dict[str, Group] = {}
        self.arms: dict[str, list[str]] = {}  # of each group
        self.cells: dict[Cell, Task] = {}
        self.problems: dict[str, None] = {}  # in their order, each once
        self._configs: dict[tuple[str, ...], Config | None] = {}

    def plan(self) -> Plan:
        grid = self.grid
        for block in grid.cells:
            axes = (
                block.datasets or grid.datasets,
                block.labels or grid.labels,
                block.generators or grid.generators,
                block.segmenters or grid.segmenters,
                block.arms or grid.arms,
                block.seeds or grid.seeds,
            )
            for values in product(*axes):
                self._add(*values)
        transfer = {
            name: self._resolve(("transfer", name), [grid.base, tree], self.out / "inputs" / "transfer", name)
            for name, tree in grid.transfer.items()
        }
        if not self.cells and not self.problems:
            self.problems["no cell: each of datasets, labels, segmenters, arms and seeds needs a value"] = (
                None
            )
        if self.problems:
            listed = list(self.problems)
            raise ConfigError(bullet_list(f"grid {grid.name}: {len(listed)} problem(s)", listed))
        groups = {}
        for name, group in self.groups.items():
            train = group.config.train.model_copy(
                update={"arms": tuple(self.arms[name]), "seeds": grid.seeds}
            )
            groups[name] = Group(group.config.model_copy(update={"train": train}), group.share)
        checked = {name: config for name, config in transfer.items() if config is not None}
        return Plan(grid, self.out, groups, self.cells, checked)

    def _add(
        self, dataset: str, labels: Labels, generator: str, segmenter: str, method: str, seed: int
    ) -> None:
        grid = self.grid
        chosen = grid.methods.get(method, Method(arm=method))
        made = grid.generators[generator]
        layers = [grid.base, grid.datasets[dataset], made or {}]
        place, label = self.out / "inputs" / dataset, label_name(labels)
        shared = self._resolve((dataset, label, generator), layers, place / label, generator)
        if shared is None:
            return
        try:
            inputs, share = with_labels(shared, labels)
        except ConfigError as error:
            self.problems[f"datasets.{dataset}, labels {labels}: {error}"] = None
            return
        pairs = needs_generator(inputs, chosen.arm)
        if pairs and made is None:
            self.problems[
                f"arm {method} trains on counterparts, and the generator {generator} makes none: give one in "
                "`generators`, or leave the arm out"
            ] = None
        if needs_unlabelled(chosen.arm) and not inputs.data.has_unlabelled and share is None:
            self.problems[
                f"arm {method} trains on unlabelled images, and the data set {dataset} has none: set "
                "data.unlabelled, or fewer `labels`"
            ] = None
        tree = [*layers, grid.segmenters[segmenter], chosen.settings]
        names = (dataset, label, generator, segmenter, method)
        config = self._resolve(names, tree, place / label, generator)
        if config is None:
            return
        cell = Cell(dataset, label, generator if pairs else REAL, segmenter, method, seed)
        # Arms without pairs read the data set of the first generator: it is the same in all.
        group = f"{dataset}/{label}/{generator}"
        self.groups.setdefault(group, Group(inputs, share))
        self.cells.setdefault(cell, Task(chosen.arm, config, group))
        arms = self.arms.setdefault(self.cells[cell].group, [])
        if chosen.arm not in arms:
            arms.append(chosen.arm)

    def _resolve(
        self, names: tuple[str, ...], layers: Sequence[Mapping[str, Any]], output: Path, name: str
    ) -> Config | None:
        """The configuration of these layers, once; its problems are kept."""
        if names not in self._configs:
            tree = {**layered(layers), "output": str(output), "name": name}
            try:
                self._configs[names] = resolve_config(tree, source=", ".join(names))
            except ConfigError as error:
                self._configs[names] = None
                self.problems |= dict.fromkeys(str(error).split("\n  - ")[1:] or [str(error)])
        return self._configs[names]


def layered(layers: Sequence[Mapping[str, Any]]) -> Tree:
    """Trees of settings merged, later ones over earlier ones; the presets of all of them are kept."""
    merged: Tree = {}
    presets: list[str] = []
    for layer in layers:
        given = layer.get("preset")
        presets += given if isinstance(given, list) else [] if given is None else [given]
        merged = merge(merged, layer)
    return merged | ({"preset": presets} if presets else {})


def with_labels(config: Config, labels: Labels) -> tuple[Config, float | None]:
    """The configuration with so many labelled images; a share of real images is left for later.

    How many images there are is known when they are split. A phantom draws as many patients as it takes.
    """
    if labels == ALL:
        return config, None
    data, plan = config.data, config.data.phantom
    if data.source != "phantom":
        if isinstance(labels, float):
            return config, labels
        return config.model_copy(update={"data": data.model_copy(update={"labelled": labels})}), None
    frames = plan.frames_per_patient
    wanted = round(labels * plan.train_patients) * frames if isinstance(labels, float) else int(labels)
    if wanted % frames or not wanted:
        raise ConfigError(
            f"a phantom labels whole patients of {frames} frames, so expected a multiple of {frames}, "
            f"got {wanted}"
        )
    drawn = plan.model_copy(update={"train_patients": wanted // frames})
    return config.model_copy(update={"data": data.model_copy(update={"phantom": drawn})}), None


def label_name(labels: Labels) -> str:
    """`all`, `44` or `5pc`: how labels appear in folders and tables."""
    return f"{100 * labels:g}pc" if isinstance(labels, float) else str(labels)


def _fits(cell: Cell, wanted: Selection) -> bool:
    labels = None if wanted.labels is None else [label_name(value) for value in wanted.labels]
    generators = None if wanted.generators is None else (*wanted.generators, REAL)
    pairs = (
        (cell.dataset, wanted.datasets),
        (cell.labels, labels),
        (cell.generator, generators),
        (cell.segmenter, wanted.segmenters),
        (cell.method, wanted.arms),
    )
    return all(values is None or value in values for value, values in pairs)
