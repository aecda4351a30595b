"""The page of guessed groups."""

import numpy as np
from tests.helpers.finished_run import Outline

from mcpmix.data.facts import Facts
from mcpmix.data.groups import Guess
from mcpmix.data.sample import Sample
from mcpmix.report.groups import as_page


def fact(name, tmp_path, thumbnail=True):
    picture = np.full((8, 8, 3), 90, np.uint8) if thumbnail else None
    return Facts(Sample(name, tmp_path / name, tmp_path / name, name, "x"), thumbnail=picture)


def test_a_sheet_for_each_group_with_its_images_in_the_order_of_their_names(tmp_path):
    facts = [fact("f10", tmp_path), fact("f2", tmp_path), fact("<b>", tmp_path, thumbnail=False)]
    text = as_page(facts, Guess({"f10": "f2", "f2": "f2", "<b>": "<b>"}, "name", 0.9), "groups.csv")
    page = Outline(text)
    assert "3 images in 2 groups; 1 hold one image" in page.text
    assert "groups.csv" in page.text
    assert len(page.all("img")) == 2  # what could not be read has no picture
    assert all(image["src"].startswith("data:") for image in page.all("img"))
    assert page.text.index("f2") < page.text.index("f10")
    assert "<b>" not in text.replace("&lt;b&gt;", "")
