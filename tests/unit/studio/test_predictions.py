import base64
import io

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.phantom import render
from mcpmix.segmenter.predict import load_segmenter
from mcpmix.studio.predictions import Predictions, segmenters_of
from mcpmix.studio.reading import AbsentError
from mcpmix.studio.runs import Runs


def encoded(pixels, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **{"format": "PNG", **options})
    return buffer.getvalue()


def decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


@pytest.fixture(scope="module")
def runs_of(studio_run):
    return Runs(studio_run.config.output)


def test_the_answer_is_what_the_segmenter_says(runs_of, studio_run):
    image = np.ascontiguousarray(render(3, 7, 0, 64).image[:, :50])
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    found = Predictions(runs_of).predict(name, encoded(image), "x.png")
    expected = load_segmenter(studio_run.config.folder / "segmenter" / "full-sup" / "seed-0").predict(image)
    assert (found["width"], found["height"]) == (50, 64)
    assert np.array_equal(decoded(found["mask"]), (expected >= 0.5) * 255)
    assert np.abs(decoded(found["probabilities"]) / 255 - expected).max() <= 0.5 / 255 + 1e-6
    assert found["share"] == pytest.approx((expected >= 0.5).mean())


def bomb():
    """A PNG of 900 million pixels in a few kilobytes: its head is all that anybody should read."""
    content = bytearray(encoded(np.zeros((1, 1), np.uint8)))
    content[16:24] = (30_000).to_bytes(4) * 2
    import zlib

    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Nothing was sent"),
        (b"<svg onload=alert(1)>", "not a PNG, JPEG, TIFF or BMP"),
        (b"GIF89a" + bytes(100), "not a PNG"),
        (encoded(np.zeros((40, 40, 3), np.uint8))[:60], "cannot be read"),
        (encoded(np.zeros((4, 4), np.uint16)), "more than 8 bits"),
        (bomb(), "million pixels"),
    ],
)
def test_what_is_not_an_image_is_refused_in_the_usual_words(runs_of, content, message):
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    with pytest.raises(DataError, match=message):
        Predictions(runs_of).predict(name, content, "../../x.png")


def test_the_limit_is_stricter_than_that_of_files(runs_of, monkeypatch):
    monkeypatch.setattr("mcpmix.studio.predictions._MOST_PIXELS", 99)
    name = segmenters_of(runs_of.all()[0])[0]["name"]
    with pytest.raises(DataError, match="larger than 0 million"):
        Predictions(runs_of).predict(name, encoded(np.zeros((10, 10, 3), np.uint8)), "x.png")


def test_unknown_segmenters_are_not_looked_for(runs_of):
    for name in ("", "x:full-sup:0", f"{runs_of.all()[0].id}:../..:0", runs_of.all()[0].id):
        with pytest.raises(AbsentError):
            Predictions(runs_of).predict(name, b"x", "x.png")


def test_uploads_leave_nothing_behind(own):
    before = sorted(own.runs.rglob("*"))
    with own.client() as client:
        for content in (encoded(render(3, 7, 0, 32).image), bomb()):
            client.post(f"/api/predict?segmenter={own.run}:full-sup:0&name=x.png", content=content)
    assert sorted(own.runs.rglob("*")) == before
