"""What a bank is worth, from ledger rows made by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mcpmix.bench.banks import bank_facts, bank_sheet, images_of, mean_score, reasons_text


def row(parent, alignment, *reasons):
    scores = {"alignment": alignment}
    return {"parent": parent, "admitted": not reasons, "reasons": list(reasons), "scores": scores}


ROWS = [row("a", 0.8), row("a", 0.6), row("b", 0.1, "alignment: 0.10 is below 0.30"), row("c", 0.9)]
JUDGE = SimpleNamespace(manifest={"counts": {"dice": 0.7, "chance": 0.2}})


def test_counts_and_alignment_by_hand():
    facts = bank_facts(ROWS, JUDGE)
    assert (facts["tried"], facts["admitted"], facts["masks"]) == (4, 3, 2)
    assert sum(facts["reasons"].values()) == 1
    assert facts["alignment"] == pytest.approx(
        {"tried": 0.6, "admitted": 2.3 / 3, "real": 0.7, "chance": 0.2}
    )
    assert "alignment" not in bank_facts(ROWS, None)


def test_an_empty_bank_has_no_mean():
    assert math.isnan(mean_score([], "alignment"))
    assert reasons_text({}) == "none"
    assert reasons_text({"copy": 2, "exposure": 1}) == "copy 2, exposure 1"


def test_images_come_in_the_order_of_the_rows(tmp_path):
    for name, level in (("x.png", 10), ("y.png", 200)):
        Image.fromarray(np.full((4, 4, 3), level, np.uint8)).save(tmp_path / name)
    found = images_of([{"file": "y.png"}, {"file": "x.png"}], tmp_path)
    assert found.shape == (2, 4, 4, 3)
    assert found[:, 0, 0, 0].tolist() == [200, 10]


def test_a_sheet_marks_what_was_not_measured():
    facts = bank_facts(ROWS, JUDGE)
    distance = {"value": -0.001, "error": 0.002}
    kids = dict.fromkeys(("to training", "to held-out", "training to held-out"), distance)
    sheet = bank_sheet("Banks", {"judged": {**facts, "kid": kids}, "plain": bank_facts(ROWS, None)})
    first, second = ([item.text for item in line] for line in sheet.rows)
    assert len(first) == len(second) == len(sheet.heading)
    assert first[:4] == ["judged", "4", "3", "2"]
    assert first[5:] == ["0.600", "0.767", "0.700", "0.200", *["−0.0010 ± 0.0020"] * 3]
    assert second[5:] == ["–"] * 7
