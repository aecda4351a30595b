from pathlib import Path

import pytest

from mcpmix.config_file import resolve_config
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.segmenter.model_card import CARD, write_card, write_scored_card

DESCRIPTION = {
    "name": "unet",
    "variant": "resnet18",
    "size": 96,
    "arm": "mcpmix-rla",
    "seed": 2,
    "best_epoch": 7,
    "validation_dsc": 61.234,
}
SUMMARY = {
    "dsc": {"mean": 70.123, "sd": 10.0, "n": 3, "undefined": 0},
    "hd95": {"mean": 12.0, "sd": 1.0, "n": 2, "undefined": 1},
}


def record(name, group, split):
    file = Path(f"{name}.png")
    return Record(name, file, file, group, "clinic", split, name * 3, "m", 10, 12, "")


INDEX = DatasetIndex(
    (
        record("a", "p1", "train"),
        record("b", "p1", "train"),
        record("c", "p2", "validation"),
        record("d", "p3", "test"),
    )
)


def card(folder, arm="mcpmix-rla", *overrides):
    config = resolve_config({"preset": "tiny"}, overrides)
    write_card(folder, config, {**DESCRIPTION, "arm": arm}, INDEX)
    return (folder / CARD).read_text(encoding="utf-8")


def test_the_card_says_what_the_segmenter_is_made_of(tmp_path):
    text = card(tmp_path)
    assert "# unet resnet18, trained with mcpmix-rla, seed 2" in text
    assert "| train | 2 | 1 | clinic |" in text
    assert "| test | 1 | 1 | clinic |" in text
    assert f"`{INDEX.digest}`" in text
    assert "weights of epoch 7, validation DSC 61.23 %" in text
    assert "not a medical device" in text
    assert "Not in this card" in text


def test_licences_are_those_of_what_the_arm_used(tmp_path):
    text = card(tmp_path)
    assert "| segmenter | embedded | Apache-2.0" in text
    text = card(tmp_path, "mcpmix-rla", "segmenter.weights=null")
    assert "| segmenter | none: from scratch | – |" in text
    assert "| generator of the counterparts | embedded | Apache-2.0" in text
    text = card(tmp_path, "full-sup", "segmenter.weights=nvidia/mit-b0")
    assert "| segmenter | nvidia/mit-b0 | NVIDIA Source Code License" in text
    assert "features of RLA" in card(tmp_path, "mcpmix-rla")
    assert "features of RLA" not in card(tmp_path, "mcpmix")
    assert "generator" not in text.partition("## Licences")[2].partition("## Use")[0]


def test_paths_of_this_machine_stay_here(tmp_path):
    text = card(tmp_path, "full-sup", f"segmenter.weights={tmp_path}/encoder.safetensors")
    assert "| segmenter | encoder.safetensors | unknown to this program" in text
    assert str(tmp_path) not in text


def test_the_card_with_scores_is_another_file(tmp_path):
    before = card(tmp_path)
    (tmp_path / "evaluation").mkdir()
    known = {"dsc": {"mean": 80.5, "sd": 5.0, "n": 4, "undefined": 0}}
    write_scored_card(tmp_path / "evaluation", tmp_path, {"test": SUMMARY, "known": known})
    scored = (tmp_path / "evaluation" / CARD).read_text(encoding="utf-8")
    assert "| dsc (%) | 70.12 | 10.00 | 3 |" in scored
    table = scored.partition("On new images of groups that training has seen:")[2].partition("## Licences")[0]
    assert table.splitlines()[-2:] == ["| dsc (%) | 80.50 | 5.00 | 4 |", ""]
    assert "| hd95 (px) | 12.00 | 1.00 | 2 (1 undefined) |" in scored
    assert "Not in this card" not in scored
    for part in before.split("## Scores")[0], before.split("## Licences")[1]:
        assert part in scored
    assert (tmp_path / CARD).read_text(encoding="utf-8") == before


@pytest.mark.parametrize("text", [None, "my own words\n"])
def test_scores_follow_a_card_written_by_hand(text, tmp_path):
    if text is not None:
        (tmp_path / CARD).write_text(text)
    (tmp_path / "evaluation").mkdir()
    write_scored_card(tmp_path / "evaluation", tmp_path, {"test": SUMMARY})
    scored = tmp_path / "evaluation" / CARD
    assert scored.exists() == (text is not None)
    if text is not None:
        assert scored.read_text().startswith("my own words\n\n## Scores on the test images\n\n| metric |")
        assert (tmp_path / CARD).read_text() == text
