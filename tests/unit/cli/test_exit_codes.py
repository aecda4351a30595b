"""The table of exit codes in docs/integrity.md is that of the code."""

import re
import signal
from pathlib import Path

from mcpmix.cli import app
from mcpmix.core import errors

PAGE = Path(__file__).parents[3] / "docs" / "integrity.md"


def test_every_code_is_in_the_table_and_no_other():
    table = PAGE.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    kinds = [errors.McpmixError, *errors.McpmixError.__subclasses__()]
    stops = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}
    assert len(kinds) >= 7
    assert documented == sorted({0, app.UNEXPECTED, *stops, *(kind.exit_code for kind in kinds)})


def test_each_error_ends_with_its_code(mcpmix, monkeypatch, tmp_path):
    for kind in (errors.McpmixError, *errors.McpmixError.__subclasses__()):

        def fail(*_, kind=kind, **__):
            raise kind("no")

        monkeypatch.setattr("mcpmix.init.write_phantom_sheet", fail)
        done = mcpmix("data", "phantom", "--sheet", tmp_path / "sheet.png")
        assert (done.code, done.err.strip()) == (kind.exit_code, "Error: no")
    assert mcpmix("nonsense").code == 2
    assert mcpmix("--version").code == 0
