import json

import pytest

from mcpmix.cli.screen import show_report
from mcpmix.core.stage_folder import Artifact
from mcpmix.report.tables import REGION, build_table


@pytest.fixture
def report(tmp_path):
    """Two arms with two seeds; DSC 60 and 62 against 70 and 74."""

    def summary(value):
        return {column["key"]: {"mean": value, "n": 5, "undefined": 0} for column in REGION}

    scores = {("full-sup", 0): 60.0, ("full-sup", 1): 62.0, ("mcpmix-rla", 0): 70.0, ("mcpmix-rla", 1): 74.0}
    table = build_table({run: summary(value) for run, value in scores.items()}, REGION)
    (tmp_path / "table.json").write_text(json.dumps(table))
    return Artifact(tmp_path, {})


def cells(line):
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_table_has_an_arm_per_row(report, capsys):
    show_report(report)
    out = capsys.readouterr().out
    assert "5 test images, mean ± standard deviation over 2 seeds" in out
    row = next(cells(line) for line in out.splitlines() if "RLA" in line)
    assert row == ["+ MCPMix + RLA", *["72.00 ± 2.83 *"] * 5, "+11.00 ± 1.41"]
    assert f"report: {report.folder / 'report.html'}" in out


def test_table_is_turned_on_a_narrow_terminal(report, capsys, monkeypatch):
    monkeypatch.setattr("mcpmix.cli.screen._columns", lambda: 60)
    show_report(report)
    out = capsys.readouterr().out
    row = next(cells(line) for line in out.splitlines() if line.split()[:1] == ["DSC"])
    assert row == ["DSC ↑ (%)", "61.00 ± 1.41", "72.00 ± 2.83 *"]
    assert all(len(line) <= 60 for line in out.splitlines() if "±" in line and "images" not in line)
