"""Grids of `mcpmix bench` as the files that they leave say: how their cells stand, and their tables."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcpmix.bench.state import GRID, REAL, Cell, Listed, home_of, listed_cells, read_failures
from mcpmix.core.stage_folder import MANIFEST
from mcpmix.data.splits import KNOWN
from mcpmix.studio.reading import RESUMES, Tree, Watched, read_object, stamp

_PAGES = ("index.html", "verdict.html")


@dataclass(frozen=True)
class Standing:
    """How far a cell is."""

    cell: Cell
    state: str  # finished, failed, begun or waiting
    note: str = ""  # epochs of those that have begun, the message of those that failed
    share: float = 0.0  # of its training that is done


class GridView(Watched):
    """One look at a grid.

    Args:
        root: the folder of all runs; what lies outside is not shown.
    """

    def __init__(self, folder: Path, name: str, root: Path) -> None:
        super().__init__(folder, name, GRID)
        self.root = root

    def anew(self) -> "GridView":
        """Another look at the same grid."""
        return GridView(self.folder, self.name, self.root)

    @cached_property
    def cells(self) -> list[Listed]:
        """All cells in the order of the grid; none if their list is missing, or leads elsewhere."""
        listed = listed_cells(self.folder)
        paths = {item.inputs for item in listed} | {item.segmenter or "" for item in listed}
        places = [self.folder / path for path in paths] + [self.place(item, "evaluation") for item in listed]
        return listed if all(path.resolve().is_relative_to(self.root) for path in places) else []

    def place(self, item: Listed, stage: str) -> Path:
        """The folder of the segmenter or the evaluation of a cell, finished or not."""
        if stage == "segmenter" and item.segmenter is not None:
            return (self.folder / item.segmenter).resolve()
        return home_of(self.folder, item.cell).stage(stage)

    @cached_property
    def groups(self) -> dict[str, Path]:
        """The folder of the run that makes each input group."""
        return {item.group: (self.folder / item.inputs).resolve() for item in self.cells}

    def trainings(self, group: str) -> dict[tuple[str, int], Listed]:
        """The cells on the data of an input group by name and seed; the name of several networks differs."""
        data = group.rpartition("/")[0]
        found = [
            item
            for item in self.cells
            if item.group == group or (item.cell.generator == REAL and item.group.rpartition("/")[0] == data)
        ]
        several = len({item.cell.segmenter for item in found}) > 1
        return {(f"{i.cell.segmenter}/" * several + i.cell.method, i.cell.seed): i for i in found}

    # --- what is going on -----------------------------------------------------------------------------------

    @cached_property
    def failures(self) -> dict[str, str]:
        """What failed in the last call, cells and inputs by name, and why."""
        return read_failures(self.folder)

    @cached_property
    def standings(self) -> dict[Cell, Standing]:
        """How far each cell is."""
        return {item.cell: self._standing(item) for item in self.cells}

    def _standing(self, item: Listed) -> Standing:
        cell, home = item.cell, home_of(self.folder, item.cell)
        if item.segmenter is not None and (home.stage("evaluation") / MANIFEST).exists():
            return Standing(cell, "finished", "", 1.0)
        if cell.name in self.failures:
            return Standing(cell, "failed", self.failures[cell.name])
        trained = stamp(home.stage("segmenter") / MANIFEST) > float(self.status.get("started", 0))
        epochs = item.epochs if trained else home.epochs_done
        if not epochs:
            return Standing(cell, "waiting")
        return Standing(cell, "begun", f"{epochs}/{item.epochs}", epochs / item.epochs)

    @cached_property
    def rows(self) -> list[tuple[Listed, list[Standing]]]:
        """The cells of each method in each place: the first of them, and how each seed stands."""
        found: dict[tuple[str, ...], tuple[Listed, list[Standing]]] = {}
        for item in self.cells:
            row = found.setdefault((*item.cell.place, item.cell.method), (item, []))
            row[1].append(self.standings[item.cell])
        return list(found.values())

    @property
    def axes(self) -> dict[str, int]:
        """The axes along which cells differ, and where their values stand in the place of a cell."""
        places = [item.cell.place for item in self.cells]
        names = ("Data", "Labels", "Generator", "Network")
        return {name: n for n, name in enumerate(names) if len({place[n] for place in places}) > 1}

    def count(self, state: str) -> int:
        """How many cells are in a state."""
        return sum(standing.state == state for standing in self.standings.values())

    @cached_property
    def state(self) -> tuple[str, str]:
        """`finished`, `running`, `stopped` or `failed`, and a message that may be empty."""
        said, message = self.said
        if not self.cells:
            return said or "stopped", message or f"There is no list of its cells. {RESUMES}"
        if said in ("running", "stopped") or (said == "failed" and not self.failures):
            return said, message
        if self.failures:
            return "failed", f"{len(self.failures)} failed. The same command tries again."
        return ("finished", "") if self.count("finished") == len(self.cells) else ("stopped", RESUMES)

    @property
    def progress(self) -> float:
        """Share of the trainings that is done, in [0, 1]."""
        return sum(standing.share for standing in self.standings.values()) / max(1, len(self.cells))

    @property
    def seconds_left(self) -> float | None:
        """Of its cells, at the pace so far; None while it is not known."""
        task = next((task for task in self.tasks if task.get("title") == "cells"), None)
        if self.state[0] != "running" or task is None or (pace := self.pace(task)) is None:
            return None
        return float(pace * (task["total"] - task["done"]))

    # --- what came out --------------------------------------------------------------------------------------

    @property
    def page(self) -> Path | None:
        """The page that the grid itself has made."""
        pages = (self.folder / name for name in _PAGES)
        return next((path for path in pages if path.is_file() and not path.is_symlink()), None)

    def tables(self) -> Iterator[Tree]:
        """Its tables in its order: those of scores in parts that are laid out as the table of a run."""
        for spec in read_object(self.folder / GRID).get("tables", ()):
            path = self.folder / "tables" / str(spec.get("name") or spec.get("kind"))
            if not path.resolve().is_relative_to(self.folder.resolve()):
                continue
            content = read_object(path.with_suffix(".json"))
            if "blocks" in content:
                yield from (_part(content, block, str(spec.get("part"))) for block in content["blocks"])
            elif content:
                yield {"title": str(spec.get("title") or "Synthetic images"), "texts": _texts(path)}


def _part(table: Tree, block: Tree, tested: str) -> Tree:
    """One data set of a table."""
    where = {"test": "", KNOWN: ", new images of known groups"}.get(tested, f", tested on {tested}")
    share = "" if block["labels"] == "all" else f", {block['labels'].replace('pc', ' %')} labelled"
    rows = [
        {
            "label": line["label"],
            "metrics": {
                key: {"spread": spread, "best": line["ranks"][key] == 1}
                for key, spread in line["spreads"].items()
            },
        }
        for line in block["lines"]
    ]
    return {
        "title": f"{table['title']}: {block['dataset']}{share}{where}",
        "images": block["images"],
        "seeds": sorted({seed for line in block["lines"] for seed in line["seeds"]}),
        "columns": table["columns"],
        "rows": rows,
    }


def _texts(path: Path) -> list[list[str]]:
    """The rows of a table of texts, the heading first."""
    try:
        with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))
    except (OSError, ValueError):
        return []
