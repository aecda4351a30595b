"""The command around the archives: what it writes, says and asks; what is in them is tested beside `pack`."""

import io
import json
import sys
import tarfile

import pytest
from tests.helpers.finished_run import FinishedRun
from tests.helpers.tiny_wheels import make_wheel

from mcpmix.config_file import keep_settings
from mcpmix.core.progress import SILENT
from mcpmix.pack import installation
from mcpmix.pack.installation import this_python


def manifest_of(path):
    with tarfile.open(path) as archive:
        return json.load(archive.extractfile(f"{path.stem}/manifest.json"))


def test_it_packs_without_a_network_and_says_what_is_missing(mcpmix, tmp_path):
    (tmp_path / "mcpmix.yaml").write_text("preset: tiny\nsegmenter: {weights: nvidia/mit-b0}\n")
    box = tmp_path / "new" / "box.tar"
    outcome = mcpmix("pack", box, "--config", tmp_path / "mcpmix.yaml")

    assert outcome.code == 0, outcome.err
    assert manifest_of(box)["python"] == this_python()
    assert list(box.parent.iterdir()) == [box]
    assert "missing: weights of segmenter.weights: " in outcome.out
    assert outcome.out.endswith("there: tar -xf box.tar && cd box && python3 unpack.py\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--run", "x", "--config", "y"], "--run packs results alone"),
        (["--wheels", "x", "--python", "3.11"], "not both"),
        (["--platform", "win_amd64"], "--platform needs --python"),
    ],
)
def test_options_that_do_not_go_together(mcpmix, tmp_path, options, told):
    outcome = mcpmix("pack", tmp_path / "box.tar", *options)
    assert outcome.code == 2
    assert told in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_results_of_a_run_need_no_wheels(mcpmix, tmp_path):
    run = FinishedRun(tmp_path / "runs", ["train.arms=[full-sup]"])
    run.report()
    keep_settings(run.config, SILENT)
    outcome = mcpmix("pack", tmp_path / "box.tar", "--run", run.config.folder)

    assert outcome.code == 0, outcome.err
    assert "no patient image" in outcome.out
    files = manifest_of(tmp_path / "box.tar")["files"]
    assert "report/table.json" in files
    assert not [name for name in files if name.startswith("wheels/")]


@pytest.mark.parametrize(("answer", "options", "code"), [("n\n", [], 1), ("y\n", [], 0), ("", ["--yes"], 0)])
def test_wheels_are_listed_and_fetched_after_a_yes_only(mcpmix, tmp_path, monkeypatch, answer, options, code):
    index = tmp_path / "index"
    index.mkdir()
    wheel = make_wheel(index, "library", about=["License: BSD-3-Clause"])
    needs = make_wheel(tmp_path, "mcpmix", needs=["library"])
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "MCPMIX_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(installation, "own_wheel", lambda _: needs)  # that of mcpmix needs torch
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    box = tmp_path / "out" / "box.tar"
    outcome = mcpmix("pack", box, "--python", this_python(), *options)

    assert outcome.code == code, outcome.err
    assert "BSD-3-Clause" in outcome.out
    assert "1 wheels, 0.0 MB\n" in outcome.out
    assert box.exists() == (code == 0)
    if code == 0:
        assert f"wheels/{wheel.name}" in manifest_of(box)["files"]
