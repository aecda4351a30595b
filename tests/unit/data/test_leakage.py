"""What networks have seen: lists that travel with them, and test images that must not be among them."""

import base64

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.dataset import build_index
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import (
    LeakSearch,
    LookSearch,
    SeenImage,
    closest,
    fingerprints,
    images_of,
    leak_text,
    look_of,
    matches,
    read_seen,
    require_parents,
    seen_by_generator,
    write_seen,
)
from mcpmix.data.sample import Sample, pixel_digest
from mcpmix.data.splits import Split
from mcpmix.phantom import render

PICTURES = {name: render(11, patient, 0, 64).image for patient, name in enumerate(("a", "b", "c"))}


def seen(name, image):
    return SeenImage(name, pixel_digest(image), look_of(image))


def brighter(image):
    return np.clip(image.astype(int) + 4, 0, 255).astype(np.uint8)


def test_a_list_travels_in_a_folder(tmp_path):
    assert read_seen(tmp_path) == []
    images = [seen(name, image) for name, image in PICTURES.items()]
    write_seen(tmp_path, images, private=True)
    assert read_seen(tmp_path) == images


def test_a_list_that_is_passed_on_holds_no_name_and_no_picture(tmp_path):
    images = [seen(f"patient-{name}", image) for name, image in PICTURES.items()]
    write_seen(tmp_path, images)
    text = (tmp_path / "images.json").read_text()
    assert "patient" not in text
    assert len(text) < 800 * len(images) + 50
    found = read_seen(tmp_path)
    assert [image.sha256 for image in found] == sorted(image.sha256 for image in images)
    for image in images:
        grey = base64.b64decode(image.look)[32:]
        assert not any(grey[start : start + 8] in base64.b64decode(other.look) for other in found
                       for start in range(0, 1024, 8))  # fmt: skip
    held = [seen("t1", PICTURES["a"]), seen("t2", brighter(PICTURES["b"]))]
    copies = LeakSearch(held).copies(found)
    assert set(copies) == {"t1", "t2"}
    assert copies["t1"].startswith("= image ")
    assert copies["t2"].startswith("~ image ")
    write_seen(tmp_path, found)  # what was passed on is passed on once more
    assert read_seen(tmp_path) == found


@pytest.mark.parametrize(
    "content",
    [
        *("{", "{}", "[3]", "[" * 9999, '{"images": [{"id": "a"}]}', '{"images": ["dd"]}'),
        '{"images": [{"sha256": "a", "print": "AAAA"}]}',
    ],
)
def test_a_damaged_list_is_no_empty_list(tmp_path, content):
    (tmp_path / "images.json").write_text(content)
    with pytest.raises(DataError, match=r"images\.json is not a list of seen images"):
        read_seen(tmp_path)


def test_a_generator_is_asked_with_its_manifest_and_its_base(tmp_path):
    for name in ("generator", "base"):
        (tmp_path / name).mkdir()
    write_seen(tmp_path / "generator", [SeenImage("a", "1")], private=True)
    write_seen(tmp_path / "base", [SeenImage("web", "9")])
    found = seen_by_generator(tmp_path / "generator", ["1", "2"], tmp_path / "base")
    assert found == {
        "the generator": [SeenImage("a", "1"), SeenImage("image 2", "2")],
        "the generator's base": [SeenImage("image 9", "9")],
    }


def test_copies_are_found_by_pixels_and_by_look():
    held = [
        seen("t1", PICTURES["a"]),
        seen("t2", brighter(PICTURES["b"])),
        seen("t3", PICTURES["c"]),
    ]
    known = [seen("a", PICTURES["a"]), seen("b", PICTURES["b"])]
    found = LeakSearch(held).copies(known)
    assert found["t1"] == "= a"
    assert found["t2"].startswith("~ b (")
    assert found["t2"].endswith(" of 256 signs differ, correlation 1.000)")
    assert set(found) == {"t1", "t2"}


def test_without_looks_only_the_same_pixels_are_found():
    held = [seen("t1", PICTURES["a"]), seen("t2", brighter(PICTURES["b"]))]
    known = [SeenImage(name, pixel_digest(image)) for name, image in PICTURES.items()]
    assert LeakSearch(held).copies(known) == {"t1": "= a"}


def test_an_image_is_compared_once_whoever_has_seen_it(monkeypatch):
    compared = []
    monkeypatch.setattr(
        "mcpmix.data.leakage.matches",
        lambda held, known: compared.append(len(known)) or matches(held, known),
    )
    search = LeakSearch([seen("t1", PICTURES["a"]), seen("t2", brighter(PICTURES["b"]))])
    a, b, c = (seen(name, PICTURES[name]) for name in "abc")
    assert set(search.copies([a, b])) == {"t1", "t2"}
    assert set(search.copies([b])) == {"t2"}
    assert set(search.copies([c, a])) == {"t1"}
    assert search.copies([c]) == {}
    assert [count for count in compared if count] == [2, 1]


def test_the_message_names_all_images_and_who_saw_them():
    held = [seen("t1", PICTURES["a"]), seen("t2", brighter(PICTURES["b"])), seen("t3", PICTURES["c"])]
    seen_by = {
        "the segmenter": [seen("a", PICTURES["a"])],
        "the generator": [seen("a", PICTURES["a"]), seen("b", PICTURES["b"])],
    }
    with pytest.raises(DataError) as caught:
        leak_text(LeakSearch(held), seen_by, refuse=True, remedy=" Or say so:")
    head, *lines = str(caught.value).split("\n")
    assert head.startswith("2 of 3 test images were seen in training, or are near-duplicates")
    assert head.endswith(" Or say so:")
    assert lines[0] == "  - t1 = a, seen by the segmenter and the generator"
    assert lines[1].startswith("  - t2 ~ b (")
    assert lines[1].endswith(", seen by the generator")
    assert len(lines) == 2
    assert leak_text(LeakSearch(held), seen_by, refuse=False) == (
        "2 of 3 test images were seen by the segmenter and the generator, or are near-duplicates of an "
        "image that was"
    )
    assert leak_text(LeakSearch(held[2:]), seen_by, refuse=True) == ""


@pytest.fixture
def index(tmp_path):
    samples = []
    for name, image in PICTURES.items():
        Image.fromarray(image).save(tmp_path / f"{name}.png")
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / f"{name}_mask.png")
        samples.append(Sample(name, tmp_path / f"{name}.png", tmp_path / f"{name}_mask.png", name, "folder"))
    return build_index(samples, Split(("a",), ("b",), ("c",)))


def test_an_index_keeps_the_looks(index, tmp_path):
    index.write(tmp_path)
    again = DatasetIndex.read(tmp_path)
    assert images_of(again.part("train")) == [seen("a", PICTURES["a"])]


def test_parents_must_be_training_images(index):
    others = [*index.part("validation"), *index.part("test")]
    generator = {"the generator": images_of(index.part("train"))}
    require_parents(index.part("train"), others, generator)
    with pytest.raises(DataError) as caught:
        require_parents(index.records, others, {"the generator": images_of(index.records)})
    assert str(caught.value).split("\n") == [
        "Counterparts are made of training images only, by a generator that saw no others. Correct the "
        "split, or train the generator again:",
        "  - b is of the validation part: only training images may be parents.",
        "  - c is of the test part: only training images may be parents.",
        "  - validation b was used to train the generator.",
        "  - test c was used to train the generator.",
    ]


# --- near-duplicates, by pixels --------------------------------------------------------------------------


RNG = np.random.default_rng(0)


def waves(seed, shift=0.0):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:48, 0:64].astype(float)
    waves = sum(
        30 * np.sin(rng.uniform(0.05, 0.3) * rows + rng.uniform(0.05, 0.3) * (columns + shift) + phase)
        for phase in rng.uniform(0, 6, 5)
    )
    return np.clip(np.stack([120 + waves] * 3, axis=2), 0, 255).astype(np.uint8)


def two_looks(image):
    """Signs and grey levels of a picture, worked out beside the package."""
    grey = Image.fromarray(image).convert("L")
    cells = np.asarray(grey.resize((17, 16), Image.Resampling.BOX)).astype(int)
    return np.diff(cells, axis=1).ravel() > 0, np.asarray(grey.resize((32, 32), Image.Resampling.BOX)).ravel()


def test_matches_agree_with_counting_one_by_one():
    pictures = [waves(seed, shift) for seed in range(4) for shift in (0, 1, 9)]
    looks = [look_of(picture) for picture in pictures]
    assert {len(look) for look in looks} == {1408}
    expected = {
        (first, second)
        for first, (signs, grey) in enumerate(map(two_looks, pictures))
        for second, (others, levels) in enumerate(map(two_looks, pictures))
        if np.sum(signs != others) <= 48 and np.corrcoef(grey, levels)[0, 1] >= 0.975
    }
    assert {(match.first, match.second) for match in matches(looks, looks)} == expected
    assert {(number, number) for number in range(12)} < expected
    assert list(matches([], looks)) == []


def test_pictures_of_one_colour_are_no_near_copies_of_anything():
    flat = [look_of(np.full((20, 20, 3), level, np.uint8)) for level in (0, 128)]
    assert list(matches(flat, flat)) == []


def test_of_several_matches_the_closest_counts():
    looks = [look_of(waves(1, shift)) for shift in (0, 1, 2)]
    best = closest(matches(looks[:1], looks[1:]))
    assert {first: match.second for first, match in best.items()} == {0: 0}
    assert "of 256 signs differ, correlation 0.9" in best[0].how


def looks_of(greys):
    """Looks with these grey versions, N,32,32, and signs that fit them roughly."""
    signs = np.diff(greys.astype(int)[:, ::2, :], axis=2)[:, :, ::2][:, :, :16] > 0
    packed = np.packbits(signs.reshape(len(greys), -1), axis=1)
    return [base64.b64encode(a.tobytes() + b.tobytes()).decode() for a, b in zip(packed, greys, strict=True)]


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("kind", ["noise", "clusters", "one colour among them", "few axes"])
def test_the_tree_finds_what_comparing_all_finds(kind, few, monkeypatch):
    monkeypatch.setattr("mcpmix.data.leakage._FEW", few)
    rng = np.random.default_rng(7)
    scenes = rng.integers(0, 256, (60, 32, 32)).astype(float)
    if kind == "noise":
        greys = rng.integers(0, 256, (400, 32, 32))
    elif kind == "few axes":  # all differ along two axes only
        greys = 128 + np.tensordot(rng.normal(0, 9, (400, 2)), rng.normal(0, 3, (2, 32, 32)), 1)
    else:  # near-duplicates on both sides of both limits
        greys = scenes[rng.integers(60, size=600)] + rng.normal(
            0, rng.uniform(2, 30, (600, 1, 1)), (600, 32, 32)
        )
    if kind == "one colour among them":
        greys[::7] = 90
    looks = looks_of(np.clip(greys, 0, 255).astype(np.uint8))
    signs, levels = fingerprints(looks)
    different = (signs[:, None] != signs[None]).sum(axis=2)
    expected = np.argwhere((different <= 48) & (levels @ levels.T >= 0.975))
    found = [(match.first, match.second) for match in matches(looks, looks)]
    assert found == list(map(tuple, expected.tolist()))  # in this order too
    assert kind == "noise" or len(found) > len(looks)
    search = LookSearch(looks)
    assert [(m.first, m.second) for m in search.matches(looks[5:9])] == [
        (a - 5, b) for a, b in found if 5 <= a < 9
    ]
