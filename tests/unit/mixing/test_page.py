"""The page on the strategies says what the code says, and shows a picture of each."""

import importlib
from pathlib import Path

import pytest

from mcpmix.mixing.registry import STRATEGIES

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("strategy_pictures")


def test_sections_are_up_to_date(pictures):
    for name in STRATEGIES:
        assert pictures.section(name) in TEXT, f"{name}: run python benchmarks/strategy_pictures.py --page"


def test_there_is_a_picture_of_each_strategy():
    found = {file.stem for file in (ROOT / "docs" / "images" / "strategies").iterdir()}
    assert found == set(STRATEGIES)


def test_generated_parts_replace_what_stands_between_their_markers(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    markers = importlib.import_module("_markers")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- t -->\nold\n<!-- /t -->\nafter\n")
    markers.fill(page, "t", "new")
    assert page.read_text() == "before\n<!-- t -->\nnew\n<!-- /t -->\nafter\n"
    with pytest.raises(SystemExit, match="no place for 'u'"):
        markers.fill(page, "u", "new")


def test_names_of_the_encoder_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    lite0 = importlib.import_module("_lite0")
    assert lite0.timm_name("_bn0.weight") == "bn1.weight"
    assert lite0.timm_name("_blocks.0._project_conv.weight") == "blocks.0.0.conv_pw.weight"
    assert lite0.timm_name("_blocks.4._bn2.bias") == "blocks.2.1.bn3.bias"
    assert lite0.timm_name("_fc.weight") is None
