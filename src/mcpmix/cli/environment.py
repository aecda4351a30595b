"""What the libraries below may say and do while a command runs."""

import os
import sys
import warnings

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


def quieten(debug: bool = False) -> None:
    """Silence other libraries and keep them offline; what the user has set stays.

    Args:
        debug: whether to leave Python's warnings on.
    """
    if "HF_HUB_OFFLINE" not in os.environ:  # the user has not forbidden `mcpmix data get` to do its work
        os.environ.setdefault("MCPMIX_OFFLINE", "0")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not (debug or sys.warnoptions):
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"
