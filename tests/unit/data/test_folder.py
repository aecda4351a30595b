"""Own folders: pairing, groups, and every problem at once."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.folder import read_rows, scan_folder, write_csv
from mcpmix.data.sample import Sample


def scan(root: Path, groups: Path | None = None) -> list[Sample]:
    return scan_folder(root / "images", root / "masks", groups)


def problems_of(root: Path, groups: Path | None = None) -> list[str]:
    with pytest.raises(DataError) as caught:
        scan(root, groups)
    headline, *lines = str(caught.value).split("\n")
    count = f"{len(lines)} problem{'s' * (len(lines) > 1)}"
    assert headline == f"{count} with the images in {root / 'images'} and the masks in {root / 'masks'}:"
    return [line.removeprefix("  - ") for line in lines]


def test_equal_stems_make_pairs_in_order(tmp_path, make_pair):
    samples = [make_pair(stem) for stem in ("b", "a 1", "c.x")]
    assert scan(tmp_path) == sorted(samples, key=lambda sample: sample.id)


@pytest.mark.parametrize("suffix", ["_segmentation", "_mask", "-mask", "_gt", "_Segmentation", "_MASK"])
def test_suffixed_masks_make_pairs(tmp_path, make_pair, suffix):
    sample = make_pair("ISIC_0000001", suffix=suffix)
    assert scan(tmp_path) == [sample]


def test_case_of_stems_and_endings_does_not_matter(tmp_path, make_pair):
    sample = make_pair("img_1")
    sample.image.rename(tmp_path / "images" / "IMG_1.PNG")
    assert [(found.id, found.mask) for found in scan(tmp_path)] == [("IMG_1", sample.mask)]


def test_image_whose_own_name_ends_like_a_mask(tmp_path, make_pair):
    samples = [make_pair("a"), make_pair("a_mask")]
    assert scan(tmp_path) == samples


def test_images_and_masks_in_one_folder(tmp_path, make_pair):
    sample = make_pair("a", suffix="_mask")
    sample.mask.rename(tmp_path / "images" / "a_mask.png")
    [found] = scan_folder(tmp_path / "images", tmp_path / "images")
    assert (found.id, found.image.name, found.mask.name) == ("a", "a.png", "a_mask.png")


def test_hidden_files_and_other_endings_are_passed_over(tmp_path, make_pair):
    sample = make_pair("a")
    for name in ("._a.png", "Thumbs.db", "notes.txt"):
        (tmp_path / "images" / name).write_bytes(b"x")
    (tmp_path / "images" / "folder.png").mkdir()
    (tmp_path / "images" / "loop.png").symlink_to("loop.png")
    assert scan(tmp_path) == [sample]


def test_all_problems_come_at_once(tmp_path, make_pair):
    make_pair("fine")
    single = make_pair("single")
    single.mask.unlink()
    orphan = make_pair("orphan")
    orphan.image.unlink()
    broken = make_pair("broken")
    broken.image.write_bytes(broken.image.read_bytes()[:60])
    unmasked = make_pair("unmasked")
    unmasked.mask.write_bytes(b"")
    other = make_pair("other")
    Image.fromarray(np.zeros((4, 6), dtype=np.uint8)).save(other.mask)
    twin = make_pair("twin")
    Image.open(twin.image).save(twin.image.with_suffix(".bmp"))
    double = make_pair("double")
    Image.open(double.mask).save(double.mask.with_name("double_gt.png"))

    problems = problems_of(tmp_path)
    images, masks = tmp_path / "images", tmp_path / "masks"
    assert len(problems) == 7
    assert problems[0] == (
        f"{images}/twin.bmp, {images}/twin.png have the same stem. Expected one image per stem: rename or "
        "remove all but one."
    )
    assert problems[1] == (
        f"{masks}/double.png, {masks}/double_gt.png belong to the same image. Expected one mask per stem: "
        "rename or remove all but one."
    )
    assert problems[2] == (
        f"{single.image} has no mask. Expected single in {masks}, with or without one of the suffixes "
        "_segmentation, _mask, -mask, _gt: add the mask or remove the image."
    )
    assert problems[3] == (
        f"{orphan.mask} has no image. Expected an image with the same stem: add the image or remove the mask."
    )
    assert problems[4].startswith(f"{broken.image} cannot be read: ")
    assert problems[4].endswith("export it again, or remove the image together with its mask.")
    assert problems[5] == (
        f"{other.mask} is 6 x 4 pixels, but its image {other.image} is 10 x 8. Expected equal sizes: export "
        "the mask at the size of its image."
    )
    assert problems[6].startswith(f"{unmasked.mask} cannot be read: the file is empty. ")


def test_nothing_is_decoded_where_names_are_right(tmp_path, make_pair):
    sample = make_pair("a")
    sample.image.write_bytes(b"")
    assert scan(tmp_path) == [sample]


def test_image_and_mask_both_unreadable_are_two_problems(tmp_path, make_pair):
    sample = make_pair("a")
    sample.image.write_bytes(b"")
    sample.mask.write_bytes(b"")
    make_pair("b").mask.unlink()
    assert [problem.split(" ")[0] for problem in problems_of(tmp_path)[1:]] == [
        str(sample.image),
        str(sample.mask),
    ]


def test_single_files_can_be_left_out(tmp_path, make_pair):
    sample = make_pair("a")
    make_pair("b").mask.unlink()
    left_out = []
    assert scan_folder(tmp_path / "images", tmp_path / "masks", left_out=left_out) == [sample]
    assert len(left_out) == 1
    assert "b.png has no mask" in left_out[0]


def test_missing_and_empty_folders_hide_no_cause(tmp_path, make_pair):
    for stem in "abc":
        make_pair(stem).image.unlink()
    images = tmp_path / "images"
    empty = f"{images} holds no images. Expected files ending in .bmp, .jpeg, .jpg, .png, .tif, .tiff."
    assert problems_of(tmp_path) == [empty]
    images.rmdir()
    missing = f"{images} does not exist. Expected the folder of images: check the path."
    assert problems_of(tmp_path) == [missing]
    images.write_bytes(b"")
    assert problems_of(tmp_path) == [
        f"{images} is a file, not a folder. Expected the folder of images: check the path."
    ]


@pytest.mark.parametrize(
    "table",
    [
        "id,group\na,p1\nb,p1\nc,p2\n",
        "\ufeffGroup ; age; ID\r\np1;50;a.png\r\np1;50;b\r\n\r\np2;60; c\r\nnot here;1;zzz\r\n",
        "id\tgroup\na\tp1\nb\tp1\nc\tp2",
    ],
)
def test_groups_from_tables_as_spreadsheets_write_them(tmp_path, make_pair, table):
    for stem in "abc":
        make_pair(stem)
    path = tmp_path / "groups.csv"
    path.write_bytes(table.encode())
    assert {sample.id: sample.group for sample in scan(tmp_path, path)} == {"a": "p1", "b": "p1", "c": "p2"}


def test_all_problems_of_the_group_table(tmp_path, make_pair):
    for stem in "abc":
        make_pair(stem)
    (tmp_path / "masks" / "c.png").unlink()
    path = tmp_path / "groups.csv"
    path.write_text("id,group\na,p1\na,p2\nb,\n")
    problems = problems_of(tmp_path, path)
    assert problems[0].startswith(f"{tmp_path / 'images' / 'c.png'} has no mask. ")
    assert problems[1:] == [
        f"{path}, line 3: a is in group p2, but an earlier line says p1. Keep one of them.",
        f"{path}, line 4: b has an empty group. Fill it in.",
        f"{tmp_path / 'images' / 'c.png'} is not in {path}. Expected a line with the id c: add it with its "
        "group.",
    ]


@pytest.mark.parametrize(("content", "found"), [("name,patient\na,p1\n", "name, patient"), ("id\na\n", "id")])
def test_group_table_without_its_columns(tmp_path, make_pair, content, found):
    make_pair("a")
    path = tmp_path / "groups.csv"
    path.write_text(content)
    assert problems_of(tmp_path, path) == [
        f"{path} has the columns: {found}. Expected id and group in its first line: rename or add them."
    ]


def test_group_table_that_cannot_be_read(tmp_path, make_pair):
    make_pair("a")
    path = tmp_path / "groups.csv"
    for content, fact in (
        (None, "does not exist"),
        (b"", "has no rows"),
        ("Müller".encode("latin-1"), "UTF-8"),
    ):
        if content is not None:
            path.write_bytes(content)
        [problem] = problems_of(tmp_path, path)
        assert problem.startswith(f"{path} ")
        assert fact in problem
        assert problem.endswith("It must be a CSV with the columns id and group.")


# --- tables, as spreadsheets and scripts write them --------------------------------------------------------


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_with_any_delimiter_a_byte_order_mark_and_ragged_rows(tmp_path, mark):
    path = tmp_path / "a.csv"
    path.write_text(f"\ufeffID {mark} Group\na{mark} x \n\nb\nc{mark}y{mark}more\n", encoding="utf-8")
    rows = read_rows(path)
    assert [(row.line, dict(row.values)) for row in rows] == [
        (2, {"id": "a", "group": "x"}),
        (4, {"id": "b", "group": ""}),
        (5, {"id": "c", "group": "y"}),
    ]
    assert rows[0].place == f"{path}, line 2"
    assert rows[1].first(("group", "id")) == "b"
    assert rows[1].first(("group", "nothing")) == ""


def test_jsonl_gives_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"ID": 7, "group": null}\n\n{"id": " b"}\n')
    assert [(row.line, dict(row.values)) for row in read_rows(path)] == [
        (1, {"id": "7", "group": ""}),
        (3, {"id": " b"}),
    ]


def test_what_is_written_comes_back(tmp_path):
    rows = [{"id": "a, b", "group": 'say "x"'}, {"id": "é", "group": ""}]
    write_csv(tmp_path / "a.csv", rows)
    assert [dict(row.values) for row in read_rows(tmp_path / "a.csv")] == rows


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("a.csv", None, "does not exist"),
        ("a.csv", b"", "has no rows"),
        ("a.csv", b"id,group\n", "has no rows"),
        ("a.csv", b"id\nM\xfcller\n", "cannot be read"),
        ("a.jsonl", b"{", "line 1: "),
        ("a.jsonl", b"{}\n[1]", "line 2: expected a JSON object, got [1]"),
    ],
)
def test_what_is_not_a_table(tmp_path, name, content, fact):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rows(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert fact in str(caught.value)
