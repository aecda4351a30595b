"""`python -m tools.pretrain`: makes the embedded weights, or a generator from own images."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from tools.pretrain.build import OwnImages, Training, build_weights

from mcpmix.cli.app import quieten, report_error
from mcpmix.cli.screen import shown_progress
from mcpmix.config_file import load_config

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


Part = StrEnum("Part", ["autoencoder", "base", "depth", "features", "segmenter", "control", "all"])


@app.command()
def build(
    part: Annotated[Part, typer.Argument(help="Which network.")] = Part.all,
    out: Annotated[Path, typer.Option(help="Folder for corpus, checkpoints and results.")] = Path("weights"),
    images: Annotated[
        Path | None,
        typer.Option(help="Own unlabelled images instead of the phantom; autoencoder and base only."),
    ] = None,
    listing: Annotated[
        Path | None,
        typer.Option("--list", help="Text file with the images to use, one path or name per line."),
    ] = None,
    split_of: Annotated[
        Path | None,
        typer.Option(help="A configuration: use the training part of its data set, and no other image."),
    ] = None,
    caption: Annotated[str | None, typer.Option(help="Text for all own images.")] = None,
    captions: Annotated[
        Path | None, typer.Option(help="CSV or JSONL with a text for each image (file_name, text).")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Pipeline to continue, or that of the ControlNet: embedded, a folder or a hub id."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of each network.")] = None,
    autoencoder_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of the autoencoder; 0 keeps that of --start.")
    ] = None,
    decoder_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps that sharpen its decoder; 0: none.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=32, help="Side of the images in pixels.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the base.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Of the base.")] = None,
    corpus: Annotated[int | None, typer.Option(min=1, help="Number of phantom frames to draw.")] = None,
) -> None:
    """Train networks like the embedded ones, on phantom frames or on own images.

    A stopped build resumes.
    """
    part_of = load_config(split_of, ()) if split_of is not None else None
    with shown_progress() as progress:
        folders = build_weights(
            part.value,
            out,
            own=OwnImages(images, listing, part_of, caption, captions),
            training=Training(
                steps, autoencoder_steps, decoder_steps, start, size, learning_rate, batch_size
            ),
            frames=corpus,
            progress=progress,
        )
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
