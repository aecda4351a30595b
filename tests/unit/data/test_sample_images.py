import pytest

from mcpmix.core.errors import DataError
from mcpmix.data.sample import named_images


def test_names_are_paths_below_the_folder_without_endings(tmp_path):
    for name in ("b.PNG", "sub/a.tif", ".hidden.png", ".cache/c.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert named_images(tmp_path) == {"b": tmp_path / "b.PNG", "sub/a": tmp_path / "sub" / "a.tif"}
    assert named_images(tmp_path / "b.PNG") == {"b": tmp_path / "b.PNG"}


def test_empty_folders_and_equal_names(tmp_path):
    with pytest.raises(DataError, match=r"holds no images\. Expected files ending in \.bmp, "):
        named_images(tmp_path)
    with pytest.raises(DataError, match="missing does not exist"):
        named_images(tmp_path / "missing")
    (tmp_path / "a.png").touch()
    (tmp_path / "a.jpg").touch()
    with pytest.raises(DataError, match=r"same name; rename one of:\n  - a\.jpg and a\.png"):
        named_images(tmp_path)
