"""From errors to messages and exit codes."""

import sys
import traceback
from pathlib import Path

from mcpmix.core.errors import McpmixError

INTERRUPTED = 130
UNEXPECTED = 70


class InterruptedRunError(Exception):
    """Ctrl+C. An exception of our own, because the parser of arguments has its own idea of that key."""


def report_error(error: Exception, debug: bool = False) -> int:
    """Say on stderr what went wrong.

    Args:
        error: whatever ended the command.
        debug: whether to show where it came from even if the message is for the user.

    Returns:
        The exit code.
    """
    if isinstance(error, InterruptedRunError):
        _say("\nstopped; run the same command again to go on")
        return INTERRUPTED
    error = _translate(error)
    if isinstance(error, McpmixError):
        if debug:
            traceback.print_exception(error)
        _say(f"Error: {error}")
        return error.exit_code
    traceback.print_exception(error)
    _say("This is a mistake in mcpmix, not in your input: please report it with the lines above.")
    return UNEXPECTED


def _translate(error: Exception) -> Exception:
    """A full or read-only disk gives its message wherever it is met."""
    from mcpmix.core.artifacts import storage_errors

    try:
        with storage_errors(Path(getattr(error, "filename", None) or Path.cwd())):
            raise error
    except Exception as translated:
        return translated


def _say(text: str) -> None:
    """Plain text: paths must not be cut or wrapped."""
    print(text, file=sys.stderr, flush=True)
