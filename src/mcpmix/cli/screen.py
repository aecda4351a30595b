"""What commands show: progress as bars on a terminal and as lines in a log, and tables."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import typer

from mcpmix.core.files import read_json
from mcpmix.core.progress import Advance, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from mcpmix.core.stage_folder import Artifact

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_FOR_SPEED = 300.0  # an epoch may take a minute; the default of rich forgets after half of one
_LOG_WIDTH = 160  # columns of a table that goes to a file, where nothing says how wide a line may be
_GAP = 3  # columns between two cells


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Bars if stdout is a terminal that can show them, otherwise lines."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        if not console.is_dumb_terminal:
            with _bars(console) as bars:
                yield BarProgress(bars)
            return
    yield LineProgress(partial(print, flush=True))


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds, such as 0:02:05."""
    return str(timedelta(seconds=round(seconds)))


@dataclass
class _Task:
    """Where a task is, and since when."""

    title: str
    total: int
    first: int
    done: int
    started: float

    def ending(self, now: float) -> str:
        """The line that stays when the task is closed."""
        time_taken = duration(now - self.started)
        if self.done >= self.total:
            return f"{self.title}: {self.total} done in {time_taken}"
        return f"{self.title}: stopped at {self.done}/{self.total} after {time_taken}"

    def state(self, now: float, note: str) -> str:
        """A line while it runs; time left goes by the pace of this run, not of an earlier one."""
        gone = now - self.started
        share = 100 * self.done // max(self.total, 1)
        left = gone / (self.done - self.first) * (self.total - self.done) if self.done > self.first else None
        parts = [f"{self.title}: {self.done}/{self.total} ({share} %)", f"{duration(gone)} gone"]
        parts += [f"about {duration(left)} left"] if left is not None else []
        return ", ".join([*parts, note] if note else parts)


class LineProgress:
    """A line at the start and end of each task, and between them at most one in ten seconds of `clock`."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Open a task."""
        task = _Task(title, total, done, done, self._clock())
        shown = task.started
        self.say(f"{title}: resuming at {done}/{total}" if done else f"{title}: {total} to do")

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal shown
            task.done += steps
            now = self._clock()
            if now - shown >= _SECONDS_BETWEEN_LINES and task.done < task.total:
                shown = now
                self.say(task.state(now, note))

        try:
            yield advance
        finally:
            self.say(task.ending(self._clock()))

    def say(self, message: str) -> None:
        """Write a line, whole even if several threads write."""
        with self._lock:
            self._write(message)


class BarProgress:
    """A bar for each open task in a started display of rich; a closed one leaves a line."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Open a task."""
        task = _Task(title, total, done, done, time.monotonic())
        bar = self._bars.add_task(title, total=total, completed=done, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            task.done += steps
            self._bars.update(bar, advance=steps, note=note)

        try:
            yield advance
        finally:
            self._bars.remove_task(bar)
            self._bars.refresh()  # or the line below would be followed by the old bar once more
            self.say(task.ending(time.monotonic()))

    def say(self, message: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(message, markup=False, soft_wrap=True)


def _bars(console: "Console") -> "Bars":
    from rich import progress as rich
    from rich.table import Column

    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=10),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
        # The note gives way first where the terminal is narrow.
        rich.TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=console,
        transient=True,
        expand=True,
        speed_estimate_period=_SECONDS_FOR_SPEED,
    )


def show_report(report: "Artifact") -> None:
    """Print the tables of a finished run and where its page is."""
    from mcpmix.report.tables import REGION, to_rows

    content = read_json(report / "table.json")
    count = len(content["seeds"])
    spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed, so without a spread"
    for text in content.get("alarms", []):
        typer.secho(f"\n{text}", fg="red", bold=True)
    for images, table in (("test images", content), ("new images of known groups", content.get("known"))):
        if table is None:
            continue
        cells = to_rows(table, REGION)
        width = sum(max(map(len, column)) + _GAP for column in zip(*cells, strict=True))
        if width > _columns():  # arms become columns, so that numbers stay whole on a narrow terminal
            cells = [list(column) for column in zip(*cells, strict=True)]
        number = table["images"]
        what = images if number > 1 else images.replace("images", "image")
        best = "; * is the best mean" if any("*" in cell for line in cells for cell in line) else ""
        typer.echo(f"\n{number} {what}, {spread}{best}")
        show_table(cells[0], cells[1:])
    if leaks := report.manifest.get("counts", {}).get("leaks"):
        typer.echo(f"\nthe split of this table leaks ({leaks}): the figures are too good")
    if content.get("groups_guessed"):
        typer.echo("\nthe groups were guessed, not recorded: look at them before you trust these figures")
    typer.echo(f"\nreport: {report / 'report.html'}")


def _columns() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _LOG_WIDTH


def show_table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> None:
    """Print a table with no cell cut; the columns `left` are text, all others numbers."""
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
