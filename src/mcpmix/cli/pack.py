"""One file for a machine without internet, or of what a run has made."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import show_table, shown_progress

if TYPE_CHECKING:
    from mcpmix.pack.installation import Target


def pack(
    out: Annotated[Path, typer.Argument(metavar="OUT.tar", help="The file to write.")],
    config: Annotated[
        Path | None, typer.Option(help="A configuration: it and the weights that it names are packed.")
    ] = None,
    wheels: Annotated[
        Path | None, typer.Option(help="Folder with wheels of all that is needed; nothing is fetched.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="3.11", help="Fetch wheels for this version of Python, by pip.")
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option(help="For this platform, e.g. manylinux_2_28_x86_64; may be repeated."),
    ] = None,
    extra: Annotated[list[str] | None, typer.Option(help="An extra, e.g. studio; may be repeated.")] = None,
    expected: Annotated[
        Path | None, typer.Option(help="table.json of a test run, to compare with on the other machine.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Pack the results of this run instead, without patient images.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Fetch what is listed without asking.")] = False,
) -> None:
    """Pack for a machine without internet, or a run's results.

    The file holds a script, unpack.py, that needs only Python: it verifies every digest, installs without
    network, and says what is missing. With --python pip is asked what it would fetch; that is shown with
    sizes and licences before anything is fetched.
    """
    if run is not None and any(item for item in (config, wheels, python, platform, extra, expected)):
        raise typer.BadParameter("--run packs results alone; leave the other options out.")
    if wheels is not None and python is not None:
        raise typer.BadParameter("give --wheels, a folder, or --python, to fetch; not both.")
    if platform and python is None and wheels is None:
        raise typer.BadParameter("--platform needs --python, e.g. --python 3.11, or --wheels.")
    from mcpmix.pack.archive import write_archive

    # Beside the archive, because wheels are larger than many temporary folders.
    beside = next(folder for folder in (out.parent, *out.absolute().parents) if folder.is_dir())
    with TemporaryDirectory(dir=beside) as place, shown_progress() as progress:
        if run is not None:
            from mcpmix.pack.results import results

            members, facts = results(run)
        else:
            from mcpmix.pack.installation import Target, installation, own_wheel, this_python

            target, extras = Target(python or this_python(), tuple(platform or ())), extra or []
            own = own_wheel(Path(place))
            if python is not None:
                wheels = Path(place) / "fetched"
                wheels.mkdir()
                _fetch(own, extras, target, wheels, yes)
            members, facts = installation(
                wheels or Path(place), own, target, extras=extras, config=config, expected=expected
            )
        manifest = write_archive(out, members, facts, progress)
    for entry in manifest.get("weights", []):
        typer.echo(f"weights: {entry['setting']} {entry['name']}; licence: {entry['licence']}")
    for text in manifest["missing"]:
        typer.echo(f"missing: {text}")
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; {manifest['holds']}")
    typer.echo(f"there: tar -xf {out.name} && cd {out.stem} && python3 unpack.py")


def _fetch(own: Path, extras: list[str], target: "Target", folder: Path, yes: bool) -> None:
    """Show what pip would fetch, ask, and fetch it."""
    from mcpmix.pack.installation import fetch_wheels, list_needed

    needed = list_needed(own, extras, target)
    rows = [
        (item.name, item.version, "?" if item.size is None else f"{item.size / 1e6:.1f}", item.licence)
        for item in needed
    ]
    show_table(["package", "version", "MB", "licence"], rows, left=(0, 1, 3))
    total = sum(item.size or 0 for item in needed) / 1e6
    more = " or more" if any(item.size is None for item in needed) else ""
    typer.echo(f"{len(needed)} wheels, {total:.1f} MB{more}")
    if not yes:
        typer.confirm("Fetch these, and accept their terms?", abort=True)
    fetch_wheels(needed, target, folder)
