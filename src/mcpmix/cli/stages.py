"""Arguments that several commands share."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import duration, shown_progress

ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="A configuration; `mcpmix init` writes one.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings to change, e.g. train.epochs=50.", show_default=False
    ),
]


if TYPE_CHECKING:
    from mcpmix.config import Config
    from mcpmix.core.stage_folder import Artifact
    from mcpmix.run import Cell


def run(config: ConfigFile, overrides: Overrides = None) -> None:
    """Run all stages; finished ones are reused.

    A stage that was stopped goes on where it was.
    """
    from mcpmix.cli.screen import show_report
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())
    show_report(run_pipeline(settings))


def run_pipeline(config: "Config") -> "Artifact":
    """Check the settings before hours are spent, then run everything.

    Returns:
        The report.
    """
    from mcpmix import run as whole
    from mcpmix.preflight import require_settings

    require_settings(config)
    with shown_progress() as progress:
        seeds = ", ".join(map(str, config.train.seeds))
        progress.say(f"{config.folder}: {', '.join(config.train.arms)}; seeds {seeds}")
        made = whole.run(config, progress)
    assert made.report is not None
    return made.report


def depth(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 1: estimate the depth of the training images."""
    _one_stage(config, overrides, "depth")


def finetune(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 2: fine-tune the generator on the training images."""
    _one_stage(config, overrides, "generator")


def synthesize(
    config: ConfigFile,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:REPLICA", help="Make this image again, alone; can be given several times."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the images of --only.")] = Path("remade"),
) -> None:
    """Make synthetic counterparts of the training images."""
    if only:
        _remake(config, overrides, only, out)
    else:
        _one_stage(config, overrides, "pairs")


def _remake(config: Path, overrides: list[str] | None, only: list[str], out: Path) -> None:
    from mcpmix.config_file import load_config

    wanted = [_identity(text) for text in only]
    settings = load_config(config, overrides or ())
    from mcpmix.replay import remake, save_remade

    for name, replica in wanted:
        with shown_progress() as progress:
            remade = remake(settings, name, replica, progress)
        path = out / name / f"{replica}.png"
        save_remade(remade, path, settings.name)
        typer.echo(f"{path}: seed {remade.seed}, {remade.prompt!r}")
        if remade.difference is not None:
            typer.echo(f"  largest difference to {remade.stored}: {remade.difference} grey levels")


def _identity(text: str) -> tuple[str, int]:
    from mcpmix.core.errors import ConfigError

    name, _, number = text.rpartition(":")
    if not name or not number.isdecimal():
        raise ConfigError(f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}.")
    return name, int(number)


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 3: train the segmenters, all arms with all seeds."""
    show_runs(config, overrides, "segmenter")


def report(config: ConfigFile, overrides: Overrides = None) -> None:
    """Write the tables and the page, and whatever they still need."""
    run(config, overrides)


def _one_stage(config: Path, overrides: list[str] | None, stage: str) -> None:
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())  # first: its problems are cheap to find
    from mcpmix import run as whole

    with shown_progress() as progress:
        artifact: Artifact = getattr(whole.run(settings, progress, until=stage), stage)
    typer.echo(f"finished: {artifact.folder}")


def show_runs(config: Path, overrides: list[str] | None, stage: str) -> None:
    """Make and list a result of each arm and seed.

    Args:
        config: the configuration's file.
        overrides: settings to change.
        stage: "segmenter" or "evaluation".
    """
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())
    from mcpmix import run as whole
    from mcpmix.preflight import require_settings

    require_settings(settings)
    with shown_progress() as progress:
        made: dict[Cell, Artifact] = getattr(whole.run(settings, progress, until=stage), f"{stage}s")
    for (arm, seed), artifact in made.items():
        typer.echo(f"{arm}, seed {seed}: {_summary(artifact)}  {artifact.folder}")


def _summary(artifact: "Artifact") -> str:
    counts = artifact.manifest["counts"]
    if "validation_dsc" not in counts:
        return f"test DSC {counts['dsc']:.1f} on {counts['images']} images"
    warnings = "".join(f" Warning: {text}" for text in counts["warnings"][-1:])
    return f"validation DSC {counts['validation_dsc']:.1f} in epoch {counts['best_epoch']}.{warnings}"


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
    from mcpmix.cli.screen import show_report
    from mcpmix.config_file import resolve_config

    start = time.monotonic()
    preset = "demo-fast" if fast else "demo"
    config = resolve_config(
        {"preset": preset, "output": str(out)}, overrides or (), source=f"preset {preset}"
    )
    trainings = len(config.train.arms) * len(config.train.seeds)
    typer.echo(_PLAN.format(trainings=trainings, time="two minutes" if fast else "13 minutes"))
    show_report(run_pipeline(config))
    typer.echo(f"elapsed: {duration(time.monotonic() - start)}")
