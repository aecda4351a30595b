"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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
