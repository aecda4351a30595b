"""An audit as text and as a page that needs nothing but itself."""

import re

import numpy as np
import pytest
from PIL import Image

from mcpmix.data.audit import Audit
from mcpmix.data.facts import inspect_all
from mcpmix.data.sample import Sample
from mcpmix.report.audit import as_lines, as_page


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
    lines = list(as_lines(audit))
    assert any(line.startswith("error: 1 x files cannot be used; repair or remove") for line in lines)
    assert not any(line.startswith("error") for line in as_lines(audit, errors=False))
    page = as_page(audit, "my <set>")
    assert "Audit of my &lt;set&gt;" in page
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "data:image/jpeg;base64," in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    assert "<script" not in page


def test_long_findings_are_cut_in_the_text_only(pair):
    samples = [pair(f"n {number}") for number in range(8)]
    audit = Audit(inspect_all(samples), {})
    assert "  - and 3 more" in list(as_lines(audit))
    assert as_page(audit, "x").count("<li>") == 8


def test_the_page_has_charts_of_sizes_and_places(pair):
    page = as_page(Audit(inspect_all([pair("a"), pair("b")]), {}), "x")
    for text in ("width, pixels", "lesion, % of the image", "% from the top", "Nothing was found."):
        assert text in page
    assert page.count("<svg") == 1
    assert "<svg" not in as_page(Audit((), {}), "x")
