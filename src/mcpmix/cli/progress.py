"""Progress on the screen: bars on a terminal, lines in a log."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from mcpmix.core.progress import Advance, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_FOR_SPEED = 300.0  # an epoch may take a minute; the default of rich forgets after half of one


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Bars if stdout is a terminal that can show them, otherwise lines."""
    if not sys.stdout.isatty():
        yield LineProgress(_print)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_dumb_terminal:
        yield LineProgress(_print)
        return
    with _bars(console) as bars:
        yield BarProgress(bars)


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
    """A line at the start and end of each task, and at most one per `every` seconds between.

    Args:
        write: takes one line.
        every: seconds between two lines of a task.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        every: float = _SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Open a task."""
        task = _Task(title, total, done, done, self._clock())
        shown = task.started
        self.say(f"{title}: going on at {done}/{total}" if done else f"{title}: {total} to do")

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal shown
            task.done += steps
            now = self._clock()
            if now - shown >= self._every and task.done < task.total:
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
    """A bar for each open task; a closed one leaves a line.

    Args:
        bars: the display of rich, started; it is safe to use from several threads.
    """

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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.table import Column

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        # The note gives way first where the terminal is narrow.
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=console,
        transient=True,
        expand=True,
        speed_estimate_period=_SECONDS_FOR_SPEED,
    )


def _print(line: str) -> None:
    print(line, flush=True)
