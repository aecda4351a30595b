"""The command `mcpmix`."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mcpmix import __version__
from mcpmix.cli import analyse, data, demo, evaluate, export, models, predict, project, stages
from mcpmix.cli.environment import quieten
from mcpmix.cli.errors import InterruptedRunError, report_error

_DEBUG = "--debug"


class _Commands(TyperGroup):
    """Keeps Ctrl+C from the parser, which would say "Aborted!"."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedRunError from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it appears at once, and nothing is cut
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mcpmix {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[  # read by `main`, so that it may stand anywhere
        bool, typer.Option(_DEBUG, help="Show where an error comes from.")
    ] = False,
) -> None:
    """Lesion segmentation with few annotated images: mask-consistent paired mixing.

    Start with `mcpmix demo --fast`, or with `mcpmix init` for your own images.
    """


app.command()(demo.demo)
app.command()(project.init)
app.command()(project.check)
app.command()(stages.run)
app.command()(stages.depth)
app.command()(stages.finetune)
app.command()(stages.synthesize)
app.command()(stages.train)
app.command()(evaluate.evaluate)
app.command()(stages.report)
app.command()(predict.predict)
app.command()(export.export)
app.add_typer(analyse.app, name="analyse")
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        arguments: what follows `mcpmix`; by default that of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in given
    quieten(debug)
    try:
        app(args=[argument for argument in given if argument != _DEBUG], prog_name="mcpmix")
    except Exception as error:
        sys.exit(report_error(error, debug))
    sys.exit(0)
