"""Which images are trained on, and with which texts; images are decoded once."""

import dataclasses

import pytest
from PIL import Image
from tools.pretrain.corpus import (
    caption,
    find_images,
    image_corpus,
    listed_images,
    phantom_corpus,
    read_captions,
)

from mcpmix import phantom
from mcpmix.core.errors import DataError


def test_prompts_carry_one_and_three_phrases(tmp_path):
    corpus = phantom_corpus(tmp_path, 2, 32)
    captions, one, three = corpus.texts("A polyp.")
    mucosa, view, light = corpus.words[0][:3]
    assert captions == corpus.captions
    assert one[0] == f"A polyp. {mucosa} mucosa"
    assert three[0] == f"A polyp. {mucosa} mucosa, {view} view, {light} light"


@pytest.fixture
def photographs(tmp_path):
    """Three images of different sizes."""
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.png", "deep/c.png")):
        Image.new("RGB", (40 + number, 30), (200, 100, 80 * number)).save(folder / name)
    return folder


def test_own_images_have_no_words_and_only_their_captions(photographs, tmp_path):
    paths = find_images(photographs)
    corpus = image_corpus(paths, ["a polyp", "b", "c"], tmp_path / "cache", 16)
    assert corpus.images.shape == (3, 16, 16, 3)
    assert corpus.images[1, 0, 0].tolist() == [200, 100, 80]
    assert corpus.texts("A polyp.") == [["a polyp", "b", "c"]]


def test_decoded_images_are_kept_until_a_file_changes(photographs, tmp_path, monkeypatch):
    paths = find_images(photographs)
    first = image_corpus(paths, [""] * 3, tmp_path / "cache", 16)
    with monkeypatch.context() as patch:
        patch.setattr("tools.pretrain.corpus.read_image", None)  # a second decoding would fail
        assert image_corpus(paths, [""] * 3, tmp_path / "cache", 16).digest == first.digest
    Image.new("RGB", (40, 30), (1, 2, 3)).save(paths[0])
    changed = image_corpus(paths, [""] * 3, tmp_path / "cache", 16)
    assert changed.digest != first.digest
    assert changed.images[0, 0, 0].tolist() == [1, 2, 3]


def test_unreadable_images_are_all_named(tmp_path):
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError) as error:
        image_corpus(find_images(tmp_path), ["", ""], tmp_path / "cache", 16)
    assert "a.png" in str(error.value)
    assert "b.jpg" in str(error.value)


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
    with pytest.raises(DataError, match="not a table of captions"):
        read_captions(tmp_path / name, [folder / "a.png"])


def test_caption_in_full():
    words = ("pale", "octagonal", "bright", "dense", "sharp", "clean", "reddish", "raised", "small")
    assert caption(dataclasses.replace(phantom.render(0, 0, 0, 16), words=words)) == (
        "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense vessels, "
        "sharp focus, clean surface, showing a small reddish raised lesion"
    )
