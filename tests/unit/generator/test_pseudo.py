"""Pseudo-masks: which images get one, by networks whose answers are known."""

import json

import numpy as np
import pytest
from tests.helpers.progress import Kill, Recorder
from tests.helpers.unlabelled import store_unlabelled
from torch import nn

from mcpmix.core.device import setup
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator import pseudo
from mcpmix.generator.judge import Judge
from mcpmix.generator.pseudo import mark, read_pseudo

SIZE = 30  # no multiple of 8: masks are stored as bits
RUNTIME = setup("cpu", "float32", 1, deterministic=True)
WHOLE, HALF = (slice(4, 12), slice(8, 16)), (slice(4, 12), slice(8, 12))  # 64 and 32 pixels
AGREEMENT = {"agreed": 1.0, "mostly": 7 / 9, "nothing": 1.0, "apart": 0.0, "more": 1.0}


class Bright(nn.Module):
    """Finds what is bright in one channel."""

    def __init__(self, channel):
        super().__init__()
        self.channel = channel

    def forward(self, images):
        return 20 * images[:, self.channel : self.channel + 1]


JUDGE = Judge([Bright(0), Bright(1), Bright(2)], {}, {})


@pytest.fixture(scope="module")
def images():
    """What red, green and blue show, and so what the three networks find."""
    found = np.zeros((5, SIZE, SIZE, 3), np.uint8)
    found[0][WHOLE] = 255
    found[1][WHOLE] = (255, 255, 0)
    found[1][HALF] = 255  # blue finds half of it: Dice 2 * 32 / 96 with each of the others
    found[3, 0:4, :, 0] = found[3, 10:14, :, 1] = found[3, 20:24, :, 2] = 255
    found[4, 20:30, 20:30] = 255
    return found


@pytest.fixture
def stored(images, tmp_path):
    """The images as their stage leaves them."""
    return store_unlabelled(tmp_path / "unlabelled", images, list(AGREEMENT))


@pytest.fixture
def marked(make_config, stored, tmp_path, monkeypatch):
    """Runs the stage, two images at a time."""
    monkeypatch.setattr(pseudo, "load_judge", lambda *_, **__: JUDGE)
    monkeypatch.setattr(pseudo, "_BATCH", 2)
    judge = Artifact(tmp_path, {"digest": "of the judge"})

    def make(agreement=0.8, progress=None):
        config = make_config(tmp_path, f"pseudo.agreement={agreement}")
        return pseudo.run(config, stored, judge, tmp_path / "pseudo", RUNTIME, progress or Recorder())

    return make


def test_agreement_is_the_mean_dice_of_all_pairs_and_the_mask_that_of_their_mean(images):
    masks, agreement = mark(JUDGE, images)
    assert agreement == pytest.approx(list(AGREEMENT.values()))
    assert masks.dtype == np.uint8
    for place, found in ((0, WHOLE), (1, WHOLE)):
        assert masks[place][found].all()
        assert masks[place].sum() == 64
    assert masks[2].sum() == masks[3].sum() == 0
    assert masks[4].sum() == 100


@pytest.mark.parametrize(("least", "used"), [(0.8, ["agreed", "more"]), (0.7, ["agreed", "mostly", "more"])])
def test_images_are_used_where_networks_agree_on_a_lesion(marked, stored, images, least, used):
    recorder = Recorder()
    made = marked(least, recorder)
    rows = [json.loads(line) for line in (made / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(AGREEMENT)
    assert [row["id"] for row in rows if row["used"]] == used  # never "nothing", on which all agree
    assert [row["agreement"] for row in rows] == pytest.approx(list(AGREEMENT.values()))
    assert rows[0]["area"] == pytest.approx(64 / SIZE**2)
    assert (made.manifest["counts"]["images"], made.manifest["counts"]["used"]) == (5, len(used))
    assert any(f"{len(used)} of 5" in line for line in recorder.lines)
    arrays = read_pseudo(made, Unlabelled.read(stored))
    places = [list(AGREEMENT).index(name) for name in used]
    assert arrays.ids == tuple(used)
    assert np.array_equal(arrays.images, images[places])
    assert np.array_equal(arrays.masks, mark(JUDGE, images)[0][places])


def test_a_finished_stage_is_reused_and_another_threshold_marks_again(marked):
    first, again, other = Recorder(), Recorder(), Recorder()
    marked(0.8, first)
    marked(0.8, again)
    marked(0.7, other)
    assert [recorder.titles for recorder in (first, again, other)] == [["pseudo-masks"], [], ["pseudo-masks"]]


def test_a_killed_stage_begins_again(marked):
    with pytest.raises(KeyboardInterrupt):
        marked(progress=Kill("pseudo-masks"))
    assert len((marked() / "rows.jsonl").read_text().splitlines()) == 5


def test_it_may_be_that_no_image_is_used(marked, stored, monkeypatch):
    def nothing(_, images):
        return np.zeros(images.shape[:3], np.uint8), np.ones(len(images))

    monkeypatch.setattr(pseudo, "mark", nothing)
    arrays = read_pseudo(marked(), Unlabelled.read(stored))
    assert len(arrays) == 0
    assert arrays.masks.shape == (0, SIZE, SIZE)
