"""Each data set from a miniature of its published layout; the shared copies where they are."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.data import public_sets as catalog
from mcpmix.data.sample import read_image, read_mask

SHARED = Path(__file__).parents[4] / "shared" / "data"


def picture(path, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (6, 4)).save(path)


def names(file):
    """A list of names that the package ships."""
    path = Path(catalog.__file__).parent / "names" / f"{file}.txt"
    return frozenset(path.read_text(encoding="utf-8").split())


def by_id(collection):
    return {sample.id: sample for sample in collection.samples}


# --- registry ----------------------------------------------------------------------------------------------


def test_all_are_found_and_say_what_a_user_must_know():
    assert list(catalog.entries()) == ["cvc-clinicdb", "isic-2017", "kvasir-seg", "piccolo"]
    for name, entry in catalog.entries().items():
        assert entry.name == name
        assert entry.images > 600
        assert all((entry.licence, entry.citation, entry.home, entry.layout, entry.traps, entry.splits))


def test_a_typing_mistake_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean kvasir-seg"):
        catalog.load("Kvasir_SEG", tmp_path)
    with pytest.raises(ConfigError, match="known: cvc-clinicdb, isic-2017, kvasir-seg, piccolo"):
        catalog.load("abdomen", tmp_path)


@pytest.mark.parametrize("name", ["cvc-clinicdb", "isic-2017", "kvasir-seg", "piccolo"])
def test_another_layout_is_refused_with_what_was_expected(tmp_path, name):
    (tmp_path / "something").mkdir()
    with pytest.raises(DataError, match=r"has another layout \(found: something\)\. Expected ") as caught:
        catalog.load(name, tmp_path)
    assert catalog.entry(name).layout in str(caught.value)
    with pytest.raises(DataError, match="does not exist"):
        catalog.load(name, tmp_path / "nowhere")


# --- Kvasir-SEG --------------------------------------------------------------------------------------------


def test_kvasir_from_its_archive(tmp_path):
    tested = sorted(names("kvasir-seg-official-test"))[0]
    for stem in (tested, "cju0qkwl35piu0993l0dewei2"):
        for kind in ("images", "masks"):
            picture(tmp_path / "Kvasir-SEG" / kind / f"{stem}.jpg")
    (tmp_path / "Kvasir-SEG" / "kavsir_bboxes.json").write_text("{}")
    for root in (tmp_path, tmp_path / "Kvasir-SEG"):
        collection = catalog.load("kvasir-seg", root)
        assert collection.splits["official"] == {"cju0qkwl35piu0993l0dewei2": "train", tested: "test"}
        assert all(sample.group == sample.id for sample in collection.samples)
        assert collection.leaks == {}


def test_kvasir_name_lists_are_two_different_splits():
    official, pranet = names("kvasir-seg-official-test"), names("kvasir-seg-pranet-test")
    assert (len(official), len(pranet)) == (120, 100)
    assert official != pranet
    assert all(len(name) == 25 and name.isalnum() for name in official | pranet)


def test_every_missing_and_every_extra_mask_is_named(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    picture(tmp_path / "images" / "b.jpg")
    picture(tmp_path / "masks" / "c.jpg")
    with pytest.raises(DataError) as caught:
        catalog.load("kvasir-seg", tmp_path)
    for text in ("a.jpg has no mask", "b.jpg has no mask", "c.jpg has no image"):
        assert text in str(caught.value)


# --- CVC-ClinicDB ------------------------------------------------------------------------------------------


def odd_tiff(path, pixels):
    """Three interleaved channels that call themselves BlackIsZero, as the published originals do."""
    height, width = pixels.shape[:2]
    data = pixels.tobytes()
    tags = [
        (256, 3, 1, width), (257, 3, 1, height), (258, 3, 3, 8 + len(data)), (259, 3, 1, 1), (262, 3, 1, 1),
        (273, 4, 1, 8), (277, 3, 1, 3), (278, 3, 1, height), (279, 4, 1, len(data)), (284, 3, 1, 1),
    ]  # fmt: skip
    directory = len(tags).to_bytes(2, "little") + b"".join(
        tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + count.to_bytes(4, "little")
        + value.to_bytes(4, "little")
        for tag, kind, count, value in tags
    )  # fmt: skip
    bits = (8).to_bytes(2, "little") * 3
    offset = (8 + len(data) + len(bits)).to_bytes(4, "little")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"II*\0" + offset + data + bits + directory + bytes(4))


def test_cvc_originals_are_read_although_they_call_three_channels_grey(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    for frame in (25, 26):
        odd_tiff(tmp_path / "CVC-ClinicDB" / "Original" / f"{frame}.tif", pixels)
        picture(tmp_path / "CVC-ClinicDB" / "Ground Truth" / f"{frame}.tif", "L")
    samples = by_id(catalog.load("cvc-clinicdb", tmp_path))
    assert {name: sample.group for name, sample in samples.items()} == {
        "25": "sequence-01",
        "26": "sequence-02",
    }
    np.testing.assert_array_equal(read_image(samples["25"].image), pixels)
    assert read_mask(samples["25"].mask).shape == (4, 6)


def test_an_odd_tiff_that_is_cut_short_is_refused(tmp_path):
    odd_tiff(tmp_path / "a.tif", np.zeros((4, 6, 3), np.uint8))
    whole = (tmp_path / "a.tif").read_bytes()
    for length in (8, 40, len(whole) - 60):
        (tmp_path / "a.tif").write_bytes(whole[:length])
        with pytest.raises(DataError, match="cannot be read"):
            read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("folders", [("PNG/Original", "PNG/Ground Truth"), ("images", "masks")])
def test_cvc_png_layouts_group_by_sequence(tmp_path, folders):
    for folder in folders:
        for frame in (1, 25, 26, 199, 200, 591, 592, 612):
            picture(tmp_path / folder / f"{frame}.png")
    samples = by_id(catalog.load("cvc-clinicdb", tmp_path))
    assert [samples[str(frame)].group[-2:] for frame in (1, 25, 26, 199, 200, 591, 592, 612)] == [
        "01", "01", "02", "09", "10", "28", "29", "29",
    ]  # fmt: skip


def test_cvc_frames_with_padded_numbers_are_in_the_same_parts(tmp_path):
    for folder in ("images", "masks"):
        for frame in ("013", "014", "612"):
            picture(tmp_path / folder / f"{frame}.png")
    pranet = catalog.load("cvc-clinicdb", tmp_path).splits["pranet"]
    assert pranet == {"013": "train", "014": "test", "612": "train"}


def test_cvc_has_no_frame_613(tmp_path):
    for folder in ("images", "masks"):
        picture(tmp_path / folder / "613.png")
    with pytest.raises(DataError, match=r"613\.png is not a frame of CVC-ClinicDB"):
        catalog.load("cvc-clinicdb", tmp_path)


# --- PICCOLO -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubled", [False, True])
def test_piccolo_from_its_archive(tmp_path, doubled):
    frames = {"train": "001_VP1_frame0075", "validation": "030_VP22_frame0001", "test": "092_VP46_frame9999"}
    for part, stem in frames.items():
        folder = tmp_path / "piccolo dataset-release0.1" / part / (part if doubled else "")
        picture(folder / "polyps" / f"{stem}.png")
        picture(folder / "masks" / f"{stem}_Corrected.tif", "L")
        picture(folder / "void" / f"{stem}.png", "L")
    collection = catalog.load("piccolo", tmp_path)
    assert {sample.group for sample in collection.samples} == {"VP1", "VP22", "VP46"}
    assert collection.splits["official"] == {stem: part for part, stem in frames.items()}
    assert collection.grouped


def test_piccolo_refuses_other_names(tmp_path):
    for part in ("train", "validation", "test"):
        picture(tmp_path / part / "polyps" / "a.png")
        picture(tmp_path / part / "masks" / "a.png", "L")
    with pytest.raises(DataError, match="is not a frame of PICCOLO"):
        catalog.load("piccolo", tmp_path)


# --- ISIC 2017 ---------------------------------------------------------------------------------------------


def isic(root, part, stem, mask="_segmentation"):
    picture(root / f"ISIC-2017_{part}_Data" / f"{stem}.jpg")
    picture(root / f"ISIC-2017_{part}_Data" / f"{stem}_superpixels.png")
    (root / f"ISIC-2017_{part}_Data" / f"ISIC-2017_{part}_Data_metadata.csv").write_text("image_id,sex\n")
    picture(root / f"ISIC-2017_{part}_Part1_GroundTruth" / f"{stem}{mask}.png", "L")


def test_isic_from_its_archives_leaves_out_the_training_copy(tmp_path):
    isic(tmp_path, "Training", "ISIC_0000000")
    isic(tmp_path, "Training", "ISIC_0012970")
    isic(tmp_path, "Validation", "ISIC_0012127", mask="_Segmentation")
    isic(tmp_path, "Test_v2", "ISIC_0012086")
    collection = catalog.load("isic-2017", tmp_path)
    assert len(collection.samples) == 4
    assert collection.splits["official"] == {
        "ISIC_0000000": "train",
        "ISIC_0012127": "validation",
        "ISIC_0012086": "test",
    }


def test_isic_without_test_masks_tests_on_the_validation_part(tmp_path):
    isic(tmp_path, "Training", "ISIC_0000000")
    isic(tmp_path, "Validation", "ISIC_0012127")
    picture(tmp_path / "ISIC-2017_Test_v2_Data" / "ISIC_0012086.jpg")
    collection = catalog.load("isic-2017", tmp_path)
    assert collection.splits["official"] == {"ISIC_0000000": "train", "ISIC_0012127": "test"}


# --- the real ones -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "CVC-ClinicDB").is_dir(), reason="no CVC-ClinicDB here")
def test_the_real_cvc_clinicdb():
    collection = catalog.load("cvc-clinicdb", SHARED / "CVC-ClinicDB")
    groups = by_id(collection)
    pranet = collection.splits["pranet"]
    assert len(collection.samples) == 612
    assert len({sample.group for sample in collection.samples}) == 29
    assert Counter(pranet.values()) == {"train": 550, "test": 62}
    tested = {groups[name].group for name, part in pranet.items() if part == "test"}
    trained = {groups[name].group for name, part in pranet.items() if part == "train"}
    assert len(tested) == 26
    assert trained > tested  # not one sequence is wholly for test
    assert "pranet" in collection.leaks


@pytest.mark.skipif(not (SHARED / "ISIC2017").is_dir(), reason="no ISIC 2017 here")
def test_the_real_isic_2017():
    collection = catalog.load("isic-2017", SHARED / "ISIC2017")
    assert len(collection.samples) == 2150
    assert Counter(collection.splits["official"].values()) == {"train": 1999, "test": 150}


# --- packed ------------------------------------------------------------------------------------------------


def kvasir_tree(root):
    for stem in ("cju0qkwl35piu0993l0dewei2", "ck2da7fwcjfis07218r1rvm95"):
        for kind in ("images", "masks"):
            picture(root / "Kvasir-SEG" / kind / f"{stem}.jpg")
    (root / "Kvasir-SEG" / "kavsir_bboxes.json").write_text("{}")


def cvc_tree(root):
    pixels = np.zeros((4, 6, 3), np.uint8)
    for frame in (1, 612):
        odd_tiff(root / "CVC-ClinicDB" / "Original" / f"{frame}.tif", pixels)
        picture(root / "CVC-ClinicDB" / "Ground Truth" / f"{frame}.tif", "L")


def cvc_png_tree(root):
    for frame in (1, 612):
        for kind in ("Original", "Ground Truth"):
            picture(root / "CVC-ClinicDB" / "PNG" / kind / f"{frame}.png")
            picture(root / "CVC-ClinicDB" / "TIF" / kind / f"{frame}.tif")
    (root / "CVC-ClinicDB" / "metadata.csv").write_text("frame_id,sequence_id\n")


def piccolo_tree(root):
    home = root / "piccolo dataset-release0.1"
    for part, stem in (("train", "001_VP1_frame0075"), ("validation", "030_VP22_frame0001"),
                       ("test", "092_VP46_frame9999")):  # fmt: skip
        picture(home / part / "polyps" / f"{stem}.png")
        picture(home / part / "masks" / f"{stem}_Corrected.tif", "L")
        (home / part / "void").mkdir()


def isic_tree(root):
    for part, stem in (
        ("Training", "ISIC_0000000"),
        ("Validation", "ISIC_0012127"),
        ("Test_v2", "ISIC_0012086"),
    ):
        isic(root, part, stem)


TREES = {
    "kvasir-seg": kvasir_tree, "cvc-clinicdb": cvc_tree, "cvc-clinicdb:png": cvc_png_tree,
    "piccolo": piccolo_tree, "isic-2017": isic_tree,
}  # fmt: skip


@pytest.mark.parametrize("packing", ["zip", "gztar", "tar"])
@pytest.mark.parametrize("tree", TREES)
def test_the_archive_gives_what_the_folder_gives(tmp_path, tree, packing):
    name = tree.split(":")[0]
    (tmp_path / "folder").mkdir()
    TREES[tree](tmp_path / "folder")
    archive = Path(shutil.make_archive(str(tmp_path / "published"), packing, tmp_path / "folder"))
    first, second = catalog.load(name, tmp_path / "folder"), catalog.load(name, archive)
    assert len(first.samples) >= 2
    assert by_name(first) == by_name(second)
    assert (first.splits, first.grouped) == (second.splits, second.grouped)
    for sample in second.samples:
        assert read_image(sample.image).shape == (4, 6, 3)
        assert tmp_path in sample.image.parents


def by_name(collection):
    return [(sample.id, sample.group, sample.image.name, sample.mask.name) for sample in collection.samples]


def test_a_folder_of_the_published_archives(tmp_path):
    isic_tree(tmp_path / "folder")
    for folder in (tmp_path / "folder").iterdir():
        shutil.make_archive(str(tmp_path / "zips" / folder.name), "zip", tmp_path / "folder", folder.name)
    zips = tmp_path / "zips"
    assert sorted(path.name for path in zips.iterdir()) == sorted(
        archive.name for archive in catalog.entry("isic-2017").archives
    )
    assert catalog.recognise(zips) == "isic-2017"
    assert by_name(catalog.load("isic-2017", zips)) == by_name(catalog.load("isic-2017", tmp_path / "folder"))
    (zips / "ISIC-2017_Training_Data").mkdir()
    with pytest.raises(DataError, match=r"some are unpacked and others are not: .*Validation_Data\.zip"):
        catalog.load("isic-2017", zips)


def test_an_archive_beside_what_it_unpacks_to_is_left_alone(tmp_path):
    kvasir_tree(tmp_path)
    (tmp_path / "kvasir-seg.zip").write_bytes(b"not even a zip")
    assert len(catalog.load("kvasir-seg", tmp_path).samples) == 2
    (tmp_path / "Kvasir-SEG").rename(tmp_path / "renamed")
    assert len(catalog.load("kvasir-seg", tmp_path).samples) == 2
    shutil.rmtree(tmp_path / "renamed")
    with pytest.raises(DataError, match=r"kvasir-seg\.zip cannot be unpacked"):
        catalog.load("kvasir-seg", tmp_path)


def test_the_rar_archives_say_what_to_do(tmp_path):
    for name in ("cvc-clinicdb", "piccolo"):
        (tmp_path / "a.rar").write_bytes(b"Rar!")
        with pytest.raises(DataError, match="is a RAR archive"):
            catalog.load(name, tmp_path / "a.rar")


@pytest.mark.parametrize("tree", ["kvasir-seg", "piccolo", "isic-2017"])
def test_layouts_are_recognised(tmp_path, tree):
    TREES[tree](tmp_path)
    assert catalog.recognise(tmp_path) == tree


def test_plain_names_are_recognised_only_if_all_are_there():
    frames = [str(number) for number in range(1, 613)]
    assert catalog.recognise_names(frames) == "cvc-clinicdb"
    assert catalog.recognise_names(frames[:-1]) is None
    assert catalog.recognise_names(["ISIC_0000000", "mine"]) is None
    assert catalog.recognise_names([]) is None


def test_every_entry_can_be_downloaded_or_says_whom_to_ask():
    for entry in catalog.entries().values():
        assert bool(entry.archives) != bool(entry.access)
        for archive in entry.archives:
            assert archive.url.startswith("https://")
            assert len(archive.sha256) == 64 or len(archive.md5) == 32
    assert [file.name for file in catalog.entry("kvasir-seg").archives] == ["kvasir-seg.zip"]


def test_two_files_of_one_stem_are_named(tmp_path):
    kvasir_tree(tmp_path)
    picture(tmp_path / "Kvasir-SEG" / "images" / "cju0qkwl35piu0993l0dewei2.png")
    with pytest.raises(DataError, match=r"cju0qkwl35piu0993l0dewei2\.png have the same stem"):
        catalog.load("kvasir-seg", tmp_path)


# --- one more ----------------------------------------------------------------------------------------------


def test_the_data_set_of_the_documentation_is_short_and_works(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1]
    source, facts = (part.split("```")[0] for part in (example, example.split("```yaml\n")[1]))
    assert (source + facts).count("\n") < 40
    [(name, values)] = yaml.safe_load(facts).items()
    known = {**catalog.entries(), name: catalog.Entry(name=name, load=lambda root: None, **values)}
    monkeypatch.setattr(catalog, "entries", lambda: known)
    module = {**vars(catalog)}
    exec(compile(source, "isic_2018.py", "exec"), module)
    for number, part in enumerate(("Training", "Validation", "Test")):
        picture(tmp_path / f"ISIC2018_Task1-2_{part}_Input" / f"ISIC_{number}.jpg")
        picture(tmp_path / f"ISIC2018_Task1_{part}_GroundTruth" / f"ISIC_{number}_segmentation.png", "L")
        (tmp_path / f"ISIC2018_Task1-2_{part}_Input" / "LICENSE.txt").write_text("")
    collection = module["_load_isic_2018"](tmp_path)
    assert collection.splits["official"] == {"ISIC_0": "train", "ISIC_1": "validation", "ISIC_2": "test"}
    with pytest.raises(DataError, match="ISIC2018_Task1-2_Training_Input/ and"):
        module["_load_isic_2018"](tmp_path / "ISIC2018_Task1-2_Test_Input")
