"""What segmenters are good for: scores, masks for new images, ONNX; and short trainings that explain them."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcpmix.cli.screen import show_table, shown_progress
from mcpmix.cli.stages import Overrides, Yes, show_runs

if TYPE_CHECKING:
    from mcpmix.metrics import FolderReport

Trust = Annotated[
    bool, typer.Option("--trust", help="Import and run a network of one's own that the folder names.")
]


def evaluate(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Score the segmenters of this run.")
    ] = None,
    overrides: Overrides = None,
    truth: Annotated[Path | None, typer.Option(help="Without CONFIG: folder of true masks.")] = None,
    prediction: Annotated[Path | None, typer.Option(help="Folder of masks of any tool.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Masks of another tool on the same images, for paired tests.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of images, to draw the worst cases on.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for scores per image, a summary and the worst cases.")
    ] = None,
    conventions: Annotated[
        bool, typer.Option("--conventions", help="Also score as other published evaluations do.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="Threshold for soft maps, a share of full scale; none: refuse them.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="A truth without prediction: `error`, or `empty` (counts as an empty mask).")
    ] = "error",
    truth_ending: Annotated[
        str, typer.Option(help="Ending to strip from the names of true masks, e.g. _segmentation.")
    ] = "",
    prediction_ending: Annotated[str, typer.Option(help="The same for predictions.")] = "",
    classes: Annotated[
        str, typer.Option(help="Names of the labels 1, 2, ... of masks with several: adenoma,cancer.")
    ] = "",
    yes: Yes = False,
) -> None:
    """Score the segmenters of a run, or the masks of any tool.

    With CONFIG: all segmenters of the run on its test split. With --truth and --prediction: a folder of masks
    against a folder of true ones, paired by name.
    """
    if config is not None:
        if truth is not None or prediction is not None:
            raise typer.BadParameter("give either a CONFIG or folders (--truth, --prediction), not both.")
        show_runs(config, overrides, "evaluation", yes)
        return
    if truth is None or prediction is None:
        raise typer.BadParameter("give a CONFIG, or both --truth and --prediction.")
    from mcpmix.metrics import score_class_folders, score_folder

    options: dict[str, Any] = {
        "against": against,
        "out": out,
        "images": images,
        "conventions": conventions,
        "threshold": threshold,
        "missing": missing,
        "truth_ending": truth_ending,
        "prediction_ending": prediction_ending,
    }
    with shown_progress() as progress:
        if classes:
            names = [name.strip() for name in classes.split(",")]
            reports, mean = score_class_folders(truth, prediction, names, progress=progress, **options)
        else:
            reports = {"": score_folder(truth, prediction, progress=progress, **options)}
    for name, report in reports.items():
        _show_scores(report, f"{name}: " if name else "")
    if classes:
        typer.echo("\nMean over the classes that an image or its prediction has:")
        show_table(["metric", "mean ± sd"], [[key, str(value)] for key, value in mean.items()])
    if out is not None:
        typer.echo(f"written: {out}")


def _show_scores(report: "FolderReport", what: str) -> None:
    images = len(report.method.images)
    typer.echo(f"\n{what}{images} images; region and boundary in percent, distances in pixels")
    show_table(*report.table())
    if report.conventions:
        typer.echo("\nAs other evaluations would report it:")
        show_table(
            ["convention", "metric", "value", "images", "left out", "rule"],
            [
                [row.convention, row.metric, f"{row.value:.2f}", str(row.n), str(row.dropped), row.rule]
                for row in report.conventions
            ],
            left=(0, 1, 5),
        )
    for note in report.notes:
        typer.echo(f"note: {note}")


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
    trust: Trust = False,
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
            trust=trust,
            progress=progress,
        )
    kept = f", {there} were there already" if there else ""
    typer.echo(f"{made} {'image' if made == 1 else 'images'} segmented{kept}: {out}")


def export(
    segmenter: Annotated[Path, typer.Argument(help="Folder of a segmenter, or of a run (its best one).")],
    out: Annotated[Path, typer.Option(help="The file to write, ending in .onnx.")],
    verify: Annotated[
        Path | None,
        typer.Option(help="Image or folder of images to compare on.", show_default="the run's test images"),
    ] = None,
    input_type: Annotated[
        Literal["uint8", "float32"], typer.Option("--input", help="Format of the image; float32: in [0, 1].")
    ] = "uint8",
    trust: Trust = False,
) -> None:
    """Write a segmenter as one ONNX file, compared with torch.

    The file takes images of any size and gives probabilities of the same size.
    """
    from mcpmix.segmenter.onnx import export_segmenter

    with shown_progress() as progress:
        folder, found = export_segmenter(
            segmenter, out, verify=verify, input_type=input_type, trust=trust, progress=progress
        )
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, exported from {folder}")
    typer.echo(
        f"compared with torch on {found.images} images: probabilities differ by at most "
        f"{found.difference:.1e}, masks in {found.flipped} of {found.pixels} pixels"
    )


def export_pairs(
    run: Annotated[Path, typer.Argument(help="Folder of a run with finished pairs.")],
    name: Annotated[str, typer.Argument(help="Name of the data set there, like Dataset501_Polyps.")],
    tool: Annotated[Literal["nnunet"], typer.Option("--to", help="The tool to write for.")],
    raw: Annotated[Path, typer.Option(envvar="nnUNet_raw", help="nnU-Net's folder of raw data sets.")],
    preprocessed: Annotated[
        Path, typer.Option(envvar="nnUNet_preprocessed", help="nnU-Net's folder of preprocessed data sets.")
    ],
) -> None:
    """Write data set and counterparts of a run for nnU-Net.

    For the trainers nnUNetTrainerMCPMix and nnUNetTrainerMCPMixRLA of the extra `nnunet`. Images and masks
    keep their size, counterparts are brought to it, and the split becomes nnU-Net's fold 0.
    """
    from mcpmix.generator.pair_export import export_to_nnunet

    with shown_progress() as progress:
        counts = export_to_nnunet(run, name, raw=raw, preprocessed=preprocessed, progress=progress)
    typer.echo(", ".join(f"{part}: {count}" for part, count in counts.items()))
    if "known" in counts:
        typer.echo("left out: known, whose patients are in the training part")
    typer.echo(f"written for {tool}: {raw / name}, {preprocessed / name}")
    trainers = Path(__file__).parents[1] / "segmenter" / "nnunet_trainers"
    typer.echo(f"nnU-Net finds the trainers with: export nnUNet_extTrainer={shlex.quote(str(trainers))}")


analyse = typer.Typer(no_args_is_help=True, help="Short trainings that measure why something happens.")


@analyse.callback()
def _group() -> None:
    """Without it a single command would not get a name of its own."""


@analyse.command()
def gradients(
    overrides: Overrides = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration whose data is used; without it, the phantom.")
    ] = None,
    strategies: Annotated[
        str, typer.Option(help="Names, separated by commas; those that need pairs run stages 1 and 2 first.")
    ] = "full-sup,mixup,cutmix,gridmix,smoothmix,puzzlemix,hsmix,augmix,pixmix",
    epochs: Annotated[int, typer.Option(min=4, help="Epochs of each training.")] = 40,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
) -> None:
    """Why classical mixing blurs boundaries: flips, noise and transition width at boundary pixels.

    Trains briefly with each strategy, without augmentation, and reports how often the gradient at a boundary
    pixel changes its sign between epochs, its mean and variance at the logits, and the width of the predicted
    transition.
    """
    from mcpmix.config_file import load_config, resolve_config
    from mcpmix.core.errors import ConfigError

    settings = (
        load_config(config, overrides or ())
        if config is not None
        else resolve_config({"preset": "tiny", "name": "gradients"}, overrides or (), source="preset tiny")
    )
    arms = tuple(dict.fromkeys(name.strip() for name in strategies.split(",") if name.strip()))
    if not arms:
        raise ConfigError("--strategies is empty; expected names separated by commas, e.g. full-sup,mixup.")
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"arms": arms})})
    place = out or settings.folder / "analysis" / "gradients"
    from mcpmix.bench.gradients import analyse as measure
    from mcpmix.bench.gradients import still, to_markdown
    from mcpmix.preflight import require_settings
    from mcpmix.run import run

    short = still(settings, epochs)
    require_settings(settings)
    with shown_progress() as progress:
        made = run(settings, progress, until="inputs")
        progress.say(f"{len(arms)} trainings of {epochs} epochs, one after the other")
        inputs = partial(made.inputs, settings)
        found = measure(short, arms, inputs, place, made.runtime, progress)
    typer.echo(to_markdown(found))
    typer.echo(f"written: {place / 'gradients.json'}, gradients.md, gradients.png")
