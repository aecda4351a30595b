"""Masks for new images."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.screen import shown_progress


def predict(
    segmenter: Annotated[Path, typer.Argument(help="Folder of a segmenter, or of a run (its best one).")],
    images: Annotated[Path, typer.Argument(help="An image, or a folder of images.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    threshold: Annotated[float, typer.Option(help="Probability from which a pixel is lesion.")] = 0.5,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write probabilities, 16-bit grey.")
    ] = False,
    overlay: Annotated[
        bool, typer.Option("--overlay", help="Also write the images with the outline of the lesion.")
    ] = False,
    flips: Annotated[
        bool, typer.Option("--flips", help="Average over mirror images, at four times the cost.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
) -> None:
    """Segment new images; a second call adds only what is missing."""
    from mcpmix.segmenter.predict import predict_files

    with shown_progress() as progress:
        made, there = predict_files(
            segmenter,
            images,
            out,
            threshold=threshold,
            probabilities=probabilities,
            overlay=overlay,
            flips=flips,
            device=device,
            progress=progress,
        )
    kept = f", {there} were there already" if there else ""
    typer.echo(f"{made} {'image' if made == 1 else 'images'} segmented{kept}: {out}")


class InputType(StrEnum):
    """Number formats of the image."""

    uint8 = "uint8"
    float32 = "float32"


def export(
    segmenter: Annotated[Path, typer.Argument(help="Folder of a segmenter, or of a run (its best one).")],
    out: Annotated[Path, typer.Option(help="The file to write, ending in .onnx.")],
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
    from mcpmix.segmenter.onnx import export_segmenter

    with shown_progress() as progress:
        folder, found = export_segmenter(
            segmenter, out, verify=verify, input_type=input_type.value, progress=progress
        )
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, exported from {folder}")
    typer.echo(
        f"compared with torch on {found.images} images: probabilities differ by at most "
        f"{found.difference:.1e}, masks in {found.flipped} of {found.pixels} pixels"
    )
