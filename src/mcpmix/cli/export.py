"""Segmenters for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.progress import shown_progress


class InputType(StrEnum):
    """Number formats of the image."""

    uint8 = "uint8"
    float32 = "float32"


def export(
    segmenter: Annotated[
        Path, typer.Argument(help="Folder of a segmenter, or of a run (its best one).", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The file to write, ending in .onnx.", show_default=False)],
    verify: Annotated[
        Path | None,
        typer.Option(help="Image or folder of images to compare on.", show_default="the run's test images"),
    ] = None,
    input_type: Annotated[
        InputType, typer.Option("--input", help="Format of the image; float32: in [0, 1].")
    ] = InputType.uint8,
) -> None:
    """Write a segmenter as one ONNX file and compare it with torch.

    The file takes images of any size and gives probabilities of the same size.
    """
    from mcpmix.exporting import export_segmenter

    with shown_progress() as progress:
        made = export_segmenter(segmenter, out, verify=verify, input_type=input_type.value, progress=progress)
    found = made.agreement
    typer.echo(f"{made.path}: {made.path.stat().st_size / 1e6:.1f} MB, made of {made.segmenter}")
    typer.echo(
        f"compared with torch on {found.images} images: probabilities differ by at most "
        f"{found.difference:.1e}, masks in {found.flipped} of {found.pixels} pixels"
    )
