"""Data sets."""

from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.progress import shown_progress

app = typer.Typer(no_args_is_help=True, help="Make data sets.", rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Make data sets."""


@app.command()
def phantom(
    out: Annotated[
        Path | None, typer.Option(help="Folder for images/, masks/ and groups.csv.", show_default=False)
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="PNG with all frames, a row per patient.", show_default=False)
    ] = None,
    patients: Annotated[int, typer.Option(min=1, help="Number of patients.")] = 6,
    frames: Annotated[int, typer.Option(min=1, help="Frames of each patient.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other patients.")] = 0,
    size: Annotated[int, typer.Option(min=1, help="Side of a frame in pixels.")] = 128,
) -> None:
    """Draw endoscopic frames with exact masks: a folder to practise on, a contact sheet, or both."""
    if out is None and sheet is None:
        raise typer.BadParameter("give --out, --sheet, or both.")
    from mcpmix.starting import write_phantom_folder, write_phantom_sheet

    with shown_progress() as progress:
        if out is not None:
            write_phantom_folder(
                out, patients=patients, frames=frames, seed=seed, size=size, progress=progress
            )
        if sheet is not None:
            write_phantom_sheet(
                sheet, patients=patients, frames=frames, seed=seed, size=size, progress=progress
            )
    if out is not None:
        folders = f"--images {out / 'images'} --masks {out / 'masks'} --groups {out / 'groups.csv'}"
        typer.echo(f"{patients * frames} frames of {patients} patients: {out}")
        typer.echo(f"to train on them: mcpmix init DIR {folders}")
    if sheet is not None:
        typer.echo(f"contact sheet: {sheet}")
