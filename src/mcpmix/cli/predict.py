"""Masks for new images."""

from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.progress import shown_progress


def predict(
    segmenter: Annotated[
        Path, typer.Argument(help="Folder of a segmenter, or of a run (its best one).", show_default=False)
    ],
    images: Annotated[Path, typer.Argument(help="An image, or a folder of images.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the results.", show_default=False)],
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
    """Segment new images; a second call makes only what is missing."""
    from mcpmix.prediction import predict_files

    with shown_progress() as progress:
        result = predict_files(
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
    kept = f", {result.kept} were there already" if result.kept else ""
    images_text = "image" if result.made == 1 else "images"
    typer.echo(f"{result.made} {images_text} segmented{kept}: {out}")
