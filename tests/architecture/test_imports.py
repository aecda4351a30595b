"""Importing the package and its command line is light: heavy packages load when they are needed."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "diffusers", "transformers", "matplotlib")


def loaded_by(code):
    """Names of all modules that are loaded after running the code in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["mcpmix", "mcpmix.cli.app", "mcpmix.studio.server"])
def test_importing_loads_nothing_heavy(module):
    loaded = loaded_by(f"import {module}")

    assert module in loaded
    assert not loaded & set(HEAVY)


def test_the_check_sees_what_is_loaded():
    assert "torch" in loaded_by("import mcpmix.core.training")
