"""Weights: what is available, under which licence, and their digests."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List and pin weights.", rich_markup_mode=None)


@app.command("list")
def list_models() -> None:
    """List embedded and known weights: size, licence, and whether they are on this machine."""
    from mcpmix.cli.screen import show_table
    from mcpmix.networks.known_weights import list_weights

    rows = [(name, size, "yes" if here else "no", licence) for name, size, here, licence in list_weights()]
    show_table(["weights", "size", "here", "licence"], rows, left=(0, 3))


@app.command()
def digest(
    source: Annotated[
        str, typer.Argument(help="A model folder, a weight file, or a hub id on this machine.")
    ],
) -> None:
    """Print a source with the SHA-256 of its files, for use in a configuration."""
    from mcpmix.networks.known_weights import pinned

    typer.echo(pinned(source))
