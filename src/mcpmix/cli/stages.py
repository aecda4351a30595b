"""The commands that run stages, and the arguments that they share with others."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import duration, show_report, shown_progress

if TYPE_CHECKING:
    from mcpmix.config import Config
    from mcpmix.core.stage_folder import Artifact
    from mcpmix.run import Run
    from mcpmix.segmenter.arms import Cell

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


Yes = Annotated[
    bool, typer.Option("--yes", help="Make finished stages again without asking, however long they took.")
]


def run(config: ConfigFile, overrides: Overrides = None, yes: Yes = False) -> None:
    """Run all stages; finished ones are reused.

    An interrupted stage resumes where it stopped.
    """
    from mcpmix.config_file import load_config

    _run_all(load_config(config, overrides or ()), yes, overrides or [])


def depth(config: ConfigFile, overrides: Overrides = None, yes: Yes = False) -> None:
    """Stage 1: estimate the depth of the training images."""
    _one_stage(config, overrides, "depth", yes)


def adapt(config: ConfigFile, overrides: Overrides = None, yes: Yes = False) -> None:
    """Train the generator's base further on images without masks."""
    from mcpmix.core.errors import ConfigError

    settings = _load(config, overrides)
    if not settings.adapt.steps:
        raise ConfigError("adapt.steps is 0, so the base stays as it is. Give a number, as adapt.steps=4000.")
    made = _make(settings, "base", yes)
    assert made.base is not None
    typer.echo(f"finished: {made.base.folder}")


def finetune(config: ConfigFile, overrides: Overrides = None, yes: Yes = False) -> None:
    """Stage 2: fine-tune the generator on the training images."""
    _one_stage(config, overrides, "generator", yes)


def synthesize(
    config: ConfigFile,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:REPLICA", help="Regenerate only this image; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the images of --only.")] = Path("remade"),
    yes: Yes = False,
) -> None:
    """Generate synthetic counterparts of the training images."""
    if not only:
        _one_stage(config, overrides, "pairs", yes)
        return
    from mcpmix.core.errors import ConfigError

    wanted = [text.rpartition(":") for text in only]
    for text, (name, _, replica) in zip(only, wanted, strict=True):
        if not name or not replica.isdecimal():
            raise ConfigError(f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}.")
    settings = _load(config, overrides)
    from mcpmix.generator.ledger import write_synthetic
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


def train(config: ConfigFile, overrides: Overrides = None, yes: Yes = False) -> None:
    """Stage 3: train the segmenters, all arms with all seeds."""
    show_runs(config, overrides, "segmenter", yes)


def report(
    config: ConfigFile,
    overrides: Overrides = None,
    checklist: Annotated[
        str | None, typer.Option(help="Also fill in a reporting checklist: claim or tripod (TRIPOD+AI).")
    ] = None,
    yes: Yes = False,
) -> None:
    """Write the tables and the report; missing stages run first."""
    settings = _load(config, overrides)
    if checklist is None:
        _run_all(settings, yes)
        return
    from mcpmix.config_file import without_places
    from mcpmix.core.errors import ConfigError, did_you_mean
    from mcpmix.core.files import make_folder, storage_errors, write_text
    from mcpmix.report.checklist import checklist_names, fill_checklist
    from mcpmix.report.report import Results

    if checklist not in checklist_names():  # before stages that are missing take hours
        raise ConfigError(f"unknown checklist {checklist}: {did_you_mean(checklist, checklist_names())}")
    made = _run_all(settings, yes)
    assert made.dataset is not None
    results = Results(without_places(settings), made.dataset, made.pairs, made.segmenters, made.evaluations)
    path = settings.folder / "checklists" / f"{checklist}.md"
    with storage_errors(path.parent):
        make_folder(path.parent)
        write_text(path, fill_checklist(checklist, results))
    typer.echo(f"checklist: {path}")


def show_runs(config: Path, overrides: list[str] | None, stage: str, yes: bool = False) -> None:
    """Make and list the results of "segmenter" or "evaluation", one for each arm and seed."""
    made: dict[Cell, Artifact] = getattr(_make(_load(config, overrides), stage, yes), f"{stage}s")
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
    _run_all(config, yes=True)  # its settings are those of the preset: whoever changes them means it
    typer.echo(f"elapsed: {duration(time.monotonic() - start)}")


_COMMAND = "overrides.json"  # in the folder of a run: what its last `mcpmix run` was told beside the file
_LONG = 60.0  # seconds; what took longer is not made again without asking


def _load(config: Path, overrides: list[str] | None) -> "Config":
    """The settings of a run for one of its stages: those that `mcpmix run` was given, then new ones."""
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())
    try:
        given = json.loads((settings.folder / _COMMAND).read_text(encoding="utf-8"))
        before = [str(text) for text in given]
    except (OSError, ValueError, TypeError):  # the run was not started by this command, or not yet
        before = []
    if before and (again := load_config(config, [*before, *(overrides or ())])) != settings:
        typer.echo(f"settings of this run, from `mcpmix run`: {' '.join(before)}")
        return again
    return settings


def _make(config: "Config", until: str, yes: bool = False, told: list[str] | None = None) -> "Run":
    from mcpmix.core.files import make_folder, storage_errors, write_json
    from mcpmix.core.stage_folder import asked_before_redoing
    from mcpmix.preflight import require_settings
    from mcpmix.run import run

    require_settings(config)  # before hours are spent
    if told is not None:
        with storage_errors(config.folder):
            make_folder(config.folder)
            write_json(config.folder / _COMMAND, told)
    with shown_progress() as progress, asked_before_redoing(partial(_ask, yes)):
        if until == "report":
            seeds = ", ".join(map(str, config.train.seeds))
            progress.say(f"{config.folder}: {', '.join(config.train.arms)}; seeds {seeds}")
        return run(config, progress, until)


def _ask(yes: bool, stage: str, seconds: float, reason: str) -> None:
    """Ask before a stage that took long is made again; where nobody can answer, refuse."""
    if yes or seconds < _LONG:
        return
    from mcpmix.core.errors import ConfigError

    text = f"{stage} took {duration(seconds)} and would be made again, because {reason}."
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{text} Give the settings that it was made with, or --yes to make it again; the old result is "
            "kept in superseded/."
        )
    if not typer.confirm(f"{text} Make it again?"):
        raise ConfigError(f"{stage} was left as it is.")


def _run_all(config: "Config", yes: bool = False, told: list[str] | None = None) -> "Run":
    made = _make(config, "report", yes, told)
    assert made.report is not None
    show_report(made.report)
    return made


def _one_stage(config: Path, overrides: list[str] | None, stage: str, yes: bool) -> None:
    artifact: Artifact = getattr(_make(_load(config, overrides), stage, yes), stage)
    typer.echo(f"finished: {artifact.folder}")
