"""How results look on a terminal."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mcpmix.core.artifacts import Artifact

_LOG_WIDTH = 160  # columns of a table that goes to a file, where nothing says how wide a line may be


def show_report(report: "Artifact") -> None:
    """Print the table of a finished run and where its page is."""
    from mcpmix.reporting.tables import from_json, region_columns, to_rows

    table = from_json(json.loads((report / "table.json").read_text(encoding="utf-8")))
    heading, *rows = to_rows(table.select(region_columns()))
    seeds = f"{len(table.seeds)} seed{'s' if len(table.seeds) > 1 else ''}"
    typer.echo(f"\n{table.images} test images, mean ± standard deviation over {seeds}; * is the best mean")
    show_table(heading, rows)
    typer.echo(f"\nreport: {report / 'report.html'}")


def show_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, numbers to the right, no cell cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_LOG_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(heading):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)
