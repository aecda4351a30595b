import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from tests.helpers.finished_run import FinishedRun, Outline

from mcpmix.config_file import keep_settings
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.progress import SILENT
from mcpmix.pack.results import require_no_images, results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = FinishedRun(tmp_path_factory.mktemp("runs"), ["train.seeds=[0, 1]"])
    made.report()
    keep_settings(made.config, SILENT)
    return made.config.folder


def as_bytes(content):
    return content if isinstance(content, bytes) else content.read_bytes()


def test_what_may_leave_is_packed(run):
    members, facts = results(run)

    assert {"config.yaml", "report/report.html", "report/table.json", "pairs/ledger.jsonl"} <= members.keys()
    assert {"segmenter/mcpmix/seed-1/log.jsonl", "evaluation/mcpmix/seed-1/summary.json"} <= members.keys()
    assert not [name for name in members if name.endswith((".png", ".npy", "images.json", ".csv"))]
    assert facts["patient_images"].startswith("none")
    assert str(run.parent).encode() not in b"".join(map(as_bytes, members.values()))


def test_the_page_keeps_charts_and_tables_and_loses_pictures(run):
    page = as_bytes(results(run)[0]["report/report.html"]).decode()
    before = (run / "report" / "report.html").read_text(encoding="utf-8")
    outline = Outline(page)

    assert len(re.findall("<img", before)) > 10
    assert outline.all("img") == []
    assert "data:image" not in page
    charts = before.count('<div class="chart"')
    assert page.count('<div class="chart"') == charts > 3
    assert outline.all("table")
    assert "Copy without pictures" in outline.text
    assert "halo" not in re.sub("<style>.*?</style>", "", page, flags=re.DOTALL)  # outlines of lesions


def test_an_unfinished_run_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "segmenter" / "mcpmix")
    with pytest.raises(StorageError, match="segmenter/mcpmix/seed-0 is not finished"):
        results(copy)
    with pytest.raises(StorageError, match="no finished report"):
        results(tmp_path)


def test_a_changed_table_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "report" / "table.md").write_text("better")

    with pytest.raises(StorageError, match=r"table\.md was changed"):
        results(copy)


def picture(kind):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_a_picture_is_found_under_any_name_and_in_any_text(kind):
    data = picture(kind)
    hidden = json.dumps({"parent": "a", "note": base64.b64encode(data).decode()})
    uri = f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    members = {"card.md": data, "ledger.jsonl": hidden.encode(), "page.html": uri.encode()}
    with pytest.raises(DataError) as caught:
        require_no_images({**members, "table.md": b"| DSC | 41.0 |"})

    message = str(caught.value)
    assert all(name in message for name in ("card.md", "ledger.jsonl", "page.html"))
    assert "table.md" not in message


@pytest.mark.parametrize("data", [b"P3\n2 1\n255\n1 2 3 4 5 6\n", b"\x93NUMPY\x01\x00" + bytes(64)])
def test_pixels_as_text_or_array_are_found(data):
    with pytest.raises(DataError, match="notes"):
        require_no_images({"notes.txt": data})


def test_weights_are_weights(tmp_path):
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    require_no_images({"model.safetensors": tmp_path / "model.safetensors"})
    (tmp_path / "model.safetensors").write_bytes(picture("PNG"))

    with pytest.raises(DataError, match="not a safetensors file"):
        require_no_images({"model.safetensors": tmp_path / "model.safetensors"})
