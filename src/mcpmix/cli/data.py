"""Data sets: the catalogue, downloads, conversions and the phantom."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpmix.cli.screen import shown_progress

if TYPE_CHECKING:
    from mcpmix.data.public_sets import Entry

_Root = Annotated[Path, typer.Argument(help="Where the data is.")]
_Source = Annotated[
    str, typer.Option("--from", help="folder, manifest, nnunet, imagefolder, or a name of `data list`.")
]

app = typer.Typer(
    no_args_is_help=True, help="List, download, convert and make data sets.", rich_markup_mode=None
)


@app.command("list")
def show(name: Annotated[str | None, typer.Argument(help="Only this one.")] = None) -> None:
    """Show the data sets of the catalogue: number of images, licence, splits, known traps."""
    from mcpmix.data.public_sets import entries, entry

    for number, item in enumerate([entry(name)] if name else entries().values()):
        if number:
            typer.echo()
        typer.echo(f"{item.name}: {item.title}; {item.images} images")
        facts = {
            "shows": item.shows,
            "group": item.groups or "not known: each image is its own",
            "splits": ", ".join(item.splits),
            "licence": item.licence,
            "cite": item.citation,
            "from": item.home,
            "download": f"mcpmix data get {item.name}" if item.archives else f"none; {item.access}",
            "layout": item.layout,
        }
        for title, text in facts.items():
            typer.echo(f"  {title}: {text}")
        for trap in item.traps:
            typer.echo(f"  trap: {trap}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name of `data list`.")],
    to: Annotated[Path | None, typer.Option(help="Folder for the archives; by default data/NAME.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept size and licence without asking.")] = False,
    sha256: Annotated[
        list[str] | None, typer.Option(help="Expected digest, DIGEST or FILE=DIGEST; may be repeated.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Folder on another server that holds the same files.")
    ] = None,
) -> None:
    """Download a data set that is openly available.

    Resumes where it stopped, checks the digests, and leaves the archives packed: data.root may name the
    folder. For other data sets it says whom to ask. No other command opens a connection.
    """
    from mcpmix.core.errors import DataError
    from mcpmix.data.fetch import fetch, refuse_offline, remote_size
    from mcpmix.data.public_sets import entry

    item = entry(name)
    if not item.archives:
        raise DataError(
            f"{item.title} has no open download: {item.access}. Licence: {item.licence}. Then: "
            f"mcpmix init DIR --source {item.name} --root FOLDER"
        )
    refuse_offline()
    expected = _expected_digests(item, sha256 or [])
    urls = [f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url for file in item.archives]
    folder = to or Path("data") / item.name
    sizes = [remote_size(url) for url in urls]
    typer.echo(f"{item.title}: {item.images} images; {item.shows}")
    typer.echo(f"licence: {item.licence}")
    typer.echo(f"cite: {item.citation}")
    for url, size in zip(urls, sizes, strict=True):
        typer.echo(f"file: {url} ({'size not known' if size is None else f'{size / 1e6:.1f} MB'})")
    total = sum(size or 0 for size in sizes) / 1e6
    typer.echo(f"size: {total:.1f} MB{' or more' if None in sizes else ''}, to {folder}")
    if not yes:
        typer.confirm("Download, and accept these terms?", abort=True)
    with shown_progress() as progress:
        for archive, url in zip(item.archives, urls, strict=True):
            digest = expected.get(archive.name, archive.sha256)
            md5 = "" if archive.name in expected else archive.md5
            file = fetch(url, folder, sha256=digest, md5=md5, progress=progress)
            typer.echo(f"{file}: {f'sha256 {digest}' if digest else f'md5 {md5}'} agrees")
    typer.echo(f"next: mcpmix init DIR --source {item.name} --root {folder}")


def _expected_digests(item: "Entry", given: list[str]) -> dict[str, str]:
    """The digests that the user states, by file."""
    names = [archive.name for archive in item.archives]
    expected = {}
    for text in given:
        file, equals, digest = text.rpartition("=")
        name = file if equals else names[0]
        wrong = len(digest) != 64 or any(mark not in "0123456789abcdef" for mark in digest.lower())
        if name not in names or wrong or (not equals and len(names) > 1):
            raise typer.BadParameter(
                f"--sha256 {text}: expected {'FILE=' if len(names) > 1 else ''}DIGEST with 64 hexadecimal "
                f"digits; the files are {', '.join(names)}."
            )
        expected[name] = digest.lower()
    return expected


@app.command()
def convert(
    root: _Root,
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    source: _Source = "folder",
    layout: Annotated[
        str, typer.Option("--to", help="folder, manifest, nnunet or imagefolder.")
    ] = "manifest",
) -> None:
    """Write a data set in another layout, without loss: pixels, masks, ids, groups and split."""
    from mcpmix.data.convert import WRITERS
    from mcpmix.data.convert import convert as write
    from mcpmix.data.dataset import load_collection

    if layout not in WRITERS:
        raise typer.BadParameter(f"--to {layout}: expected one of {', '.join(WRITERS)}.")
    collection = load_collection(source, root=root)
    with shown_progress() as progress:
        write(collection, layout, out, progress)
    groups = len({sample.group for sample in collection.samples})
    typer.echo(f"{len(collection.samples)} images of {groups} groups: {out}")


@app.command()
def groups(
    root: Annotated[Path, typer.Argument(help="Where the data is: a folder, or a configuration.")],
    out: Annotated[Path, typer.Argument(help="CSV to write, for data.groups.")],
    source: _Source = "folder",
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Page with a contact sheet of each group; by default OUT.html."),
    ] = None,
) -> None:
    """Guess groups when patients or videos were not recorded.

    Groups near-duplicates, and runs of frames where the order of names or times is that of videos. Look at
    the page and correct the table: this command sees pictures, not patients.
    """
    from mcpmix.core.errors import StorageError
    from mcpmix.core.files import storage_errors, write_text
    from mcpmix.data.audit import inspect_all
    from mcpmix.data.convert import write_groups
    from mcpmix.data.dataset import load_collection
    from mcpmix.data.groups import guess_groups
    from mcpmix.report.data_pages import groups_page

    sheets = page or out.with_suffix(".html")
    for file in (out, sheets):
        if file.exists():
            raise StorageError(f"{file} exists. Choose another name.")
    if root.suffix in (".yaml", ".yml"):
        from mcpmix.config_file import load_config

        data = load_config(root).data
        collection = load_collection(
            data.source, root=data.root, images=data.images, masks=data.masks, classes=data.classes
        )
    else:
        collection = load_collection(source, root=root)
    with shown_progress() as progress:
        facts = inspect_all(collection.samples, progress)
    guess = guess_groups(facts)
    with storage_errors(out.parent):
        write_groups(out, guess.group_of, guessed=True)
        write_text(sheets, groups_page(facts, guess, out.name))
    for line in guess.lines():
        typer.echo(line)
    typer.echo(
        f"written: {out}, and {sheets}, a contact sheet of each group: look at it and correct the table"
    )
    typer.echo(f"to use it: {shlex.join([f'data.groups={out}'])}")


@app.command()
def phantom(
    out: Annotated[Path | None, typer.Option(help="Folder for images/, masks/ and groups.csv.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="PNG with all frames, a row per patient.")] = None,
    patients: Annotated[int, typer.Option(min=1, help="Number of patients.")] = 6,
    frames: Annotated[int, typer.Option(min=1, help="Frames of each patient.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other patients.")] = 0,
    size: Annotated[int, typer.Option(min=1, help="Side of a frame in pixels.")] = 128,
) -> None:
    """Draw endoscopic frames with exact masks: a folder to practise on, a contact sheet, or both."""
    if out is None and sheet is None:
        raise typer.BadParameter("give --out, --sheet, or both.")
    from mcpmix.init import write_phantom_folder, write_phantom_sheet

    wanted = {"patients": patients, "frames": frames, "seed": seed, "size": size}
    with shown_progress() as progress:
        if out is not None:
            write_phantom_folder(out, **wanted, progress=progress)
        if sheet is not None:
            write_phantom_sheet(sheet, **wanted, progress=progress)
    if out is not None:
        folders = f"--images {out / 'images'} --masks {out / 'masks'} --groups {out / 'groups.csv'}"
        typer.echo(f"{patients * frames} frames of {patients} patients: {out}")
        typer.echo(f"to train on them: mcpmix init DIR {folders}")
    if sheet is not None:
        typer.echo(f"contact sheet: {sheet}")
