"""The script as it is used: by a Python that knows nothing of mcpmix, in an unpacked archive."""

import json
import subprocess
import sys
import tarfile

import pytest
from tests.helpers.tiny_wheels import make_wheel

from mcpmix.core.errors import StorageError
from mcpmix.pack.archive import write_archive
from mcpmix.pack.installation import this_python
from mcpmix.pack.unpack import EXPECTED, differences

TABLE = {"rows": [{"arm": "full-sup", "dsc": 41.0}], "seeds": [0]}


@pytest.fixture
def archive(tmp_path):
    """An archive with two tiny wheels, one of which needs the other."""
    wheels = [make_wheel(tmp_path, "library"), make_wheel(tmp_path, "application", needs=["library"])]
    members = {f"wheels/{path.name}": path for path in wheels} | {EXPECTED: json.dumps(TABLE).encode()}
    weights = [{"setting": "depth.model", "name": "a/b", "place": "weights/a--b", "licence": "MIT"}]
    facts = {"holds": "two wheels", "python": this_python(), "requirement": "application==1.0"}
    facts |= {"weights": weights, "missing": ["docs: none"]}
    write_archive(tmp_path / "box.tar", members, facts)
    return tmp_path / "box.tar"


def unpacked(archive, folder):
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "box"


def call(folder, *arguments):
    command = [sys.executable, "-I", "-S", str(folder / "unpack.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_verifies_installs_and_says_what_is_missing(archive, tmp_path):
    done = call(unpacked(archive, tmp_path / "there"), tmp_path / "environment")

    assert done.returncode == 0, done.stderr
    assert "4 files are what was packed: two wheels" in done.stdout
    assert "missing: docs: none" in done.stdout
    assert f"depth.model={tmp_path / 'there' / 'box' / 'weights' / 'a--b'}   licence: MIT" in done.stdout
    code = "import application, library; print(application.VALUE)"
    python = tmp_path / "environment" / "bin" / "python"
    assert subprocess.check_output([python, "-c", code], text=True) == "1.0\n"


def test_every_flipped_byte_is_found_and_its_file_named(archive, tmp_path):
    sound = archive.read_bytes()
    with tarfile.open(archive) as file:
        places = {entry.name: (entry.offset_data, entry.size) for entry in file}
    assert len(places) == 5
    for name, (start, size) in places.items():
        if name.endswith("unpack.py"):
            start, size = start + sound[start : start + size].index(b"Verifies"), 0  # it must still run
        for offset in {start, start + size // 2}:
            damaged = bytearray(sound)
            damaged[offset] ^= 1
            archive.write_bytes(damaged)
            done = call(unpacked(archive, tmp_path / f"{offset}"), "--check")
            assert done.returncode == 1
            assert name.removeprefix("box/") in done.stderr


def test_missing_and_added_files_are_named(archive, tmp_path):
    folder = unpacked(archive, tmp_path / "there")
    next((folder / "wheels").glob("library*")).rename(folder / "wheels" / "other-1.0-py3-none-any.whl")
    done = call(folder)

    assert done.returncode == 1
    assert "wheels/library-1.0-py3-none-any.whl is missing" in done.stderr
    assert "wheels/other-1.0-py3-none-any.whl was added" in done.stderr
    assert not (folder / "environment").exists()


def test_another_python_is_refused(tmp_path):
    facts = {"holds": "nothing", "python": "3.99", "requirement": "x", "weights": [], "missing": []}
    write_archive(tmp_path / "box.tar", {}, facts)
    done = call(unpacked(tmp_path / "box.tar", tmp_path / "there"))

    assert done.returncode == 1
    assert "The wheels are for Python 3.99" in done.stderr


def test_a_wheel_that_was_not_packed_is_told(tmp_path):
    wheel = make_wheel(tmp_path, "application", needs=["library"])
    facts = {"holds": "", "python": this_python(), "requirement": "application", "weights": []}
    facts |= {"missing": ["a wheel of library"]}
    write_archive(tmp_path / "box.tar", {f"wheels/{wheel.name}": wheel}, facts)
    done = call(unpacked(tmp_path / "box.tar", tmp_path / "there"))

    assert done.returncode == 1
    assert "missing: a wheel of library" in done.stdout
    assert "No matching distribution found for library" in done.stderr


def test_a_table_is_compared_with_the_expected_one(archive, tmp_path):
    folder, table = unpacked(archive, tmp_path / "there"), tmp_path / "table.json"
    table.write_text(json.dumps(TABLE))
    assert call(folder, "--compare", table).returncode == 0
    table.write_text(json.dumps({**TABLE, "rows": [{"arm": "full-sup", "dsc": 40.0}]}))
    done = call(folder, "--compare", table)

    assert done.returncode == 1
    assert "differs in 1 places:\n  rows.0.dsc: 40.0, expected 41.0" in done.stderr


def test_differences_of_shape():
    assert list(differences({"a": [1, 2]}, {"a": [1], "b": None})) == ["a: [1], expected [1, 2]"]


def test_an_archive_is_not_overwritten(archive):
    with pytest.raises(StorageError, match="exists already"):
        write_archive(archive, {}, {})
