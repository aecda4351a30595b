"""Every layout of own data, read, refused and converted; pairing, groups, and every problem at once."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mcpmix.core.errors import DataError, StorageError
from mcpmix.data.convert import WRITERS, convert
from mcpmix.data.layouts import (
    READERS,
    Collection,
    scan_folder,
)
from mcpmix.data.sample import Sample, read_image, read_mask, read_pair
from mcpmix.data.tables import write_csv

PARTS = {"a-1": "train", "b 2": "train", "c_3": "validation", "d.4": "test", "é5": "known"}


@pytest.fixture
def collection(tmp_path):
    """Five samples of three groups; JPEG and PNG, masks of 0/255, of 0/1 and of JPEG."""
    rng = np.random.default_rng(0)
    samples = []
    for number, name in enumerate(PARTS):
        image = tmp_path / "source" / "images" / f"{name}.{'jpg' if number % 2 else 'png'}"
        mask = tmp_path / "source" / "masks" / f"{name}.{'jpg' if number == 4 else 'png'}"
        for path in (image, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(image)
        lesion = np.zeros((16, 24), np.uint8)
        lesion[4 : 8 + number, 5:15] = 1 if number == 1 else 255
        Image.fromarray(lesion).save(mask)
        samples.append(Sample(name, image, mask, f"patient-{number // 2}", "x"))
    return Collection(tuple(samples), splits={"official": PARTS}, grouped="group")


def content(collection):
    return {
        sample.id: (
            sample.group,
            collection.splits.get("official", {}).get(sample.id),
            read_image(sample.image).tobytes(),
            read_mask(sample.mask).tobytes(),
        )
        for sample in collection.samples
    }


def target(tmp_path, layout, number=0):
    return tmp_path / (f"Dataset{500 + number}_Polyps" if layout == "nnunet" else f"{layout}{number}")


@pytest.mark.parametrize("first", WRITERS)
@pytest.mark.parametrize("second", WRITERS)
def test_any_layout_to_any_other_without_loss(tmp_path, collection, first, second):
    one, two = target(tmp_path, first), target(tmp_path, second, 1)
    convert(collection, first, one)
    read = READERS[first](one)
    assert content(read) == content(collection)
    convert(read, second, two)
    assert content(READERS[second](two)) == content(collection)


@pytest.mark.parametrize("layout", WRITERS)
def test_what_has_neither_groups_nor_split_gets_none(tmp_path, collection, layout):
    bare = Collection(
        tuple(Sample(item.id, item.image, item.mask, item.id, "x") for item in collection.samples)
    )
    convert(bare, layout, target(tmp_path, layout))
    read = READERS[layout](target(tmp_path, layout))
    assert (read.splits, read.grouped) == ({}, "")
    assert content(read) == content(bare)


def test_convert_writes_into_an_empty_folder_only_and_whole_or_not_at_all(tmp_path, collection):
    (tmp_path / "out").mkdir()
    convert(collection, "folder", tmp_path / "out")
    with pytest.raises(StorageError, match="is not empty"):
        convert(collection, "folder", tmp_path / "out")
    collection.samples[3].image.unlink()
    with pytest.raises(FileNotFoundError):
        convert(collection, "manifest", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []
    with pytest.raises(DataError, match="Expected a name like Dataset501_Polyps"):
        convert(collection, "nnunet", tmp_path / "polyps")


NAMES = st.text(st.sampled_from("abcXYZ019_-. éß漢"), min_size=1, max_size=12).filter(
    lambda name: name == name.strip(" .") and not name.lower().endswith(("_mask", "-mask", "_gt", "_0000"))
)


@st.composite
def collections(draw):
    """What files to write, and groups and parts for them."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=lambda name: name.casefold()))
    grouped = draw(st.booleans())
    rows = []
    for name in names:
        rows.append(
            {
                "id": name,
                "group": draw(NAMES) if grouped else name,
                "part": draw(st.sampled_from(["", "train", "validation", "test"])),
                "shape": draw(st.tuples(st.integers(1, 9), st.integers(1, 9))),
                "ending": draw(st.sampled_from([".png", ".jpg", ".bmp", ".tif"])),
                "top": draw(st.sampled_from([1, 255])),
                "seed": draw(st.integers(0, 99)),
            }
        )
    return rows, grouped


def write_files(folder, rows):
    samples = []
    for row in rows:
        rng = np.random.default_rng(row["seed"])
        image = folder / "in" / "i" / f"{row['id']}{row['ending']}"
        mask = folder / "in" / "m" / f"{row['id']}.png"
        for path in (image, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*row["shape"], 3), dtype=np.uint8)).save(image)
        Image.fromarray(rng.integers(0, 2, row["shape"], dtype=np.uint8) * np.uint8(row["top"])).save(mask)
        samples.append(Sample(row["id"], image, mask, row["group"], "x"))
    return tuple(sorted(samples, key=lambda sample: sample.id))


@settings(max_examples=15, deadline=None)
@given(made=collections(), route=st.permutations(list(WRITERS)))
def test_any_data_set_survives_any_route(made, route):
    rows, grouped = made
    parts = {row["id"]: row["part"] for row in rows if row["part"]}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        samples = write_files(home, rows)
        original = Collection(
            samples, splits={"official": parts} if parts else {}, grouped="g" if grouped else ""
        )
        read = original
        for number, layout in enumerate(route):
            out = target(home, layout, number)
            convert(read, layout, out)
            read = READERS[layout](out)
            assert content(read) == content(original)
            assert bool(read.grouped) == grouped
            assert read.splits.get("official", {}) == parts


# --- manifest ----------------------------------------------------------------------------------------------


def test_a_manifest_with_semicolons_a_patient_column_and_paths_elsewhere(tmp_path, collection):
    one, two, *_ = collection.samples
    table = tmp_path / "tables" / "frames.csv"
    table.parent.mkdir()
    table.write_text(
        f"\ufeffImage;Mask;Patient\n{one.image};{one.mask};P1\n../source/images/{two.image.name};"
        f"../source/masks/{two.mask.name};P2\n",
        encoding="utf-8",
    )
    read = READERS["manifest"](table)
    assert [(sample.id, sample.group) for sample in read.samples] == [("a-1", "P1"), ("b 2", "P2")]
    assert read.grouped == "patient"
    assert read.splits == {}


def test_a_jsonl_manifest(tmp_path, collection):
    one = collection.samples[0]
    row = {"image": str(one.image), "mask": str(one.mask), "id": "first", "video": 7, "split": "val"}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(row) + "\n\n")
    read = READERS["manifest"](tmp_path)
    assert (read.samples[0].id, read.samples[0].group) == ("first", "7")
    assert read.splits == {"official": {"first": "validation"}}


def test_all_problems_of_a_manifest_at_once(tmp_path, collection):
    one = collection.samples[0]
    (tmp_path / "manifest.csv").write_text(
        "id,image,mask,group,split\n"
        f"a,{one.image},{one.mask},g,train\n"
        f"a,{one.image},{one.mask},g,train\n"
        f"b,{one.image},nowhere.png,,training data\n"
        f"../c,{one.image},{one.mask},g,\n"
        f"d,,{one.mask},g,\n"
    )
    with pytest.raises(DataError) as caught:
        READERS["manifest"](tmp_path)
    for text in ("line 3: the id a stands on two lines", "line 4: ", "nowhere.png does not exist",
                 "line 4: group is empty", "line 4: split is 'training data'",
                 "line 5: the id '../c' cannot be a file name", "line 6: no image"):  # fmt: skip
        assert text in str(caught.value), text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifest.csv", "picture,mask\na,b\n", "has the columns: mask, picture. Expected image"),
        ("manifest.csv", "image,mask\n", "has no rows"),
        ("manifest.csv", "", "has no rows"),
        ("manifest.jsonl", "{", "line 1: "),
        ("manifest.jsonl", "[1]", "expected a JSON object"),
        ("manifest.csv", "image,mask\n\udcff", "cannot be read"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        READERS["manifest"](tmp_path)
    assert message in str(caught.value)


def test_a_manifest_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"manifest\.csv does not exist"):
        READERS["manifest"](tmp_path)
    with pytest.raises(DataError, match="cannot be a manifest"):
        READERS["manifest"](tmp_path / "x.xlsx")


# --- nnU-Net -----------------------------------------------------------------------------------------------


def test_nnunet_gets_what_its_reader_wants(tmp_path, collection):
    out = tmp_path / "Dataset501_Polyps"
    convert(collection, "nnunet", out)
    description = json.loads((out / "dataset.json").read_text())
    assert description["labels"] == {"background": 0, "lesion": 1}
    assert description["channel_names"] == {"0": "R", "1": "G", "2": "B"}
    assert (description["numTraining"], description["file_ending"]) == (3, ".png")
    assert sorted(path.name for path in (out / "imagesTr").iterdir()) == [
        "a-1_0000.png", "b 2_0000.png", "c_3_0000.png",
    ]  # fmt: skip
    assert sorted(path.name for path in (out / "labelsTs").iterdir()) == ["d.4.png", "é5.png"]
    for path in (out / "labelsTr").iterdir():
        assert set(np.unique(np.asarray(Image.open(path)))) == {0, 1}
    for path in (out / "imagesTr").iterdir():
        with Image.open(path) as image:
            assert image.mode == "RGB"


def test_nnunet_as_others_write_it_has_only_a_test_part(tmp_path, collection):
    out = tmp_path / "Dataset501_Polyps"
    convert(collection, "nnunet", out)
    (out / "samples.csv").unlink()
    read = READERS["nnunet"](out)
    assert read.splits["official"] == {name: "test" if name in ("d.4", "é5") else "train" for name in PARTS}
    assert all(sample.group == sample.id for sample in read.samples)


def test_nnunet_with_nothing_but_a_test_part_is_read_again(tmp_path, collection):
    parts = {sample.id: "test" for sample in collection.samples}
    convert(replace(collection, splits={"official": parts}), "nnunet", tmp_path / "Dataset501_Polyps")
    assert READERS["nnunet"](tmp_path / "Dataset501_Polyps").splits["official"] == parts


def test_nnunet_problems_at_once(tmp_path, collection):
    out = tmp_path / "Dataset501_Polyps"
    with pytest.raises(DataError, match=r"dataset\.json does not exist"):
        READERS["nnunet"](out)
    convert(collection, "nnunet", out)
    (out / "labelsTr" / "a-1.png").unlink()
    (out / "imagesTr" / "b 2_0000.png").rename(out / "imagesTr" / "b 2_0001.png")
    with pytest.raises(DataError) as caught:
        READERS["nnunet"](out)
    for text in ("a-1_0000.png has no label", "b 2_0001.png: expected _0000", "b 2.png has no image"):
        assert text in str(caught.value)
    (out / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match="file_ending"):
        READERS["nnunet"](out)


# --- imagefolder -------------------------------------------------------------------------------------------


def test_imagefolder_with_csv_old_names_and_the_folder_as_split(tmp_path, collection):
    for sample, folder in zip(collection.samples, ("train", "train", "val", "test", "known"), strict=True):
        place = tmp_path / "hub" / folder
        place.mkdir(parents=True, exist_ok=True)
        table = place / "metadata.csv"
        if not table.exists():
            table.write_text("file_name,mask_file_name,patient\n")
        with table.open("a", encoding="utf-8") as file:
            file.write(f"{sample.image},{sample.mask},{sample.group}\n")
    assert content(READERS["imagefolder"](tmp_path / "hub")) == content(collection)


def test_imagefolder_without_metadata(tmp_path):
    with pytest.raises(DataError, match=r"holds no metadata\.jsonl or metadata\.csv"):
        READERS["imagefolder"](tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        READERS["imagefolder"](tmp_path / "nowhere")


def test_a_split_file_beside_a_folder_must_fit_it(tmp_path, collection):
    convert(collection, "folder", tmp_path / "out")
    (tmp_path / "out" / "split.json").write_text('{"train": ["zz"], "validation": [], "test": []}')
    with pytest.raises(DataError, match="names ids without images: zz"):
        READERS["folder"](tmp_path / "out")


# --- images and masks that belong together by name ---------------------------------------------------------


def scan(root: Path, groups: Path | None = None) -> list[Sample]:
    return list(scan_folder(root / "images", root / "masks", groups).samples)


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
    [found] = scan_folder(tmp_path / "images", tmp_path / "images").samples
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
        "_segmentation, _mask, -mask, _seg, -seg, _gt, _label: add the mask or remove the image."
    )
    assert problems[3] == (
        f"{orphan.mask} has no image. Expected an image with the same stem: add the image or remove the mask."
    )
    assert problems[4].startswith(f"{broken.image} cannot be read: ")
    assert problems[4].endswith("export it again, or remove the image together with its mask.")
    assert problems[6] == (
        f"{other.mask} is 6 x 4 pixels, but its image {other.image} is 10 x 8. Expected equal sizes: export "
        "the mask at the size of its image."
    )
    assert problems[5].startswith(f"{unmasked.mask} cannot be read: the file is empty. ")


def test_an_ending_that_all_masks_share_is_taken(tmp_path, make_pair):
    for stem in ("a1", "a2", "b"):
        make_pair(stem, suffix="_annotated_by_KL")
    assert [sample.mask.stem for sample in scan(tmp_path)] == [
        f"{stem}_annotated_by_KL" for stem in ("a1", "a2", "b")
    ]


def test_lost_leading_zeros_are_one_problem(tmp_path, make_pair):
    for number in range(9):
        make_pair(f"000{number}")
    write_csv(tmp_path / "groups.csv", [{"id": number, "group": "p"} for number in range(1, 9)] +
              [{"id": "0000", "group": "p"}])  # fmt: skip
    with pytest.raises(DataError) as caught:
        scan_folder(tmp_path / "images", tmp_path / "masks", tmp_path / "groups.csv")
    assert "has lost the leading zeros of 8 ids (1 in place of 0001)" in str(caught.value)
    assert "is not in" not in str(caught.value)
    assert "--fix DIR` writes a table that has them again" in str(caught.value)


def test_lost_leading_zeros_are_put_back_where_one_image_can_be_meant(tmp_path, make_pair):
    for stem in ("0001", "0002", "03", "003"):
        make_pair(stem)
    rows = [{"id": number, "group": f"video {number}"} for number in (1, 2, 3, 8)]
    write_csv(tmp_path / "groups.csv", rows)
    left_out, mended = [], []
    found = scan_folder(
        tmp_path / "images", tmp_path / "masks", tmp_path / "groups.csv", left_out=left_out, mended=mended
    )
    assert {sample.id: sample.group for sample in found.samples} == {"0001": "video 1", "0002": "video 2"}
    assert [text.partition("groups.csv ")[2] for text in mended] == [
        "has lost the leading zeros of 4 ids (1 in place of 0001): put back",
        "belongs to no image: 8: left out",
    ]
    assert ["003.png is not in" in text or "03.png is not in" in text for text in left_out] == [True, True]


def test_mistyped_ids_are_named_beside_the_images_that_lack_one(tmp_path, make_pair):
    for name in ("one", "two"):
        make_pair(name)
    write_csv(tmp_path / "groups.csv", [{"id": "one", "group": "p"}, {"id": "tow", "group": "q"}])
    with pytest.raises(DataError, match=r"1 id in .*groups.csv belongs to no image: tow\. Mistyped\?"):
        scan_folder(tmp_path / "images", tmp_path / "masks", tmp_path / "groups.csv")


def test_a_turned_image_is_not_called_too_small(tmp_path, make_pair):
    sample = make_pair("a", side=20)
    turned = Image.new("RGB", (20, 22), "brown")  # 22 x 20 once the orientation is applied
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "images" / "b.jpg", exif=exif)
    Image.new("L", (20, 22)).save(tmp_path / "masks" / "b.png")
    _, problems = read_pair(tmp_path / "images" / "b.jpg", tmp_path / "masks" / "b.png")
    assert ["turned by its EXIF orientation" in problem for problem in problems] == [True]
    _, problems = read_pair(sample.image, tmp_path / "masks" / "b.png")
    assert "export the mask at the size of its image" in problems[0]


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
    assert scan_folder(tmp_path / "images", tmp_path / "masks", left_out=left_out).samples == (sample,)
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
