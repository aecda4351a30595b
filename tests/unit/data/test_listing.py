"""What a place holds, by content."""

import os
from pathlib import Path

from mcpmix.data import listing as module
from mcpmix.data.listing import listing, seen_from


def test_names_and_contents_count_and_nothing_else(tmp_path):
    place = tmp_path / "data"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "a.png").write_bytes(b"a")
    first = listing(place)
    os.utime(place / "sub" / "a.png", (1, 1))
    (place / ".DS_Store").write_bytes(b"x")
    (place / "set.zip.unpacked-123").mkdir()
    (place / "set.zip.unpacked-123" / "b.png").write_bytes(b"b")
    assert listing(place) == first
    (place / "sub" / "a.png").write_bytes(b"b")
    second = listing(place)
    (place / "sub" / "a.png").rename(place / "a.png")
    assert len({first, second, listing(place)}) == 3
    assert listing(place / "a.png") != listing(place)


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    place, notes, read = tmp_path / "data", tmp_path / "cache" / "files.json", []
    place.mkdir()
    for name in "ab":
        (place / name).write_text(name)
    real = module.file_digest
    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path.name) or real(path))
    first = listing(place, notes)
    assert listing(place, notes) == first == listing(place)
    assert read == ["a", "b", "a", "b"]  # the second call read nothing, the third has no notes
    read.clear()
    (place / "a").write_text("c")
    assert listing(place, notes) != first
    assert read == ["a"]
    notes.write_text("[")  # damaged notes are made again
    assert listing(place, notes) == listing(place)


def test_places_as_seen_from_a_folder(tmp_path):
    assert seen_from(tmp_path / "runs" / "x", tmp_path / "data") == "../../data"
    assert seen_from(tmp_path, tmp_path / "a" / "b.png") == "a/b.png"
    assert seen_from(Path("runs"), Path("data")) == "../data"
