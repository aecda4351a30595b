"""The command `mcpmix`: its commands, and from errors to messages and exit codes."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mcpmix import __version__
from mcpmix.cli import bench, data, pack, project, segmenters, stages, studio
from mcpmix.core.errors import McpmixError

# Read by the libraries when they are imported, and inherited by worker processes.
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DIFFUSERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # no socket is opened unless the user asks for it
}


# Threads of OpenMP that wait for work spin, and on a machine with anything else to do they take the time of
# those that work. These are read when torch is imported.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def quieten(debug: bool = False) -> None:
    """Silence other libraries, keep them offline and let threads wait; what the user has set stays."""
    if "HF_HUB_OFFLINE" not in os.environ:  # the user has not forbidden `mcpmix data get` to do its work
        os.environ.setdefault("MCPMIX_OFFLINE", "0")
    patient = {} if _PATIENT.keys() & os.environ.keys() else _PATIENT
    for name, value in (_QUIET | patient).items():
        os.environ.setdefault(name, value)
    if not (debug or sys.warnoptions):
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"


UNEXPECTED = 70
_STOPS = (signal.SIGINT, signal.SIGTERM)  # Ctrl+C, and how schedulers and `kill` end a process
_stopped_by = signal.SIGINT


class InterruptedRunError(Exception):
    """Ctrl+C or SIGTERM. A separate exception, because the argument parser handles that key itself."""


def stop_in_order() -> None:
    """Let SIGTERM end a command as Ctrl+C does, and a second one of either at once, without a traceback.

    Ending at once loses nothing: files are written whole or not at all, and processes of ours end with us.
    """

    def stop(number: int, _frame: object) -> None:
        global _stopped_by
        _stopped_by = signal.Signals(number)
        for each in _STOPS:
            signal.signal(each, stop_now)
        raise KeyboardInterrupt

    def stop_now(number: int, _frame: object) -> None:
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h\n")  # a progress bar has hidden the cursor
        os.write(2, b"stopped at once\n")
        os._exit(128 + number)

    for each in _STOPS:
        if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler):  # not under nohup
            signal.signal(each, stop)


def report_error(error: Exception, debug: bool = False) -> int:
    """Say on stderr what ended the command, with `debug` also where, and return its exit code."""
    if isinstance(error, InterruptedRunError):
        _say("\nstopped; run the same command again to resume")
        return 128 + _stopped_by
    from mcpmix.core.files import storage_errors

    try:  # a full or read-only disk has its message wherever it is met
        with storage_errors(Path(getattr(error, "filename", None) or os.curdir)):
            raise error
    except McpmixError as translated:
        if debug:
            traceback.print_exception(translated)
        _say(f"Error: {translated}")
        return translated.exit_code
    except Exception:
        traceback.print_exception(error)
    _say("This is a bug in mcpmix, not a mistake in your input: please report it with the lines above.")
    return UNEXPECTED


def _say(text: str) -> None:
    """Plain text: paths must not be cut or wrapped."""
    print(text, file=sys.stderr, flush=True)


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
        bool, typer.Option(_DEBUG, help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Lesion segmentation with few annotated images: mask-consistent paired mixing.

    Start with `mcpmix demo --fast`, or with `mcpmix init` for your own images.
    """


for _command in (
    stages.demo,
    project.init,
    project.check,
    stages.run,
    stages.depth,
    stages.adapt,
    stages.finetune,
    stages.synthesize,
    stages.train,
    segmenters.evaluate,
    stages.report,
    segmenters.predict,
    segmenters.export,
    segmenters.export_pairs,
    studio.studio,
    bench.bench,
    bench.verdict,
    pack.pack,
):
    app.command()(_command)
app.add_typer(segmenters.analyse, name="analyse")
app.add_typer(project.models, name="models")
app.add_typer(data.app, name="data")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, by default that of this process, and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in given
    quieten(debug)
    stop_in_order()
    try:
        app(args=[argument for argument in given if argument != _DEBUG], prog_name="mcpmix")
    except KeyboardInterrupt:  # before the command began, or after it
        sys.exit(report_error(InterruptedRunError(), debug))
    except Exception as error:
        sys.exit(report_error(error, debug))
    sys.exit(0)
