"""Files that may be anything: pipes, floods, depths, names that are none."""

import os
from pathlib import Path

import pytest

from mcpmix.core.reading import expanded, has_file, is_stray, parse_json, read_json, read_text


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
