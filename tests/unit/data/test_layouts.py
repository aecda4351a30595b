"""Every layout of own data, read, refused and converted."""

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
from mcpmix.data.layouts import READERS, WRITERS, Collection, convert
from mcpmix.data.sample import Sample, read_image, read_mask

PARTS = {"a-1": "train", "b 2": "train", "c_3": "validation", "d.4": "test", "é5": "test"}


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
    for sample, folder in zip(collection.samples, ("train", "train", "val", "test", "test"), strict=True):
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
