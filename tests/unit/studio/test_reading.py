import json

import pytest

from mcpmix.core.errors import DataError
from mcpmix.studio.reading import AbsentError, Watched, inside, look_up, read_manifest, read_object


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "link"])
def test_names_and_links_stay_inside(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="outside"):
        inside(folder, name)
    assert inside(folder, "a/b.png") == folder.resolve() / "a" / "b.png"


def test_only_what_a_request_asks_for_can_be_absent():
    assert look_up({"a": 1}, "a") == 1
    with pytest.raises(AbsentError, match="no such thing here"):
        look_up({"a": 1}, "b")
    assert not issubclass(AbsentError, KeyError)


def test_a_manifest_is_read_again_when_it_changes(tmp_path):
    assert read_manifest(tmp_path) == {}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"digest": "a", "files": {"x": "1 a"}}))
    assert read_manifest(tmp_path) == {"digest": "a"}
    path.write_text(json.dumps({"digest": "other"}))
    assert read_manifest(tmp_path) == {"digest": "other"}
    path.unlink()
    assert read_manifest(tmp_path) == {}


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_half_an_object_is_none(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    assert read_object(tmp_path / "status.json") == {}
    assert (Watched(tmp_path, "x", "x").said, Watched(tmp_path, "x", "x").tasks) == (("", ""), [])


def test_the_pace_counts_from_where_a_task_was_resumed(tmp_path):
    (tmp_path / "status.json").write_text('{"now": 130}')
    watched = Watched(tmp_path, "x", "x")
    assert watched.pace({"first": 1, "done": 3, "since": 100}) == 15
    assert watched.pace({"first": 1, "done": 1, "since": 100}) is None
