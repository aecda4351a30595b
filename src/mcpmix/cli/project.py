"""Before a run: a configuration for own images, and a check of everything."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.options import ConfigFile, Overrides
from mcpmix.cli.progress import shown_progress

if TYPE_CHECKING:
    from mcpmix.data.audit import Audit


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the configuration.", show_default=False)
    ],
    images: Annotated[Path | None, typer.Option(help="Folder of images.", show_default=False)] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder of masks with the same names.", show_default=False)
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(help="CSV with the columns id and group (patient, lesion, video)."),
    ] = None,
    source: Annotated[
        str, typer.Option(help="folder, manifest, nnunet, imagefolder, or a name of `mcpmix data list`.")
    ] = "folder",
    root: Annotated[
        Path | None,
        typer.Option(help="Where the data is, for sources other than folder.", show_default=False),
    ] = None,
    preset: Annotated[str, typer.Option(help="Where to start from: tiny, small or paper.")] = "small",
    force: Annotated[bool, typer.Option("--force", help="Replace a configuration that is there.")] = False,
) -> None:
    """Write a configuration for your own images.

    Looks at the data, says what it found, and writes DIR/mcpmix.yaml with comments. Give --images and
    --masks, or --source and --root.
    """
    if source == "folder" and (images is None or masks is None):
        raise typer.BadParameter("give --images and --masks, or --source and --root.")
    if source != "folder" and root is None:
        raise typer.BadParameter(f"--source {source} needs --root, the folder or file where the data is.")
    from mcpmix.starting import write_starter_config

    with shown_progress() as progress:
        starter = write_starter_config(
            folder,
            images,
            masks,
            groups=groups,
            source=source,
            root=root,
            preset=preset,
            force=force,
            progress=progress,
        )
    for line in starter.findings:
        typer.echo(line)
    typer.echo(f"written: {starter.file}")
    typer.echo(f"next: mcpmix check {starter.file}")


def check(
    config: ConfigFile,
    overrides: Overrides = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Page with all findings about the images.", show_default=False),
    ] = None,
) -> None:
    """Find every problem before anything runs.

    Looks at data, split, leakage, models, device and disk; shows the licences of the weights.
    """
    from mcpmix.core.config import load_config

    settings = load_config(config, overrides or ())  # first: its problems are cheap to find
    from mcpmix.checks import check as examine

    with shown_progress() as progress:
        result = examine(settings, progress)
    for name, text in result.facts.items():
        typer.echo(f"{name}: {text}")
    if result.audit is not None:
        _show_audit(result.audit, settings.name, page)
    for problem in result.problems:
        typer.echo(f"Error: {problem}", err=True)
    if result.problems:
        raise typer.Exit(result.exit_code)
    command = shlex.join(["mcpmix", "run", str(config), *(overrides or ())])
    typer.echo(f"no problems; next: {command}")


def _show_audit(audit: "Audit", name: str, page: Path | None) -> None:
    from mcpmix.core.artifacts import storage_errors, write_text
    from mcpmix.data.audit.page import as_lines, as_page

    for line in as_lines(audit, errors=False):
        typer.echo(line)
    if page is not None:
        with storage_errors(page.parent):
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, as_page(audit, name))
        typer.echo(f"findings about the images: {page}")
