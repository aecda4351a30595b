"""Comparisons: grids of trainings with their tables and figures, and whether synthetic images help."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import show_table, shown_progress
from mcpmix.cli.stages import ConfigFile, Overrides
from mcpmix.core.errors import TrainingError

if TYPE_CHECKING:
    from mcpmix.bench.cells import Outcome
    from mcpmix.bench.engines import EngineName
    from mcpmix.bench.grid import Plan

_REFRESH = 5.0  # seconds between two looks of --status

EngineOption = Annotated[
    str, typer.Option(help="local: processes here; ray: a cluster (extra `cluster`).", show_default=True)
]


def bench(
    grid: Annotated[str, typer.Argument(metavar="GRID", help="A grid file, or the name of a shipped grid.")],
    overrides: Overrides = None,
    engine: EngineOption = "local",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/<name of the grid>")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, in about what time.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only show how far the cells are.")] = False,
) -> None:
    """Compare methods: all cells, tables and figures of a grid.

    A cell is one training with its evaluation. What is finished is reused and what was begun continues, so
    the same command goes on after any interruption. A failed cell is reported and the others go on; the exit
    code is then not 0.
    """
    _require_engine(engine)
    from mcpmix.bench.grid import expand, load_grid

    loaded = load_grid(grid, overrides or ())
    plan = expand(loaded, out or Path("runs") / loaded.name)
    if dry_run:
        from mcpmix.bench.driver import forecast

        for line in forecast(plan):
            typer.echo(line)
    elif status:
        _watch(plan)
    else:
        from mcpmix.bench.page import require_packages

        require_packages(plan)
        found = _work(plan, engine, draw=True)
        typer.echo(f"\n{len(found.cells)} of {len(plan.cells)} cells finished: {plan.out / 'index.html'}")
        _report_failures(found)


def verdict(
    config: ConfigFile,
    overrides: Overrides = None,
    engine: EngineOption = "local",
) -> None:
    """Say whether synthetic images help on this data.

    And how much of them, and how sure that is. Trains with real images alone, with several fixed shares of
    the synthetic image and with RLA: same seeds, same steps. The run's own stages are reused.
    """
    _require_engine(engine)
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())
    from mcpmix.bench.state import VERDICT
    from mcpmix.bench.verdict import make_plan, write_verdict

    plan = make_plan(settings, settings.folder / VERDICT)
    found = _work(plan, engine)
    _report_failures(found)
    verdicts, page = write_verdict(found)
    for item in verdicts:
        typer.echo(f"\n{item.sentence}")
    typer.echo(f"\nverdict: {page}")


def _require_engine(name: str) -> None:
    if name not in ("local", "ray"):
        raise typer.BadParameter(f"--engine takes local or ray, got {name}.")


def _work(plan: "Plan", engine: "EngineName | str", *, draw: bool = False) -> "Outcome":
    from mcpmix.bench.driver import claimed, run_grid
    from mcpmix.bench.engines import open_engine
    from mcpmix.bench.page import write_results

    runtime = next(iter(plan.groups.values())).config.runtime
    opened = open_engine(engine, plan.grid.engine, runtime)  # type: ignore[arg-type]  # checked before
    with shown_progress() as bars, claimed(plan, bars) as progress:
        found = run_grid(plan, opened, progress)
        if draw:
            write_results(found, opened, progress)
    return found


def _report_failures(found: "Outcome") -> None:
    if found.failures:
        from mcpmix.core.errors import bullet_list

        listed = [f"{name}: {why}" for name, why in found.failures.items()]
        raise TrainingError(
            bullet_list(
                f"{len(listed)} failed; the others are finished. The same command tries again:", listed
            )
        )


def _watch(plan: "Plan") -> None:
    """The state of all cells: once, or on a terminal until all are finished or Ctrl-C."""
    from mcpmix.bench.driver import look, status_rows

    while True:
        heading, *rows = status_rows(plan)
        if sys.stdout.isatty():
            typer.echo("\033[2J\033[H", nl=False)  # an empty screen
        show_table(heading, rows, left=range(5))
        found = look(plan)
        typer.echo(f"{len(found.cells)} of {len(plan.cells)} cells finished, {len(found.failures)} failed")
        if not sys.stdout.isatty() or len(found.cells) == len(plan.cells):
            return
        time.sleep(_REFRESH)
