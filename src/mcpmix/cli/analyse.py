"""Analyses as commands."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mcpmix.cli.screen import shown_progress
from mcpmix.cli.stages import Overrides

app = typer.Typer(no_args_is_help=True, help="Short trainings that measure why something happens.")


@app.callback()
def _analyses() -> None:
    """Short trainings that measure why something happens."""


@app.command()
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
    from mcpmix.bench.gradients import analyse, still, to_markdown
    from mcpmix.preflight import require_settings
    from mcpmix.run import run

    require_settings(settings)
    with shown_progress() as progress:
        made = run(settings, progress, until="inputs")
        progress.say(f"{len(arms)} trainings of {epochs} epochs, one after the other")
        inputs = partial(made.inputs, settings)
        found = analyse(still(settings, epochs), arms, inputs, place, made.runtime, progress)
    typer.echo(to_markdown(found))
    typer.echo(f"written: {place / 'gradients.json'}, gradients.md, gradients.png")
