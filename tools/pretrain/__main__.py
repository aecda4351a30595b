"""`python -m tools.pretrain`: makes the embedded weights."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from tools.pretrain.blueprints import IMAGE_SIZE
from tools.pretrain.build import build_weights

from mcpmix.cli.app import quieten, report_error
from mcpmix.cli.screen import shown_progress

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


Part = StrEnum("Part", ["autoencoder", "base", "depth", "features", "segmenter", "control", "all"])


@app.command()
def build(
    part: Annotated[Part, typer.Argument(help="Which network.")] = Part.all,
    out: Annotated[Path, typer.Option(help="Folder for corpus, checkpoints and results.")] = Path("weights"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of each network.")] = None,
    size: Annotated[int, typer.Option(min=32, help="Side of the images in pixels.")] = IMAGE_SIZE,
    corpus: Annotated[int | None, typer.Option(min=1, help="Number of phantom frames to draw.")] = None,
) -> None:
    """Train networks like the embedded ones, on phantom frames; a stopped build resumes.

    For a base from own images see `mcpmix adapt`.
    """
    with shown_progress() as progress:
        folders = build_weights(part.value, out, steps=steps, size=size, frames=corpus, progress=progress)
    for folder in folders:
        typer.echo(f"finished: {folder}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    quieten()
    try:
        app(args=arguments, prog_name="python -m tools.pretrain")
    except Exception as error:
        sys.exit(report_error(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
