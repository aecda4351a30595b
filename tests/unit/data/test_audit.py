"""Every kind of dirt, made by the test, ends in its finding."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mcpmix.config_data import SplitConfig
from mcpmix.data.audit import Audit, Severity, file_oddities, inspect, inspect_all
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.data.sample import Sample

SHARED = Path(__file__).parents[4] / "shared" / "data"


def scene(seed, height=48, width=64, shift=0):
    """A smooth picture; a shift moves it as a camera would."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width].astype(float)
    columns = columns + shift
    waves = sum(
        rng.uniform(10, 40) * np.sin(rng.uniform(0.05, 0.3) * rows + rng.uniform(0.05, 0.3) * columns + phase)
        for phase in rng.uniform(0, 6, 5)
    )
    return np.clip(np.stack([130 + waves, 90 + waves, 80 + waves / 2], axis=2), 0, 255).astype(np.uint8)


@pytest.fixture
def pair(tmp_path):
    def make(name, image=None, mask=None, ending=".png", **saving):
        picture = scene(sum(name.encode())) if image is None else image
        if mask is None:
            mask = np.zeros(np.asarray(picture).shape[:2], np.uint8)
            mask[10:20, 10:30] = 255
        paths = (tmp_path / "images" / f"{name}{ending}", tmp_path / "masks" / f"{name}.png")
        for path, pixels in zip(paths, (picture, mask), strict=True):
            path.parent.mkdir(exist_ok=True)
            drawn = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
            drawn.save(path, **(saving if path == paths[0] else {}))
        return Sample(name, *paths, name, "x")

    return make


def found(samples, part_of=None):
    audit = Audit(inspect_all(samples), part_of or {})
    return {finding.title: finding for finding in audit.findings}


def only(findings, text):
    titles = [title for title in findings if text in title]
    assert len(titles) == 1, list(findings)
    return findings[titles[0]]


# --- files -------------------------------------------------------------------------------------------------


def test_a_clean_set_has_no_findings(pair):
    audit = Audit(inspect_all([pair("a"), pair("b"), pair("c")]), {"a": "train", "b": "train", "c": "test"})
    assert audit.findings == ()
    assert audit.leaking_share() == 0
    assert audit.statistics()["images"] == "3 readable of 3; 64 x 48 pixels"
    assert audit.statistics()["lesion area"].startswith("median 6.5 %")  # 200 of 3072 pixels
    assert audit.statistics()["lesion place"] == "on average 31 % from the left, 31 % from the top"


@pytest.mark.parametrize("kind", ["images", "masks"])
@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_files_cut_at_every_64th_byte_end_in_a_finding(pair, tmp_path, kind, ending):
    sample = pair("a", ending=ending)
    path = sample.image if kind == "images" else sample.mask
    whole = path.read_bytes()
    for length in range(0, len(whole) - 16, 64):
        path.write_bytes(whole[:length])
        facts, _ = inspect(sample)
        assert len(facts.errors) == 1
        assert path.name in facts.errors[0]


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"II*\0\xff\xff"]
)
def test_wrong_magic_and_empty_files(pair, content):
    sample = pair("a")
    sample.image.write_bytes(content)
    finding = only(found([sample]), "files cannot be used")
    assert finding.severity == Severity.ERROR
    assert finding.ids == ("a",)


def test_a_bomb_and_a_very_wide_image(pair, tmp_path):
    bomb = pair("bomb", image=Image.new("1", (20000, 20000)), mask=np.zeros((4, 4), np.uint8))
    wide = pair("wide", image=Image.new("RGB", (50000, 2)), mask=np.zeros((2, 50000), np.uint8))
    findings = found([bomb, wide])
    assert "is larger than 89 million pixels" in only(findings, "files cannot be used").items[0]
    assert only(findings, "masks are empty").ids == ("wide",)


def test_missing_files_and_other_sizes(pair):
    gone, small = pair("gone"), pair("small", mask=np.zeros((8, 8), np.uint8))
    gone.mask.unlink()
    items = only(found([gone, small]), "files cannot be used").items
    assert any("gone.png does not exist" in item for item in items)
    assert any("is 8 x 8 pixels, but its image" in item for item in items)


def test_sixteen_bits_are_refused(pair):
    sample = pair("deep", image=Image.fromarray(np.full((48, 64), 40000, np.uint16)))
    assert "more than 8 bits" in only(found([sample]), "files cannot be used").items[0]


def test_oddities_that_the_reader_puts_right(pair):
    exif = Image.Exif()
    exif[0x0112] = 3
    samples = [
        pair("turned", ending=".jpg", exif=exif),
        pair("clear", image=Image.fromarray(np.dstack([scene(1), np.full((48, 64), 200, np.uint8)]))),
        pair("table", image=Image.fromarray(scene(2)).convert("P")),
        pair("söme name"),
        pair("liar"),
    ]
    Image.fromarray(scene(5)).save(samples[4].image, format="JPEG")
    findings = found(samples)
    for text, name in (("EXIF orientation", "turned"), ("transparency", "clear"), ("palettes", "table"),
                       ("contain spaces", "söme name"), ("extension does not match", "liar")):  # fmt: skip
        assert only(findings, text).ids == (name,)


def test_writing_in_a_corner_but_not_a_bright_spot(pair):
    written, spot = Image.fromarray(scene(1, 192, 256)), Image.fromarray(scene(2, 192, 256))
    ImageDraw.Draw(written).text((2, 4), "Name 12\n2019-01", fill="white")
    ImageDraw.Draw(spot).ellipse((5, 5, 18, 18), fill="white")
    samples = [pair("written", image=written), pair("spot", image=spot)]
    assert only(found(samples), "seems to contain text").ids == ("written",)


# --- masks -------------------------------------------------------------------------------------------------


def test_masks_that_need_a_look(pair):
    empty, full, dot, grey = (np.zeros((48, 64), np.uint8) for _ in range(4))
    full[:] = 255
    dot[5, 5] = 255
    grey[10:20, 10:20], grey[20:30, 10:20] = 255, 60
    findings = found(
        [pair("empty", mask=empty), pair("full", mask=full), pair("dot", mask=dot), pair("grey", mask=grey)]
    )
    for text, name in (("are empty", "empty"), ("whole image", "full"), ("less than 0.05 %", "dot"),
                       ("more than two levels", "grey")):  # fmt: skip
        assert only(findings, text).ids == (name,)
    assert only(findings, "more than two levels").items == ("grey: 3.26% lesion, 3 levels",)


# --- copies ------------------------------------------------------------------------------------------------


def test_exact_copies_are_found_however_they_are_packed(pair):
    pixels = scene(3)
    samples = [pair("a", image=pixels), pair("b", image=pixels, ending=".bmp"), pair("c", image=pixels)]
    findings = found(samples, {"a": "train", "b": "test", "c": "test"})
    finding = only(findings, "identical pixels are in different parts")
    assert finding.severity == Severity.ERROR
    assert finding.items[0].startswith("train a (")
    assert " = test b (" in finding.items[0]
    within = found(samples[1:], {"b": "test", "c": "test"})
    assert only(within, "in the same part").severity == Severity.WARNING


def test_a_copy_that_the_split_leaves_out_is_no_finding(pair):
    samples = [pair("a", image=scene(3)), pair("b", image=scene(3)), pair("c")]
    assert found(samples, {"a": "test", "c": "train"}) == {}


def test_near_copies_across_the_split_are_counted(pair):
    noise = np.random.default_rng(0).normal(0, 4, (48, 64, 3))
    frames = {
        "train_1": scene(1),
        "train_2": scene(2),
        "test_1": np.clip(scene(1) * 0.9 + 8 + noise, 0, 255).astype(np.uint8),  # darker and noisy
        "test_2": scene(4),
        "validation_1": scene(2, shift=1),
        "known_1": scene(5),
        "known_2": scene(1, shift=1),
    }
    samples = [pair(name, image=image) for name, image in frames.items()]
    audit = Audit(inspect_all(samples), {name: name.split("_")[0] for name in frames})
    assert {name: other for name, (other, _) in audit.near.items()} == {
        "test_1": "train_1",
        "validation_1": "train_2",
        "known_2": "train_1",
    }
    assert (audit.leaking_share("test"), audit.leaking_share("validation")) == (0.5, 1.0)
    finding = only({finding.title: finding for finding in audit.findings}, "the split leaks")
    assert (
        "50.0% of the test images and 50.0% of the known images and 100.0% of the validation" in finding.title
    )
    assert finding.items[0].startswith("known known_2 ~ train train_1 (")
    assert finding.items[1].startswith("test test_1 ~ train train_1 (")


# --- the real ones -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "CVC-ClinicDB").is_dir(), reason="no CVC-ClinicDB here")
def test_frames_of_cvc_clinicdb_leak_and_sequences_do_not():
    collection = load_collection("cvc-clinicdb", root=SHARED / "CVC-ClinicDB")
    facts = inspect_all(collection.samples)

    def share(plan, samples):
        split = make_split(type(collection)(tuple(samples)), plan, 0)
        parts = {name: part for part, ids in split.parts().items() for name in ids}
        return Audit(facts, parts).leaking_share("test")

    frames = [Sample(item.id, item.image, item.mask, item.id, "x") for item in collection.samples]
    assert share(SplitConfig(), collection.samples) == 0
    assert share(SplitConfig(), frames) > 0.2


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "ISIC2017").is_dir(), reason="no ISIC 2017 here")
def test_the_copy_in_isic_2017_is_found():
    collection = load_collection("isic-2017", root=SHARED / "ISIC2017")
    parts = {item.id: item.image.parents[1].name for item in collection.samples}
    finding = next(
        f for f in Audit(inspect_all(collection.samples), parts).findings if f.severity == Severity.ERROR
    )
    assert len(finding.items) == 1
    assert "train ISIC_0012970" in finding.items[0]
    assert "validation ISIC_0012127" in finding.items[0]


def test_masks_that_are_inverted_stop_a_check(tmp_path, make_pair):
    samples = []
    for number in range(4):
        sample = make_pair(f"s{number}", side=32)
        mask = np.full((32, 34), 255, np.uint8)
        mask[10:20, 10:20] = 0
        if number:
            Image.fromarray(mask).save(sample.mask)
        samples.append(sample)
    (finding,) = [f for f in Audit(inspect_all(samples), {}).findings if "inverted" in f.title]
    assert finding.severity == Severity.ERROR
    assert finding.ids == ("s1", "s2", "s3")
    for sample in samples[2:]:  # half of them could be large lesions
        Image.fromarray(255 - mask).save(sample.mask)
    assert not any("inverted" in f.title for f in Audit(inspect_all(samples), {}).findings)


def test_one_image_with_two_masks_is_an_error_with_pictures(tmp_path, make_pair):
    first, second = make_pair("a", look=1), make_pair("b", look=1)
    Image.fromarray(255 - np.asarray(Image.open(first.mask))).save(second.mask)
    audit = Audit(inspect_all([first, second, make_pair("c")]), {})
    (finding,) = [f for f in audit.findings if "different masks" in f.title]
    assert (finding.severity, finding.ids, finding.items) == (Severity.ERROR, ("a", "b"), ("a = b",))
    assert "--drop-copies" in finding.remedy


# --- what one pair of files shows ------------------------------------------------------------------------


def test_area_border_and_centre_by_hand(pair):
    mask = np.zeros((40, 80), np.uint8)
    mask[0:10, 60:80] = 255  # a corner: 20 of the pixels along the top, 10 of those on the right
    facts, small = inspect(pair("a", np.full((40, 80, 3), 90, np.uint8), mask))
    assert small.shape == (128, 128, 3)  # as a feature network sees it
    assert facts.area == pytest.approx(200 / 3200)
    assert facts.border == pytest.approx(30 / 240)
    assert facts.centre == pytest.approx((70 / 80, 5 / 40))
    assert (facts.width, facts.height, facts.levels) == (80, 40, 2)
    assert facts.thumbnail.shape == (48, 96, 3)
    assert (facts.thumbnail == (255, 220, 0)).all(axis=2).any()  # the outline


def test_headers_of_files_tell_their_oddities(tmp_path):
    pixels = Image.fromarray(np.full((8, 8, 3), 90, np.uint8))
    pixels.save(tmp_path / "wrong.png", format="JPEG")
    turned = Image.Exif()
    turned[0x0112] = 6
    pixels.save(tmp_path / "turned.jpg", exif=turned)
    pixels.convert("P").save(tmp_path / "palette.png")
    pixels.convert("RGBA").save(tmp_path / "alpha.png")
    found = {path.name: list(file_oddities(path, mask=True)) for path in tmp_path.iterdir()}
    assert found == {
        "wrong.png": ["ending", "lossy mask"],
        "turned.jpg": ["turned", "lossy mask"],
        "palette.png": ["palette"],
        "alpha.png": ["alpha"],
    }
    assert list(file_oddities(tmp_path / "missing.png")) == []


def test_features_go_to_the_images_that_could_be_read(pair):
    mask = np.pad(np.full((8, 8), 255, np.uint8), 16)
    samples = [pair(f"s{n:02d}", np.full((40, 40, 3), 5 * n, np.uint8), mask) for n in range(35)]
    samples[3].image.unlink()
    facts = inspect_all(samples[::-1], phi=lambda images: images.mean(axis=(1, 2)))
    assert [fact.sample.id for fact in facts] == [f"s{n:02d}" for n in range(35)]
    assert facts[3].features is None
    assert facts[3].errors
    assert all(fact.features[0] == pytest.approx(5 * n, abs=1) for n, fact in enumerate(facts) if n != 3)
