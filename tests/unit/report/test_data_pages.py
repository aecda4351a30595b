"""Text and pages that need nothing but themselves."""

import re

import numpy as np
import pytest
from PIL import Image
from tests.helpers.finished_run import Outline

from mcpmix.data.audit import Audit, Facts, inspect_all
from mcpmix.data.groups import Guess
from mcpmix.data.sample import Sample
from mcpmix.report.data_pages import audit_lines, audit_page, groups_page


@pytest.fixture
def pair(tmp_path):
    def make(name):
        rng = np.random.default_rng(sum(name.encode()))
        paths = (tmp_path / f"{name}.png", tmp_path / f"{name}_mask.png")
        Image.fromarray(rng.integers(0, 200, (48, 64, 3), dtype=np.uint8)).save(paths[0])
        Image.fromarray(np.pad(np.full((10, 20), 255, np.uint8), ((10, 28), (10, 34)))).save(paths[1])
        return Sample(name, *paths, name, "x")

    return make


def test_text_and_page_name_findings_and_hide_nothing_outside(pair):
    samples = [pair("<b>&"), pair("gone")]
    samples[1].image.unlink()
    audit = Audit(inspect_all(samples), {})
    lines = list(audit_lines(audit))
    assert any(line.startswith("error: 1 x files cannot be used; repair or remove") for line in lines)
    assert not any(line.startswith("error") for line in audit_lines(audit, errors=False))
    page = audit_page(audit, "my <set>")
    assert "Audit of my &lt;set&gt;" in page
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "data:image/jpeg;base64," in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    assert "<script" not in page


def test_long_findings_are_cut_in_the_text_only(pair):
    samples = [pair(f"n {number}") for number in range(8)]
    audit = Audit(inspect_all(samples), {})
    assert "  - and 3 more" in list(audit_lines(audit))
    assert audit_page(audit, "x").count("<li>") == 8


def test_the_page_has_charts_of_sizes_and_places(pair):
    page = audit_page(Audit(inspect_all([pair("a"), pair("b")]), {}), "x")
    for text in ("width, pixels", "lesion, % of the image", "% from the top", "Nothing was found."):
        assert text in page
    assert page.count("<svg") == 1
    assert "<svg" not in audit_page(Audit((), {}), "x")


def fact(name, tmp_path, thumbnail=True):
    picture = np.full((8, 8, 3), 90, np.uint8) if thumbnail else None
    return Facts(Sample(name, tmp_path / name, tmp_path / name, name, "x"), thumbnail=picture)


def test_a_sheet_for_each_group_with_its_images_in_the_order_of_their_names(tmp_path):
    facts = [fact("f10", tmp_path), fact("f2", tmp_path), fact("<b>", tmp_path, thumbnail=False)]
    text = groups_page(facts, Guess({"f10": "f2", "f2": "f2", "<b>": "<b>"}, "name", 0.9), "groups.csv")
    page = Outline(text)
    assert "3 images in 2 groups; 1 hold one image" in page.text
    assert "groups.csv" in page.text
    assert len(page.all("img")) == 2  # what could not be read has no picture
    assert all(image["src"].startswith("data:") for image in page.all("img"))
    assert page.text.index("f2") < page.text.index("f10")
    assert "<b>" not in text.replace("&lt;b&gt;", "")
