"""The whole method in one command, offline."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.options import Overrides
from mcpmix.cli.progress import duration
from mcpmix.cli.stages import run_pipeline

_PLAN = """\
This draws a small set of endoscopic phantom patients and runs the whole method on it:
  1. depth of every training image, by a frozen network
  2. a generator that learns to draw a lesion under a given mask and depth
  3. synthetic counterparts of every training image, under the same mask
  4. {trainings} segmenters: real images only, fixed mixing, mixing with RLA
  5. their scores on unseen patients, and a report
No data, GPU or network is needed. Two cores take about {time}; if you stop it, the same command goes on.
"""


def demo(
    overrides: Overrides = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer images and steps: about two minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs"),
) -> None:
    """Run the whole method on phantom data, offline.

    All stages, three arms with three seeds each, a table and a report. The same command goes on where it was
    stopped.
    """
    from mcpmix.cli.results import show_report
    from mcpmix.core.config import resolve_config

    start = time.monotonic()
    preset = "demo-fast" if fast else "demo"
    config = resolve_config(
        {"preset": preset, "output": str(out)}, overrides or (), source=f"preset {preset}"
    )
    trainings = len(config.train.arms) * len(config.train.seeds)
    typer.echo(_PLAN.format(trainings=trainings, time="two minutes" if fast else "13 minutes"))
    show_report(run_pipeline(config))
    typer.echo(f"elapsed: {duration(time.monotonic() - start)}")
