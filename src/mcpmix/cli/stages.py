"""The commands that run stages, and the arguments that they share with others."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import duration, show_report, shown_progress

if TYPE_CHECKING:
    from mcpmix.config import Config
    from mcpmix.core.stage_folder import Artifact
    from mcpmix.run import Cell, Run

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


def run(config: ConfigFile, overrides: Overrides = None) -> None:
    """Run all stages; finished ones are reused.

    An interrupted stage resumes where it stopped.
    """
    _run_all(_load(config, overrides))


def depth(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 1: estimate the depth of the training images."""
    _one_stage(config, overrides, "depth")


def adapt(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train the generator's base further on images without masks."""
    from mcpmix.core.errors import ConfigError

    settings = _load(config, overrides)
    if not settings.adapt.steps:
        raise ConfigError("adapt.steps is 0, so the base stays as it is. Give a number, as adapt.steps=4000.")
    made = _make(settings, "base")
    assert made.base is not None
    typer.echo(f"finished: {made.base.folder}")


def finetune(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 2: fine-tune the generator on the training images."""
    _one_stage(config, overrides, "generator")


def synthesize(
    config: ConfigFile,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:REPLICA", help="Regenerate only this image; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the images of --only.")] = Path("remade"),
) -> None:
    """Generate synthetic counterparts of the training images."""
    if not only:
        _one_stage(config, overrides, "pairs")
        return
    from mcpmix.core.errors import ConfigError

    wanted = [text.rpartition(":") for text in only]
    for text, (name, _, replica) in zip(only, wanted, strict=True):
        if not name or not replica.isdecimal():
            raise ConfigError(f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}.")
    settings = _load(config, overrides)
    from mcpmix.generator.bank import write_synthetic
    from mcpmix.preflight import require_settings
    from mcpmix.replay import remake

    require_settings(settings)
    for name, _, replica in wanted:
        with shown_progress() as progress:
            remade = remake(settings, name, int(replica), progress)
        path = out / name / f"{int(replica)}.png"
        write_synthetic(path, remade.image, run=settings.name, seed=remade.seed)
        typer.echo(f"{path}: seed {remade.seed}, {remade.prompt!r}")
        if remade.difference is not None:
            typer.echo(f"  largest difference from {remade.stored}: {remade.difference} grey levels")


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Stage 3: train the segmenters, all arms with all seeds."""
    show_runs(config, overrides, "segmenter")


def report(config: ConfigFile, overrides: Overrides = None) -> None:
    """Write the tables and the report; missing stages run first."""
    run(config, overrides)


def show_runs(config: Path, overrides: list[str] | None, stage: str) -> None:
    """Make and list the results of "segmenter" or "evaluation", one for each arm and seed."""
    made: dict[Cell, Artifact] = getattr(_make(_load(config, overrides), stage), f"{stage}s")
    for (arm, seed), artifact in made.items():
        counts = artifact.manifest["counts"]
        if stage == "evaluation":
            text = f"test DSC {counts['dsc']:.1f} on {counts['images']} images"
            if known := counts.get("known"):
                text += f", {known['dsc']:.1f} on {known['images']} new images of known groups"
        else:
            text = f"validation DSC {counts['validation_dsc']:.1f} in epoch {counts['best_epoch']}."
            text += "".join(f" Warning: {warning}" for warning in counts["warnings"][-1:])
        typer.echo(f"{arm}, seed {seed}: {text}  {artifact.folder}")


_PLAN = """\
This draws a small set of endoscopic phantom patients and runs the whole method on it:
  1. depth of every training image, by a frozen network
  2. a generator that learns to draw a lesion under a given mask and depth
  3. synthetic counterparts of every training image, under the same mask
  4. {trainings} segmenters: real images only, fixed mixing, mixing with RLA
  5. their scores on unseen patients and on new frames of known ones, and a report
No data, GPU or network is needed. Two cores take about {time}; if you stop it, the same command resumes it.
"""


def demo(
    overrides: Overrides = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer images and steps: about two minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs"),
) -> None:
    """Run the whole method on phantom data, offline.

    All stages, three arms with three seeds each, a table and a report. The same command resumes where it
    was stopped.
    """
    from mcpmix.config_file import resolve_config

    start = time.monotonic()
    preset = "demo-fast" if fast else "demo"
    config = resolve_config(
        {"preset": preset, "output": str(out)}, overrides or (), source=f"preset {preset}"
    )
    trainings = len(config.train.arms) * len(config.train.seeds)
    typer.echo(_PLAN.format(trainings=trainings, time="two minutes" if fast else "13 minutes"))
    _run_all(config)
    typer.echo(f"elapsed: {duration(time.monotonic() - start)}")


def _load(config: Path, overrides: list[str] | None) -> "Config":
    from mcpmix.config_file import load_config

    return load_config(config, overrides or ())


def _make(config: "Config", until: str) -> "Run":
    from mcpmix.preflight import require_settings
    from mcpmix.run import run

    require_settings(config)  # before hours are spent
    with shown_progress() as progress:
        if until == "report":
            seeds = ", ".join(map(str, config.train.seeds))
            progress.say(f"{config.folder}: {', '.join(config.train.arms)}; seeds {seeds}")
        return run(config, progress, until)


def _run_all(config: "Config") -> None:
    made = _make(config, "report")
    assert made.report is not None
    show_report(made.report)


def _one_stage(config: Path, overrides: list[str] | None, stage: str) -> None:
    artifact: Artifact = getattr(_make(_load(config, overrides), stage), stage)
    typer.echo(f"finished: {artifact.folder}")
