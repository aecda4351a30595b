"""Files that may be anything (pipes, floods, depths, names that are none), and files written whole."""

import errno
import json
import os
from pathlib import Path

import pytest

from mcpmix.core.errors import ModelError, StorageError, TrainingError
from mcpmix.core.files import (
    expanded,
    file_digest,
    has_file,
    is_stray,
    new_folder,
    parse_json,
    read_json,
    read_text,
    storage_errors,
    write_json,
    write_text,
    written,
)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_text, read_json):
        with pytest.raises(OSError, match="pipe is not a regular file"):
            read(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        read_text(tmp_path)


def test_a_file_without_end_is_refused_unread(tmp_path):
    with (tmp_path / "flood").open("wb") as file:
        file.truncate(2**31)  # sparse
    with pytest.raises(OSError, match="more than any such file needs"):
        read_text(tmp_path / "flood")


def test_json_is_read_and_depth_is_a_value_error(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, "é"]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"a": [1, "é"]}
    assert parse_json(b"[1]") == [1]
    for text in ("[" * 100_000, '{"a":' * 100_000, "{"):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            parse_json(text)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "missing", "a/" * 3000])
def test_texts_that_cannot_be_a_path_are_no_file(tmp_path, name):
    assert not has_file(tmp_path / name)


def test_an_unknown_user_stays_a_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/x") == Path("/home/somebody/x")
    assert expanded("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_what_desktops_leave_behind():
    strays = (".DS_Store", "a/.hidden/b.png", "Thumbs.db", "a/desktop.ini", "__MACOSX/a.png", "._a.png")
    assert all(is_stray(Path(name)) for name in strays)
    assert not any(is_stray(Path(name)) for name in ("a.png", "a.b/c.png", "thumbs.png"))


def test_file_digest_is_sha256(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")

    # The example of the standard, FIPS 180-2.
    assert file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


class TestWriting:
    def test_json_is_readable_and_ends_with_a_line(self, tmp_path):
        write_json(tmp_path / "x.json", {"name": "Bärbel", "path": Path("a/b")})
        text = (tmp_path / "x.json").read_text(encoding="utf-8")

        assert json.loads(text) == {"name": "Bärbel", "path": "a/b"}
        assert "Bärbel" in text
        assert text.endswith("}\n")

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        write_text(tmp_path / "x.txt", "old")

        def fail(source, destination):
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="broken"):
            write_text(tmp_path / "x.txt", "new")

        assert (tmp_path / "x.txt").read_text() == "old"


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(TypeError), written(file) as temporary, temporary.open("w") as half:
        half.writelines(["half", None])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]
    with written(file) as temporary:
        temporary.write_text("new")
        assert file.read_text() == "old"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    folder = new_folder(tmp_path / "a" / "folder")
    (tmp_path / "a" / "folder.tmp").mkdir()
    (tmp_path / "a" / "folder.tmp" / "of a kill").touch()
    with pytest.raises(FileNotFoundError), written(folder) as temporary:
        (temporary / "a" / "b").mkdir()
    assert list(folder.parent.iterdir()) == [folder]
    with written(folder) as temporary:
        temporary.mkdir()
        (temporary / "file").touch()
    assert list(folder.parent.iterdir()) == [folder]
    assert list(folder.iterdir()) == [folder / "file"]


def test_an_output_folder_must_be_empty(tmp_path):
    assert new_folder(tmp_path / "a" / "b").is_dir()
    assert new_folder(tmp_path / "a" / "b").is_dir()
    with pytest.raises(StorageError, match="a is not empty"):
        new_folder(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="a file is in the way"):
        new_folder(tmp_path / "file")


class TestStorageErrors:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_errors_that_carry_the_number_only_in_their_text(self, tmp_path, number):
        # What safetensors raises on a full disk, as measured: not an OSError.
        text = f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"

        with pytest.raises(StorageError, match="is full"), storage_errors(tmp_path):
            raise RuntimeError(text)

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path):
        with (
            pytest.raises(StorageError, match=r"Cannot write to /data/x\.png: Permission denied\."),
            storage_errors(tmp_path),
        ):
            raise PermissionError(errno.EACCES, "Permission denied", "/data/x.png")

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("a programming mistake"),
            FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
            ModelError("Cannot read the checkpoint: No space left on device (os error 28)"),
        ],
    )
    def test_all_other_errors_pass_unchanged(self, tmp_path, error):
        with pytest.raises(type(error)) as caught, storage_errors(tmp_path):
            raise error
        assert caught.value is error

    @pytest.mark.parametrize(
        "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes\nmore")]
    )
    def test_out_of_memory_says_what_to_lower(self, tmp_path, error):
        with (
            pytest.raises(TrainingError, match=r"^Memory ran out.*Lower batch_size"),
            storage_errors(tmp_path),
        ):
            raise error
