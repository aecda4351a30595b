"""The command that opens the web page of runs."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

_NICENESS = 10  # whoever watches must not slow down a run on the same machine


def studio(
    runs: Annotated[Path, typer.Argument(metavar="[RUNS]", help="Folder with runs below it.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="If taken, one of the next.")] = 8471,
    host: Annotated[
        str, typer.Option(help="Address to listen at; any other than this lets other machines in.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open the page in a browser.")
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing: no judgements, no thumbnails.")
    ] = False,
) -> None:
    """Open a page to look at runs, judge pairs, compare results.

    It shows all runs below a folder, also while they are being made, until you press Ctrl+C.
    """
    from mcpmix.core.errors import DependencyError

    try:
        from mcpmix.studio.server import address, bind, build_app, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mcpmix"):
            raise
        raise DependencyError(
            f"The studio needs the package {error.name}, which is not installed. Get it with "
            "`pip install 'mcpmix[studio]'`."
        ) from error
    token = secrets.token_urlsafe(24)
    app = build_app(runs, token, read_only=read_only, host=host)
    listener = bind(host, port)
    typer.echo(f"studio of {runs}: {address(listener, token)}\nCtrl+C ends it.")
    with suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    if browser:
        import threading
        import webbrowser

        threading.Timer(0.5, webbrowser.open, [address(listener, token)]).start()
    with suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[listener])
