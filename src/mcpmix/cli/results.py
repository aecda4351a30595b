"""How results look on a terminal."""

import json
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mcpmix.core.artifacts import Artifact

_LOG_WIDTH = 160  # columns of a table that goes to a file, where nothing says how wide a line may be
_GAP = 3  # columns between two cells


def show_report(report: "Artifact") -> None:
    """Print the table of a finished run and where its page is."""
    from mcpmix.reporting.tables import from_json, region_columns, to_rows

    table = from_json(json.loads((report / "table.json").read_text(encoding="utf-8")))
    cells = to_rows(table.select(region_columns()))
    seeds = f"{len(table.seeds)} seed{'s' if len(table.seeds) > 1 else ''}"
    typer.echo(f"\n{table.images} test images, mean ± standard deviation over {seeds}; * is the best mean")
    show_table(*_fitted(cells))
    leaks = report.manifest.get("counts", {}).get("leaks")
    if leaks:
        typer.echo(f"\nthe split of this table leaks ({leaks}): the figures are too good")
    typer.echo(f"\nreport: {report / 'report.html'}")


def _fitted(cells: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows; on a narrow terminal arms become columns, so that numbers stay whole."""
    width = sum(max(map(len, column)) + _GAP for column in zip(*cells, strict=True))
    if width > _columns():
        cells = [list(column) for column in zip(*cells, strict=True)]
    return cells[0], cells[1:]


def _columns() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _LOG_WIDTH


def show_table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> None:
    """Print a table with no cell cut.

    Args:
        heading: names of the columns.
        rows: their cells.
        left: columns of text; all others are numbers, which stand to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=_columns())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(heading):
        table.add_column(name, justify="left" if place in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)
