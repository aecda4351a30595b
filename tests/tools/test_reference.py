"""The reference pages hold every setting, command and public name, with what the source says about them."""

import pytest
import typer
from tests.architecture.test_config_fields import leaves
from tools.reference import reference

from mcpmix.cli.app import app
from mcpmix.config import Config


@pytest.fixture(scope="module")
def pages():
    return reference()


def test_every_setting_is_there_with_default_range_and_text(pages):
    page = pages["configuration.md"]

    assert [leaf.path for leaf in leaves(Config) if f"\n| `{leaf.path}` |" not in page] == []
    assert "| `train.epochs` | `400` | whole number > 0 | T: schedules reach their end here. |" in page
    assert '| `depth.near` | `"auto"` | `auto`, `large`, `small` |' in page
    assert '| `rla.tau0` | `"auto"` | number > 0 or `auto` |' in page
    assert "| `evaluation.tolerances` | `[2, 5, 10]` | list of: whole number > 0 |" in page
    assert "admitted to the bank ([pairs](../pairs.md))" in page


def test_every_command_is_there_with_its_options(pages):
    page = pages["command-line.md"]
    groups = {"mcpmix": typer.main.get_command(app)}
    for name, group in groups["mcpmix"].commands.items():
        groups |= {f"mcpmix {name}": group} if hasattr(group, "commands") else {}

    named = [f"{name} {inner}" for name, group in groups.items() for inner in group.commands]
    assert len(named) > 20
    assert [name for name in named if f"\n## {name}\n" not in page] == []
    assert "| `--frames <int range>` | Frames of each patient.  [default: 4; x>=1] |" in page


def test_public_names_have_signature_and_docstring(pages):
    page = pages["python.md"]

    assert "```python\ndef mix(real: Tensor, synthetic: Tensor, s: float | Tensor) -> Tensor:\n```" in page
    assert "**Args**\n\n- `real`: Real images, (B, ...), floating point.\n" in page
    assert "```python\nRLA(\n    epochs: int," in page
    assert "#### RLA.s\n\n```python\n@property\ndef s(self) -> Tensor:\n```" in page
    assert "class RLALoss(NamedTuple):" in page
    assert "#### Predictor.predict" in page
    assert "_discrepancy(" not in page
