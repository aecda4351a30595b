"""The set itself, with a baseline that needs no network."""

import json

import numpy as np
import pytest
from tests.helpers.progress import Kill, Recorder

from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.seeds import numpy_rng
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import SeenImage, read_seen
from mcpmix.generator.baselines import labelled_set
from mcpmix.generator.baselines.labelled_set import Drawn, Real, _areas, make_set, read_set, set_key
from mcpmix.generator.judge import Judge
from mcpmix.run import run
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import Inputs

SIZE = 64


def square(seed, empty=False):
    """A bright square on noise: the image of a seed, and its mask."""
    rng = numpy_rng("square", seed)
    image, mask = rng.integers(0, 80, (SIZE, SIZE, 3)).astype(np.uint8), np.zeros((SIZE, SIZE), np.uint8)
    if not empty:
        top, left = rng.integers(4, 40, 2)
        mask[top : top + 16, left : left + 16] = 1
    image[mask > 0] += 120
    return image, mask


def drawing(empty=lambda number: False):
    """A baseline that draws squares; those of some calls are empty."""
    calls = []

    def train_nothing(config, sources, real, folder, runtime, progress):
        assert folder.is_dir()

        def draw(seeds, prompts):
            calls.append((list(seeds), list(prompts)))
            pairs = [square(seed, empty(len(calls))) for seed in seeds]
            images, masks = (np.stack(parts) for parts in zip(*pairs, strict=True))
            return Drawn(images, masks, [{"mask": "square"}] * len(seeds), [""] * len(seeds))

        return draw

    return train_nothing, calls


@pytest.fixture
def make(prepared, tmp_path, monkeypatch):
    """Makes a set of squares; masks of real images allow them."""
    config, sources, runtime = prepared
    monkeypatch.setattr(labelled_set, "_areas", lambda _: (0.01, 0.5))

    def made(baseline, progress=None, out="set", **options):
        key = set_key("squares", config, sources, {"batch_size"})
        inputs = key, config, sources, baseline, tmp_path / out, runtime, progress or Recorder()
        return make_set(*inputs, **options)

    return made


def test_a_set_has_as_many_images_as_the_bank_would_have_with_a_row_each(make, prepared):
    config, sources, _ = prepared
    made = make(drawing()[0])
    arrays, counts = read_set(made), made.manifest["counts"]
    assert len(arrays) == counts["images"] == counts["wanted"] == 4 * config.synthesis.replicas
    assert counts["warnings"] == []
    rows = [json.loads(line) for line in (made / "ledger.jsonl").read_text().splitlines()]
    for row, image, mask in zip(rows, arrays.images, arrays.masks, strict=True):
        assert np.array_equal(image, square(row["seed"])[0])
        assert np.array_equal(mask, square(row["seed"])[1])
        assert (row["method"], row["mask"], row["admitted"], row["reasons"]) == (
            "squares",
            "square",
            True,
            [],
        )
        assert row["prompt"].startswith(config.generator.prompt.text)
    trained = {record.image_sha256 for record in DatasetIndex.read(sources.dataset).part("train")}
    assert {image.sha256 for image in read_seen(made.folder)} == trained
    assert {path.name for path in made.folder.iterdir()} == {
        *("images", "masks", "images.json", "ledger.jsonl", "manifest.json", "sheet.png")
    }


def test_empty_masks_are_tried_again_and_never_trained_on(make, prepared):
    config, _, _ = prepared
    baseline, calls = drawing(empty=lambda number: number == 1)
    made = make(baseline)
    counts, size = made.manifest["counts"], config.synthesis.batch_size
    assert counts["rejected"] == {"mask": size}
    assert counts["images"] == counts["wanted"]
    assert read_set(made).masks.any(axis=(1, 2)).all()
    assert len(list((made / "rejected").iterdir())) == 2 * size
    assert not set(calls[0][0]) & set(calls[-1][0])  # with other seeds


def test_what_cannot_be_drawn_is_told_and_the_arm_says_why_it_has_no_images(make, prepared, tmp_path):
    config, sources, runtime = prepared
    listener = Recorder()
    made = make(drawing(empty=lambda _: True)[0], listener)
    assert len(read_set(made)) == 0
    assert any("0 images of 8 were admitted; rejected for mask" in line for line in listener.lines)
    with pytest.raises(DataError, match="satsynth has no synthetic image to train on"):
        train.Trainer(config, Inputs(sources.dataset, labelled_set=made), "satsynth", 0, tmp_path, runtime)


def test_a_killed_set_resumes_to_the_same_bits(make):
    whole = make(drawing()[0])
    with pytest.raises(KeyboardInterrupt):
        make(drawing()[0], Kill("draw squares"), out="killed")
    baseline, calls = drawing()
    resumed = make(baseline, out="killed")
    assert 0 < len(calls) < 4
    for path in whole.folder.rglob("*.png"):
        assert (resumed / str(path.relative_to(whole.folder))).read_bytes() == path.read_bytes()
    assert (resumed / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()
    assert make(baseline, out="killed").digest == resumed.digest
    assert not calls[4:]


@pytest.mark.parametrize("folder", ["images", "masks"])
def test_damaged_files_are_named(make, folder):
    made = make(drawing()[0])
    (made / f"{folder}/000003.png").write_bytes((made / f"{folder}/000001.png").read_bytes())
    (made / f"{folder}/000005.png").unlink()
    with pytest.raises(StorageError, match="damaged or missing") as caught:
        read_set(made)
    assert all(f"{folder}/{number}.png" in str(caught.value) for number in ("000003", "000005"))


def test_a_row_edited_by_hand_is_found(make):
    made = make(drawing()[0])
    path = made / "ledger.jsonl"
    path.write_text(path.read_text().replace('"try": 0', '"try": 1', 1))
    with pytest.raises(StorageError, match="line 1: its content does not match its seal"):
        read_set(made)


def test_a_network_that_has_seen_a_test_image_is_refused(make, prepared, monkeypatch):
    _, sources, _ = prepared
    (test, *_) = DatasetIndex.read(sources.dataset).part("test")
    monkeypatch.setattr(labelled_set, "read_seen", lambda _: [SeenImage("x", test.image_sha256, test.look)])
    with pytest.raises(DataError, match=rf"test {test.id} was used to train squares"):
        make(drawing()[0])


def test_masks_must_be_as_large_as_real_ones(real):
    limited = Real(real.records, real.arrays, (0.1, 0.3))
    mask = np.zeros((10, 10), np.uint8)
    assert limited.degenerate(mask) == "mask: empty"
    mask[:2, :3] = 1
    assert limited.degenerate(mask) == "mask: covers 6.0% of the image; those of real images 10.0% to 30.0%"
    mask[:2, :5] = 1
    assert limited.degenerate(mask) == ""


def test_areas_are_those_of_masks_with_lesions():
    masks = np.zeros((4, 10, 10), np.uint8)
    with pytest.raises(DataError, match="No mask of the training part has a lesion"):
        _areas(masks)
    masks[1, :1], masks[2, :2], masks[3, :3] = 1, 1, 1
    assert _areas(masks) == pytest.approx((0.102, 0.298))  # 1 % of the way from 0.1 to 0.2, and back


class Bright:
    """A judge's network that finds what is bright."""

    def __call__(self, images):
        return 20 * images[:, :1]

    def to(self, _):
        return self

    def eval(self):
        return self


def test_the_judge_rejects_what_does_not_lie_under_its_mask(prepared, tmp_path, make_config, monkeypatch):
    _, sources, runtime = prepared
    config = make_config(tmp_path, "synthesis.admission.enabled=true", "synthesis.admission.tries=2")
    monkeypatch.setattr(labelled_set, "_areas", lambda _: (0.01, 0.5))
    judge = Judge([Bright(), Bright()], {}, {"a": 0.9, "b": 0.9})
    monkeypatch.setattr("mcpmix.generator.admission.load_judge", lambda *_, **__: judge)
    monkeypatch.setattr("mcpmix.generator.admission.exposure_problem", lambda *_: "")
    judged = labelled_set.Sources(sources.dataset, judge=read_artifact(sources.dataset.folder))

    def misplaced(config, sources, real, folder, runtime, progress):
        draw = drawing()[0](config, sources, real, folder, runtime, progress)

        def moved(seeds, prompts):
            drawn = draw(seeds, prompts)
            drawn.masks[0] = np.roll(drawn.masks[0], 20, axis=(0, 1))
            return drawn

        return moved

    key = set_key("squares", config, judged, set())
    made = make_set(key, config, judged, misplaced, tmp_path / "set", runtime, Recorder())
    rows = [json.loads(line) for line in (made / "ledger.jsonl").read_text().splitlines()]
    assert {row["admitted"] for row in rows} == {True, False}
    for row in rows:
        assert row["admitted"] is (row["scores"]["alignment"] > 0.8)
        assert row["scores"]["distance_source"] is None
    counts = made.manifest["counts"]
    assert counts["rejected"] == {"alignment": sum(not row["admitted"] for row in rows)}
    assert counts["alignment"] > counts["alignment_tried"]


@pytest.mark.usefixtures("any_area")
def test_a_run_trains_and_scores_all_of_them(make_config, tmp_path):
    arms = ("full-sup-strong", "controlpolypnet", "gensrrfi", "satsynth")
    config = make_config(tmp_path, f"train.arms=[{', '.join(arms)}]", "train.epochs=1")
    made = run(config, until="evaluation")
    assert {arm for arm, _ in made.evaluations} == set(arms)
    assert made.pairs is None  # nobody needs counterparts
    for arm in arms[1:]:
        seen = {image.sha256 for image in read_seen(made.segmenters[arm, 0].folder)}
        assert {image.sha256 for image in read_seen(made.sets[arm].folder)} <= seen
        row = json.loads((made.segmenters[arm, 0] / "log.jsonl").read_text().splitlines()[0])
        assert "loss_appended" in row
        assert "base of the synthetic images" in (made.segmenters[arm, 0] / "README.md").read_text()
    again = Recorder()
    run(config, again, until="evaluation")
    assert again.titles == []
