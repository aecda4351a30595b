"""Weights: which there are, under which terms, and how the embedded ones are made."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.progress import shown_progress

app = typer.Typer(no_args_is_help=True, help="List and build weights.", rich_markup_mode=None)


class Part(StrEnum):
    """What can be built."""

    autoencoder = "autoencoder"
    base = "base"
    depth = "depth"
    features = "features"
    all = "all"


@app.command("list")
def list_models() -> None:
    """List embedded and known weights: size, licence, and whether they are on this machine."""
    from mcpmix.cli.results import show_table
    from mcpmix.weights import list_weights

    rows = [[item.name, item.size, "yes" if item.present else "no", item.licence] for item in list_weights()]
    show_table(["weights", "size", "here", "licence"], rows, left=(0, 3))


@app.command()
def build(
    part: Annotated[Part, typer.Argument(help="Which network.")] = Part.all,
    out: Annotated[Path, typer.Option(help="Folder for corpus, checkpoints and results.")] = Path("weights"),
    images: Annotated[
        Path | None,
        typer.Option(help="Own unlabelled images in place of the phantom; autoencoder and base only."),
    ] = None,
    caption: Annotated[str | None, typer.Option(help="Text for all images of --images.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of each network.")] = None,
    corpus: Annotated[int | None, typer.Option(min=1, help="Number of phantom frames to draw.")] = None,
) -> None:
    """Train the embedded networks anew; a stopped build goes on where it was."""
    from mcpmix.building import build_weights

    with shown_progress() as progress:
        folders = build_weights(
            part.value, out, images=images, caption=caption, steps=steps, frames=corpus, progress=progress
        )
    for folder in folders:
        typer.echo(f"finished: {folder}")
