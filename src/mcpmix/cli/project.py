"""Before a run: a configuration for own images, a check of everything, and weights to choose from."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import show_table, shown_progress
from mcpmix.cli.stages import ConfigFile, Overrides
from mcpmix.core.errors import DataError

if TYPE_CHECKING:
    from mcpmix.config import Config
    from mcpmix.data.audit import Audit

_MOST_CHANGES = 20  # of a repaired copy that are shown; all are in its table


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the configuration.")],
    images: Annotated[Path | None, typer.Option(help="Folder of images.")] = None,
    masks: Annotated[Path | None, typer.Option(help="Folder of masks with the same names.")] = None,
    groups: Annotated[
        Path | None, typer.Option(help="CSV with the columns id and group (patient, lesion, video).")
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(help="Folder or archive of images without masks; may be repeated."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="folder, manifest, nnunet, imagefolder, or a name of `mcpmix data list`; by default "
            "recognised from --root."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Where the data is: a folder, a list or an archive.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Where to start from: tiny (any CPU), small (a GPU) or paper; by default what this machine "
            "can run. A known data set adds its own."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing configuration.")] = False,
) -> None:
    """Write a configuration for your own images.

    Inspects the data, reports what it found, and writes a commented DIR/mcpmix.yaml. Give --images and
    --masks, or --root.
    """
    if root is None and source in (None, "folder") and (images is None or masks is None):
        raise typer.BadParameter("give --images and --masks, or --root.")
    if source not in (None, "folder") and root is None:
        raise typer.BadParameter(f"--source {source} needs --root, the folder or file where the data is.")
    from mcpmix.init import write_starter_config

    with shown_progress() as progress:
        file, findings, problem = write_starter_config(
            folder,
            images=images,
            masks=masks,
            groups=groups,
            unlabelled=unlabelled or (),
            source=source,
            root=root,
            preset=preset,
            force=force,
            progress=progress,
        )
    for line in findings:
        typer.echo(line)
    typer.echo(f"written: {file}")
    check = shlex.join(["mcpmix", "check", str(file)])
    if problem is None:
        typer.echo(f"next: {check}")
        return
    typer.echo(f"Error: {problem}", err=True)
    repaired = shlex.join(["--fix", str(folder / "repaired")])
    typer.echo(f"next: mend these files, or let {check} {repaired} write a copy without them")
    raise typer.Exit(problem.exit_code)


def check(
    config: ConfigFile,
    overrides: Overrides = None,
    page: Annotated[
        Path | None, typer.Option("--html", help="Page with all findings about the images.")
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(help="New folder for a repaired copy of the data; the source stays as it is."),
    ] = None,
    drop_copies: Annotated[
        bool, typer.Option("--drop-copies", help="With --fix: keep one of several identical images.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Find every problem before anything runs.

    Checks data, split, leakage, models, device and disk; shows the licences of the weights. The exit code is
    0 without errors (3 with --strict if there are warnings); configuration errors come before those of data,
    models and disk.
    """
    if drop_copies and fix is None:
        raise typer.BadParameter("--drop-copies needs --fix.")
    from mcpmix.config_file import load_config

    settings = load_config(config, overrides or ())  # first: its problems are cheap to find
    if fix is not None:
        from mcpmix.core.files import require_new

        require_new(fix)  # before the images are examined, which takes a while
    from mcpmix.preflight import check as examine

    with shown_progress() as progress:
        result = examine(settings, progress)
    for name, text in result.facts.items():
        typer.echo(f"{name}: {text}")
    if result.audit is not None:
        from mcpmix.report.data_pages import audit_lines

        for line in audit_lines(result.audit, errors=False):
            typer.echo(line)
    if page is not None:
        _write_page(page, result.audit, settings.name)
    for warning in result.warnings:
        typer.echo(f"warning: {warning}")
    for problem in result.problems:
        typer.echo(f"Error: {problem}", err=True)
    if fix is not None:
        _write_repaired(settings, fix, result.audit, drop_copies, [str(config), *(overrides or ())])
    if result.problems:
        raise typer.Exit(result.exit_code)
    if strict and result.warned:
        typer.echo("Error: there are warnings, and --strict was given.", err=True)
        raise typer.Exit(DataError.exit_code)
    command = shlex.join(["mcpmix", "run", str(config), *(overrides or ())])
    count = result.warned
    state = f"no errors, but {count} warning{'s' if count > 1 else ''} above" if count else "no problems"
    typer.echo(f"{state}; next: {command}")


def _write_page(page: Path, audit: "Audit | None", name: str) -> None:
    """Write the page with all findings about the images, if they could be examined, and say so."""
    from mcpmix.core.files import storage_errors, write_text
    from mcpmix.report.data_pages import audit_page

    if audit is None:
        typer.echo(f"{page} is not written: the images and masks must fit together first", err=True)
        return
    with storage_errors(page.parent):
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, audit_page(audit, name))
    typer.echo(f"findings about the images: {page}")


def _write_repaired(
    settings: "Config", fix: Path, audit: "Audit | None", drop_copies: bool, arguments: list[str]
) -> None:
    """Write a repaired copy of the data, and say how to go on with it."""
    from mcpmix.data.convert import CHANGES, repair_configured

    facts = audit.facts if audit is not None else None
    with shown_progress() as progress:
        changes = repair_configured(settings, fix, facts=facts, drop_copies=drop_copies, progress=progress)
    for change in changes[:_MOST_CHANGES]:
        typer.echo(change)
    if len(changes) > _MOST_CHANGES:
        typer.echo(f"and {len(changes) - _MOST_CHANGES} more")
    places = ["data.source=folder", f"data.images={fix / 'images'}", f"data.masks={fix / 'masks'}"]
    places += [f"data.groups={fix / 'groups.csv'}"] if (fix / "groups.csv").is_file() else []
    typer.echo(f"repaired copy: {fix} ({len(changes)} changes, listed in {CHANGES})")
    replaced = {place.partition("=")[0] for place in places}
    kept = [text for text in arguments if text.partition("=")[0] not in replaced]
    typer.echo(f"to use it: {shlex.join(['mcpmix', 'check', *kept, *places])}")


models = typer.Typer(no_args_is_help=True, help="List and pin weights.", rich_markup_mode=None)


@models.command("list")
def list_models() -> None:
    """List embedded and known weights: size, licence, and whether they are on this machine."""
    from mcpmix.networks.weight_files import list_weights

    rows = [(name, size, "yes" if here else "no", licence) for name, size, here, licence in list_weights()]
    show_table(["weights", "size", "here", "licence"], rows, left=(0, 3))


@models.command()
def digest(
    source: Annotated[
        str, typer.Argument(help="A model folder, a weight file, or a hub id on this machine.")
    ],
) -> None:
    """Print a source with the SHA-256 of its files, for use in a configuration."""
    from mcpmix.networks.weight_files import pinned

    typer.echo(pinned(source))
