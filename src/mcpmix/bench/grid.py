"""Grids: what to compare, as a file with a schema of its own around settings of a configuration."""

import re
from collections.abc import Collection, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mcpmix.config import NaturalInt, PositiveInt, Section
from mcpmix.config_file import Tree, merge, parse_overrides, parse_yaml, place_paths, read_yaml, validated
from mcpmix.core.errors import ConfigError, did_you_mean
from mcpmix.mixing.registry import STRATEGIES
from mcpmix.segmenter.arms import check_arms

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


class TableSpec(Selection):
    """A table of some cells."""

    kind: Literal[TABLES]  # type: ignore[valid-type]
    name: Name | None = None
    """Of its files; none: its kind."""
    title: str | None = None
    part: str = "test"
    """`test`, `known` (new images of groups that training knows), or a name of `transfer`."""
    published: str | None = None
    """The data set whose published figures stand beside; none: the one that the cells are about."""


class FigureSpec(Selection):
    """A figure of some cells."""

    kind: Literal[FIGURES]  # type: ignore[valid-type]
    name: Name | None = None
    """Of its file; none: its kind."""
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

    def label_of(self, method: str) -> str | None:
        """The name of a method for readers; None if it is a plain strategy."""
        found = self.methods.get(method)
        return None if found is None else found.label or f"{found.arm} ({method})"


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
        for part in _trees(tree):
            place_paths(part, Path(source).parent)
    changed, problems = parse_overrides(overrides)
    own = {key: value for key, value in changed.items() if key in Grid.model_fields}
    rest = {key: value for key, value in changed.items() if key not in own}
    return validated(
        Grid, merge(merge(tree, own), {"base": merge(_dict(tree.get("base")), rest)}), source, problems
    )


def _trees(tree: Tree) -> Iterator[Tree]:
    """The trees of settings in a grid that may hold paths."""
    yield _dict(tree.get("base"))
    for axis in ("datasets", "transfer"):
        yield from map(_dict, _dict(tree.get(axis)).values())


def _dict(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


# --- what is wrong with a grid by itself --------------------------------------------------------------------


def name_problems(grid: Grid) -> Iterator[str]:
    """Names that nothing is defined for, values given twice, and settings of an axis that are not its own."""
    yield from _axis_problems(grid)
    if len(set(grid.seeds)) < len(grid.seeds):
        yield f"seeds: {list(grid.seeds)} names one twice"
    for name, method in grid.methods.items():
        if name in STRATEGIES:
            yield f"methods.{name}: a strategy has this name; give it another one"
        yield from (f"methods.{name}: {text}" for text in check_arms([method.arm], {}))
    parts = ("test", "known", *grid.transfer)
    for number, table in enumerate(grid.tables):
        if table.part not in parts:
            yield f"tables.{number}.part: unknown part {table.part!r}; {did_you_mean(table.part, parts)}"
    for kind in ("tables", "figures"):
        names = [item.name or item.kind for item in getattr(grid, kind)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{kind}: two are called {name}, and would share their files; give one a `name`"
    yield from _foreign_sections(grid)


def _axis_problems(grid: Grid) -> Iterator[str]:
    """Names in lists of the grid that their axis does not have."""
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
    for where, axis, names in places:
        known = [str(item) for item in axes[axis]]
        for name in names:
            if name not in axes[axis]:
                yield f"{where}: unknown {axis.removesuffix('s')} {name!r}; {did_you_mean(str(name), known)}"
        if len(set(names)) < len(names):
            yield f"{where}: {list(names)} names one twice"


def _foreign_sections(grid: Grid) -> Iterator[str]:
    for axis, allowed in _SECTIONS.items():
        for name, entry in getattr(grid, axis).items():
            tree = entry.settings if isinstance(entry, Method) else entry or {}
            for section in tree:
                if section not in allowed:
                    yield f"{axis}.{name}: expected settings of {', '.join(allowed)}, got {section}"
