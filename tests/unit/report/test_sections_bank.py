import numpy as np
from PIL import Image

from mcpmix.report.sections import bank_text, bank_tiles

COUNTS = {
    "images": 30,
    "parents": 4,
    "tries": 41,
    "rejected": {"alignment": 10, "copy": 1},
    "scores": {
        "alignment": 0.61,
        "alignment_tried": 0.5,
        "alignment_real": 0.66,
        "distance_source": 0.9,
        "distance_train": 0.8,
        "distance_held_out": None,
        "diversity": 0.7,
    },
}


def test_pictures_keep_their_size_and_those_not_drawn_are_left_out(tmp_path):
    assert bank_tiles(tmp_path) == ()
    Image.fromarray(np.zeros((700, 400, 3), np.uint8)).save(tmp_path / "sheet.png")
    (tile,) = bank_tiles(tmp_path)
    assert (tile.width, tile.height) == (400, 700)
    assert tile.uri.startswith("data:image/jpeg")


def test_the_text_gives_numbers_and_reasons():
    text = bank_text(COUNTS)
    assert "30 counterparts of 4 masks were admitted, of 41 images tried" in text
    assert "alignment 10, copy 1" in text
    assert "admitted 0.61, of all tried 0.50; the same judge reaches 0.66" in text
    assert "held-out image unknown" in text
    assert "counterparts of one mask 0.70" in text


def test_a_bank_that_was_not_judged_says_so():
    assert (
        bank_text({"images": 8, "parents": 4}) == "8 counterparts of 4 masks; none was judged, all are used."
    )
