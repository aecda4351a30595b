"""What a grid leaves for those who watch it: its cells, which of them are finished, why others failed.

Nothing heavy is imported here, so that a page can show a grid at once. The work does not depend on these
files: `mcpmix bench` looks at the stages themselves.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.files import make_folder, read_json, write_json

GRID = "grid.json"
"""The grid itself; a folder with this file belongs to a grid."""
VERDICT = "verdict"
"""Where `mcpmix verdict` keeps its grid, in the folder of a run."""
_CELLS, _FAILURES = "cells.json", "failures.json"
REAL = "real"  # the generator of arms that train without one


@dataclass(frozen=True, order=True)
class Cell:
    """One training with its evaluation, by its place in the grid."""

    dataset: str
    labels: str
    generator: str  # `REAL` for arms that train without one
    segmenter: str
    method: str
    seed: int

    @property
    def place(self) -> tuple[str, str, str, str]:
        """All but method and seed."""
        return self.dataset, self.labels, self.generator, self.segmenter

    @property
    def name(self) -> str:
        """For messages and lists of results."""
        return "/".join([*self.place, self.method, f"seed-{self.seed}"])


@dataclass(frozen=True)
class Home:
    """The stage folders of a cell, laid out as those of a run."""

    folder: Path
    tail: str

    def stage(self, name: str) -> Path:
        """The folder of `segmenter`, `evaluation` or `transfer/NAME`."""
        return self.folder / name / self.tail

    @property
    def epochs_done(self) -> int:
        """Epochs that an unfinished training has behind it."""
        folder = self.stage("segmenter")
        try:
            return (folder.with_name(f"{folder.name}.partial") / "log.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


def home_of(out: Path, cell: Cell) -> Home:
    """Where a cell of the grid in a folder has its stages."""
    return Home(out / "cells" / Path(*cell.place), f"{cell.method}/seed-{cell.seed}")


@dataclass(frozen=True)
class Listed:
    """A cell as the driver has left word of it; paths are relative to the grid's folder."""

    cell: Cell
    label: str  # of the method, for readers
    group: str  # the input group that it reads
    inputs: str  # the folder of that group's run
    epochs: int
    segmenter: str | None  # the folder of its network; None while there is work to do


def list_cells(out: Path, cells: list[Listed]) -> None:
    """Write down all cells, whole or not at all."""
    make_folder(out)
    write_json(out / _CELLS, [asdict(item) for item in cells])


def listed_cells(out: Path) -> list[Listed]:
    """All cells in the order of the grid; none if there is no list, or not one of this version."""
    try:
        return [Listed(**{**row, "cell": Cell(**row["cell"])}) for row in read_json(out / _CELLS)]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def relative(out: Path, folder: Path) -> str:
    """A folder as seen from that of the grid."""
    return Path(os.path.relpath(folder, out)).as_posix()


def write_failures(out: Path, failures: Mapping[str, str]) -> None:
    """Write down what has failed, by name, and why; nothing: take the list away."""
    if failures:
        write_json(out / _FAILURES, failures)
    else:
        (out / _FAILURES).unlink(missing_ok=True)


def read_failures(out: Path) -> dict[str, str]:
    """What has failed in the last run: cells and inputs by name, and why."""
    try:
        found: Any = read_json(out / _FAILURES)
    except (OSError, ValueError):
        return {}
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}
