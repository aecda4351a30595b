"""The page on metrics: its tables are those of the stored results, its first example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcpmix.metrics import HIGHER_IS_BETTER

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_results():
    script = ROOT / "benchmarks" / "metrics_tables.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_first_example_runs_and_prints_what_it_says(capsys):
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
    exec(compile(code, "docs/metrics.md", "exec"), {})
    said = re.search(r"print\(.*#\s*(.+)", code)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1].strip()


@pytest.mark.parametrize(
    "key", ["miou", "precision", "recall", "pixel_accuracy", "dsc", "hd95", "assd", "biou"]
)
def test_directions_in_the_table_are_those_of_the_code(key):
    row = re.search(rf"^\| `{key}` \| (%|px) \| (high|low) \|", TEXT, re.MULTILINE)
    assert row is not None
    assert (row[2] == "high") == HIGHER_IS_BETTER[key]
    assert (row[1] == "px") == (key in ("hd95", "assd"))
