"""Grids: what to compare, as a file with a schema of its own, and the trainings that it stands for.

A cell is one training with its evaluation. An input group is what trainings read: a data set with so many
labels and, unless all its arms do without, one generator with its pairs.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mcpmix.bench.state import REAL, Cell, Home, home_of
from mcpmix.config import Config
from mcpmix.config_file import (
    Tree,
    merge,
    parse_overrides,
    parse_yaml,
    place_paths,
    read_yaml,
    resolve_config,
    validated,
)
from mcpmix.config_training import NaturalInt, PositiveInt, Section
from mcpmix.core.errors import ConfigError, bullet_list, did_you_mean
from mcpmix.mixing.registry import STRATEGIES
from mcpmix.report.arms import label_of
from mcpmix.segmenter.arms import check_arms, needs_generator, needs_unlabelled

ALL: Literal["all"] = "all"  # images keep their masks
_GRIDS = resources.files("mcpmix.bench") / "grids"
# What an axis may change. A segmenter that changed the data would train on inputs made for another cell.
_SECTIONS: dict[str, Collection[str]] = {
    "generators": ("depth", "generator", "adapt", "finetune", "pseudo", "synthesis", "editor"),
    "segmenters": ("segmenter", "train", "rla"),
    "methods": ("train", "rla"),
}

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Labels = Literal["all"] | PositiveInt | Annotated[float, Field(gt=0, lt=1)]
TABLES = ("mixing", "boundary", "generative", "ablation", "backbones", "schedules", "pairs")
FIGURES = ("distribution", "gates", "cases", "gradients", "labels", "cost")


class Selection(Section):
    """Some values of each axis; none: all of them."""

    datasets: tuple[str, ...] | None = None
    labels: tuple[Labels, ...] | None = None
    generators: tuple[str, ...] | None = None
    segmenters: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None


class Cells(Selection):
    """A part of the grid: all combinations of these values."""

    seeds: tuple[NaturalInt, ...] | None = None


class Shown(Selection):
    """What tables and figures have in common."""

    kind: str
    name: Name | None = None
    """Of its files; none: its kind."""

    @property
    def stem(self) -> str:
        """The name of its files, without their endings."""
        return self.name or self.kind


class TableSpec(Shown):
    """A table of some cells."""

    kind: Literal[TABLES]  # type: ignore[valid-type]
    title: str | None = None
    part: str = "test"
    """`test`, `known` (new images of groups that training knows), or a name of `transfer`."""
    published: str | None = None
    """The data set whose published figures stand beside; none: the one that the cells are about."""


class FigureSpec(Shown):
    """A figure of some cells."""

    kind: Literal[FIGURES]  # type: ignore[valid-type]
    epochs: PositiveInt = 40
    """Of the short trainings of `gradients`."""


class Method(Section):
    """A strategy with settings of its own, as an arm under another name."""

    arm: str
    label: str | None = None
    """Its name in tables; none: that of the strategy, with the name of the method."""
    settings: dict[str, Any] = Field(default={})


class Resources(Section):
    """What a cell takes of a machine. Results depend on `cpus`, the threads of a cell, by rounding only."""

    cpus: PositiveInt = 1
    gpus: float = Field(default=0.0, ge=0)
    """With ray: the share of a GPU."""
    jobs: NaturalInt = 0
    """With local: cells side by side; 0: as many as the cores allow."""
    retries: NaturalInt = 3
    """How often a cell is started again after its process was killed."""


class Grid(Section):
    """A whole comparison."""

    name: Name
    base: dict[str, Any]
    """What all cells share: settings of a configuration, `preset` among them."""
    datasets: dict[Name, dict[str, Any]] = Field(default={"data": {}}, min_length=1)
    """Settings by a name; those of the base come first. A `preset` adds to that of the base."""
    labels: tuple[Labels, ...] = (ALL,)
    """Training images that keep their masks: `all`, a number, or a share below 1."""
    generators: dict[Name, dict[str, Any] | None] = Field(default={"generator": {}}, min_length=1)
    """The same for stages 1 and 2; null: no generator, for arms that need none."""
    segmenters: dict[Name, dict[str, Any]] = Field(default={"segmenter": {}}, min_length=1)
    methods: dict[Name, Method] = Field(default={})
    arms: tuple[str, ...]
    """Strategies, and names of `methods`."""
    seeds: tuple[NaturalInt, ...]
    cells: tuple[Cells, ...] = (Cells(),)
    """Which combinations are trained; by default all."""
    transfer: dict[Name, dict[str, Any]] = Field(default={})
    """Further data sets on all of whose images every segmenter is tested."""
    tables: tuple[TableSpec, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    engine: Resources = Resources()

    @field_validator("tables", "figures", mode="before")
    @classmethod
    def _kinds_by_name(cls, value: object) -> object:
        """`ablation` stands for `{kind: ablation}`."""
        entries = value if isinstance(value, list | tuple) else ()
        return tuple({"kind": item} if isinstance(item, str) else item for item in entries) or value

    def label_of(self, method: str) -> str:
        """The name of a method or plain strategy for readers."""
        found = self.methods.get(method)
        return label_of(method) if found is None else found.label or f"{found.arm} ({method})"


# --- from a file to a grid ----------------------------------------------------------------------------------


def grid_names() -> list[str]:
    """Names of the grids that ship with the package."""
    return sorted(Path(file.name).stem for file in _GRIDS.iterdir() if file.name.endswith(".yaml"))


def load_grid(source: str, overrides: Sequence[str] = ()) -> Grid:
    """Read a grid by its name or file; relative paths in a file are relative to it.

    Args:
        source: a name of `grid_names`, or a YAML file.
        overrides: `key.key=value`: keys of the grid (`seeds=[0]`), otherwise settings of its base.
    """
    if source in grid_names():
        tree = parse_yaml((_GRIDS / f"{source}.yaml").read_text(encoding="utf-8"), f"grid {source}")
        tree.setdefault("name", source)
    elif not Path(source).exists() and not re.search(r"[/\\]|\.ya?ml$", source):
        raise ConfigError(f"No grid {source}: {did_you_mean(source, grid_names())} A file ends in .yaml.")
    else:
        tree = read_yaml(Path(source))
        tree.setdefault("name", Path(source).stem)
        settings = [tree.get("base"), *_dict(tree.get("datasets")).values()]
        for part in [*settings, *_dict(tree.get("transfer")).values()]:
            place_paths(_dict(part), Path(source).parent)
    changed, problems = parse_overrides(overrides)
    own = {key: value for key, value in changed.items() if key in Grid.model_fields}
    rest = {key: value for key, value in changed.items() if key not in own}
    return validated(
        Grid, merge(merge(tree, own), {"base": merge(_dict(tree.get("base")), rest)}), source, problems
    )


def _dict(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


# --- from a grid to its cells -------------------------------------------------------------------------------


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
        # Arms that train without a generator belong to all of them.
        generators = None if wanted.generators is None else (*wanted.generators, REAL)
        labels = None if wanted.labels is None else [label_name(value) for value in wanted.labels]
        chosen = (wanted.datasets, labels, generators, wanted.segmenters, wanted.arms)
        return [
            cell
            for cell in self.cells
            if all(
                values is None or value in values
                for value, values in zip((*cell.place, cell.method), chosen, strict=True)
            )
        ]


def expand(grid: Grid, out: Path) -> Plan:
    """All groups and cells of a grid, checked.

    Raises:
        ConfigError: with every problem: unknown names, no cell at all, combinations that cannot be trained,
            settings that are wrong.
    """
    problems = list(name_problems(grid))
    if not problems:
        found = _Expansion(grid, out)
        for block in grid.cells:
            axes = [
                getattr(block, axis) or getattr(grid, axis)
                for axis in ("datasets", "labels", "generators", "segmenters", "arms", "seeds")
            ]
            for values in product(*axes):
                found.add(*values)
        place = out / "inputs" / "transfer"
        transfer = {
            name: config
            for name, tree in grid.transfer.items()
            if (config := found.resolve(("transfer", name), [grid.base, tree], place, name)) is not None
        }
        problems = list(found.problems)
        if not found.cells and not problems:
            problems = ["no cell: each of datasets, labels, segmenters, arms and seeds needs a value"]
    if problems:
        raise ConfigError(bullet_list(f"grid {grid.name}: {len(problems)} problem(s)", problems))
    groups = {}
    for name, group in found.groups.items():
        # In the order of the cells, each once.
        arms = dict.fromkeys(task.arm for task in found.cells.values() if task.group == name)
        train = group.config.train.model_copy(update={"arms": tuple(arms), "seeds": grid.seeds})
        groups[name] = replace(group, config=group.config.model_copy(update={"train": train}))
    return Plan(grid, out, groups, found.cells, transfer)


class _Expansion:
    """Collects groups, cells and problems while the combinations are gone through."""

    def __init__(self, grid: Grid, out: Path) -> None:
        self.grid, self.out = grid, out
        self.groups: dict[str, Group] = {}
        self.cells: dict[Cell, Task] = {}
        self.problems: dict[str, None] = {}  # in their order, each once
        self._configs: dict[tuple[str, ...], Config | None] = {}

    def add(
        self, dataset: str, labels: Labels, generator: str, segmenter: str, method: str, seed: int
    ) -> None:
        grid, label = self.grid, label_name(labels)
        chosen = grid.methods.get(method, Method(arm=method))
        made = grid.generators[generator]
        layers = [grid.base, grid.datasets[dataset], made or {}]
        place = self.out / "inputs" / dataset / label
        shared = self.resolve((dataset, label, generator), layers, place, generator)
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
        layers += [grid.segmenters[segmenter], chosen.settings]
        config = self.resolve((dataset, label, generator, segmenter, method), layers, place, generator)
        cell = Cell(dataset, label, generator if pairs else REAL, segmenter, method, seed)
        # Arms without pairs read the data set of the first generator: it is the same in all.
        if config is not None and cell not in self.cells:
            group = f"{dataset}/{label}/{generator}"
            self.groups.setdefault(group, Group(inputs, share))
            self.cells[cell] = Task(chosen.arm, config, group)

    def resolve(
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


def name_problems(grid: Grid) -> Iterator[str]:
    """Names that nothing is defined for, values given twice, and settings of an axis that are not its own."""
    yield from _axis_problems(grid)
    for name, method in grid.methods.items():
        if name in STRATEGIES:
            yield f"methods.{name}: a strategy has this name; give it another one"
        yield from (f"methods.{name}: {text}" for text in check_arms([method.arm], {}))
    for kind in ("tables", "figures"):
        stems = [item.stem for item in getattr(grid, kind)]
        for name in sorted({name for name in stems if stems.count(name) > 1}):
            yield f"{kind}: two are called {name}, and would share their files; give one a `name`"
    for axis, allowed in _SECTIONS.items():
        for name, entry in getattr(grid, axis).items():
            tree = entry.settings if isinstance(entry, Method) else entry or {}
            for section in tree:
                if section not in allowed:
                    yield f"{axis}.{name}: expected settings of {', '.join(allowed)}, got {section}"


def _axis_problems(grid: Grid) -> Iterator[str]:
    """Names in lists of the grid that their axis does not have, or that stand there twice."""
    axes: dict[str, Collection[Any]] = {
        "datasets": grid.datasets,
        "labels": grid.labels,
        "generators": grid.generators,
        "segmenters": grid.segmenters,
        "arms": [*STRATEGIES, *grid.methods],  # a table may name arms that this grid leaves out
    }
    places: list[tuple[str, str, Sequence[Any]]] = [("arms", "arms", grid.arms)]
    for kind in ("cells", "tables", "figures"):
        for number, item in enumerate(getattr(grid, kind)):
            places += [(f"{kind}.{number}.{axis}", axis, getattr(item, axis) or ()) for axis in axes]
    axes |= {"seeds": grid.seeds, "part": ("test", "known", *grid.transfer)}
    places.append(("seeds", "seeds", grid.seeds))
    places += [(f"tables.{number}.part", "part", (table.part,)) for number, table in enumerate(grid.tables)]
    for where, axis, names in places:
        known = [str(item) for item in axes[axis]]
        for name in names:
            if name not in axes[axis]:
                yield f"{where}: unknown {axis.removesuffix('s')} {name!r}; {did_you_mean(str(name), known)}"
        if len(set(names)) < len(names):
            yield f"{where}: {list(names)} names one twice"


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
