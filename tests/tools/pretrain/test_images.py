"""Which images are trained on, and with which texts."""

import pytest
from tools.pretrain.images import find_images, listed_images, read_captions

from mcpmix.core.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.JPG", "deep/c.tif", "deep/d.png", "other/d.png", ".hidden.png", "notes.txt"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "images"


def test_images_are_found_at_any_depth(folder):
    names = [path.relative_to(folder).as_posix() for path in find_images(folder)]
    assert names == ["a.png", "b.JPG", "deep/c.tif", "deep/d.png", "other/d.png"]


def test_no_folder_and_no_images(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        find_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="No images below"):
        find_images(tmp_path)


def test_a_list_names_paths_names_or_stems(folder, tmp_path):
    listing = tmp_path / "train.txt"
    listing.write_text(f"# training part\n\na.png\nc\n{folder / 'b.JPG'}\nother/d.png\na\n")
    wanted = ["a.png", "deep/c.tif", "b.JPG", "other/d.png"]
    assert listed_images(listing, folder) == [folder / name for name in wanted]


def test_a_list_without_a_folder_is_relative_to_itself(folder):
    (folder / "list.txt").write_text("deep/c.tif\n")
    assert listed_images(folder / "list.txt") == [folder / "deep" / "c.tif"]


def test_every_bad_line_of_a_list_is_named(folder, tmp_path):
    listing = tmp_path / "train.txt"
    listing.write_text("a\nmissing\nd.png\n")
    with pytest.raises(DataError) as error:
        listed_images(listing, folder)
    assert "line 2: 'missing' names no image" in str(error.value)
    assert "line 3: 'd.png' names 2 images" in str(error.value)
    listing.write_text("# nothing\n")
    with pytest.raises(DataError, match="the list is empty"):
        listed_images(listing, folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "file_name,text\na.png,first\ndeep/d.png,second\n"),
        ("t.jsonl", '{"id": "a", "caption": "first"}\n\n{"path": "deep/d.png", "text": "second"}\n'),
    ],
)
def test_captions_by_path_name_or_stem(folder, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    images = [folder / "deep" / "d.png", folder / "a.png"]
    assert read_captions(tmp_path / name, images) == ["second", "first"]


def test_images_without_or_with_two_captions_are_all_named(folder, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("file_name,text\na.png,one\na.png,two\n")
    with pytest.raises(DataError) as error:
        read_captions(table, [folder / "a.png", folder / "b.JPG"])
    assert "a.png has two captions" in str(error.value)
    assert "b.JPG has no caption" in str(error.value)


@pytest.mark.parametrize(("name", "text"), [("t.csv", "name,words\na,b\n"), ("t.jsonl", "{]\n")])
def test_a_table_of_another_shape(folder, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="no table of captions"):
        read_captions(tmp_path / name, [folder / "a.png"])
