"""A run is the same run wherever it is called from: identity is content, not places and times."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.progress import Recorder

from mcpmix.config_file import load_config
from mcpmix.init import write_phantom_folder
from mcpmix.run import run

CONFIG = """
preset: tiny
name: trial
data:
  source: folder
  images: ../data/images
  masks: ../data/masks
  groups: ../data/groups.csv
  size: 32
  split: {validation: 0.25, test: 0.25}
train: {arms: [full-sup], seeds: [0], epochs: 1, batch_size: 2, validate_every: 1}
runtime: {threads: 1, jobs: 1}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A study with its data, run once from outside."""
    home = tmp_path / "home"
    write_phantom_folder(home / "data", patients=4, frames=2, seed=0, size=32)
    (home / "study").mkdir()
    (home / "study" / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(home)
    assert "full-sup seed 0" in made(Path("study/c.yaml"))
    assert (home / "study" / "runs" / "trial" / "report").is_dir()  # next to the file, as its other paths
    return home


def made(config):
    """Titles of the work that a run had to do."""
    recorder = Recorder()
    run(load_config(config), recorder)
    return recorder.titles


def test_the_working_directory_does_not_count(home, monkeypatch):
    assert made(Path("study/c.yaml")) == []
    monkeypatch.chdir(home / "study")
    assert made(Path("c.yaml")) == []
    monkeypatch.chdir("/")
    assert made(home / "study" / "c.yaml") == []


def test_times_and_what_desktops_leave_do_not_count(home):
    for path in (home / "data").rglob("*"):
        os.utime(path, (10**9, 10**9))
    (home / "data" / "images" / ".DS_Store").write_text("x")
    (home / "data" / "masks" / "Thumbs.db").write_text("x")
    assert made(home / "study" / "c.yaml") == []


def test_a_study_that_moves_as_a_whole_is_the_same(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.move(home, tmp_path / "elsewhere")
    assert made(tmp_path / "elsewhere" / "study" / "c.yaml") == []


def test_data_that_moves_alone_is_indexed_again_and_nothing_is_trained(home):
    shutil.move(home / "data", home / "new")
    config = home / "study" / "c.yaml"
    config.write_text(CONFIG.replace("../data/", "../new/"))
    assert made(config) == ["Indexing images"]


def test_a_changed_image_counts_even_with_its_old_time(home):
    path = sorted((home / "data" / "images").iterdir())[0]
    state = path.stat()
    with Image.open(path) as image:
        Image.fromarray(255 - np.asarray(image)).save(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert "Indexing images" in made(home / "study" / "c.yaml")


def test_no_path_of_this_machine_is_in_what_a_run_publishes(home):
    folder = home / "study" / "runs" / "trial"
    checked = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.parent != folder and "cache" not in path.parts
    ]
    assert len(checked) > 10
    assert [path.name for path in checked if str(home).encode() in path.read_bytes()] == []
    assert json.loads((folder / "dataset" / "index.json").read_text())["samples"][0]["image"].startswith("..")
