"""The pages in a real browser: Debian's Chromium, driven by Playwright. Skipped where it is not installed."""

import base64
import csv
import io
import re
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.studio.conftest import CHROMIUM

import mcpmix
from mcpmix.bench.state import write_failures
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.data.sample import read_image, resize_image
from mcpmix.generator.ledger import open_review, read_review, read_rows
from mcpmix.generator.pair_source import open_source
from mcpmix.phantom import render
from mcpmix.run import run as run_stages
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import Inputs
from mcpmix.segmenter.predict import load_segmenter

PIXELS = """canvas => { const c = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
return [canvas.width, canvas.height, Array.from(c.data)]; }"""

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")
expect = pytest.importorskip("playwright.sync_api").expect


def canvas(page, selector="#picture"):
    width, height, data = page.locator(selector).first.evaluate(PIXELS)
    return np.array(data, np.uint8).reshape(height, width, 4)


def test_the_list_of_runs_with_filters_and_comparison(visit, own):
    shutil.copytree(own.runs / "trial", own.runs / "grid" / "second")
    (own.runs / "grid" / "second" / "status.json").write_text('{"state": "failed", "message": "<b>full</b>"}')
    page = visit(own)
    assert page.locator("#table tbody tr").count() == 2
    failed = page.locator("#table tr", has_text="grid/second")
    assert "<b>full</b>" in failed.inner_text()
    page.select_option("[name=state]", "failed")
    assert page.locator("#table tbody tr:visible").count() == 1
    page.select_option("[name=state]", "")
    for box in page.locator("#table input[type=checkbox]").all():
        box.check()
    page.click("#compare")
    assert set(page.locator("thead th").all_inner_texts()[1:]) == {"grid/second", "trial"}
    assert "No setting differs" in page.inner_text("main")


def test_the_slider_mixes_as_the_library_does(visit, served, studio_run):
    page = visit(served, f"/runs/{served.run}/pairs")
    page.locator("#wall button[data-number]").first.click()
    page.wait_for_selector("#view[open]")
    row = read_rows(studio_run.pairs.folder)[0]
    record = next(r for r in studio_run.index.records if r.id == row["parent"])
    real = resize_image(read_image(record.image), studio_run.config.data.size)
    synthetic = read_image(studio_run.pairs / row["file"])
    outlined = canvas(page)
    page.keyboard.press("o")
    first, second = (torch.from_numpy(pixels)[None].float() for pixels in (real, synthetic))
    shown = []
    for share in (1.0, 0.37, 0.5, 0.0):
        page.locator("#share").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", share
        )
        found = canvas(page)
        expected = mcpmix.mix(first, second, share)[0].numpy()
        assert np.abs(found[..., :3] - expected).max() <= 1
        assert (found[..., 3] == 255).all()
        shown.append(found)
    assert np.array_equal(shown[0][..., :3], synthetic)
    assert np.array_equal(shown[-1][..., :3], real)
    changed = (outlined != shown[0]).any(axis=-1)
    assert 0 < changed.sum() < changed.size / 4  # the outline, and nothing else
    page.keyboard.press("d")
    assert canvas(page)[0, -1, 0] == 255  # the ramp of depth
    page.keyboard.press("d")
    page.keyboard.press("m")
    assert set(np.unique(canvas(page)[..., :3])) == {0, 255}


def test_accept_and_reject_by_keyboard_reach_the_ledger_and_training(visit, own, studio_run):
    """From the wall to the verdict without a mouse."""
    page = visit(own, f"/runs/{own.run}/pairs")
    page.wait_for_selector("#wall button[data-number='0']")
    page.locator("#wall button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view[open]")
    page.keyboard.press("r")  # nobody has said who judges: the field is focused instead
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("no vessels")
    page.keyboard.press("Tab")  # to a button
    page.keyboard.press("r")
    expect(page.locator("#title")).to_contain_text("replica 1")
    page.keyboard.press("a")  # the machine had rejected it
    expect(page.locator("#title")).to_contain_text("replica 2")
    page.keyboard.press("a")  # a copy: refused
    expect(page.locator("#dialog-message")).to_contain_text("copy")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#verdicts")).to_contain_text("Ada: accept")
    page.keyboard.press("Escape")
    page.wait_for_selector("#view:not([open])", state="attached")
    pairs = read_artifact(own.runs / "trial" / "pairs")
    rows = open_review(pairs).rows
    assert [(row["who"], row["verdict"], row["word"]) for row in rows] == [
        ("Ada", "reject", "no vessels"),
        ("Ada", "accept", ""),
    ]
    review = read_review(pairs)
    assert [admitted for _, admitted in review.changes] == [False, True]

    config, dataset = studio_run.config, studio_run.dataset
    before = train.key(config, Inputs(dataset, pairs=pairs), "mcpmix", 0)
    after = train.key(config, Inputs(dataset, pairs=pairs, review=review), "mcpmix", 0)
    assert (before.inputs.keys() ^ after.inputs.keys()) == {"review"}
    arrays = load_arrays(DatasetIndex.read(dataset).part("train"), config.data.size)
    source = open_source(config, arrays, 0, lambda _: np.arange(len(arrays)), pairs=pairs, review=review)
    taken = np.concatenate([source.take(epoch, np.array([0])) for epoch in range(1, 6)])
    accepted = read_image(pairs / read_rows(pairs.folder)[1]["file"])
    assert (taken == accepted).all()  # of the first sample, the only one that is left
    csv_page = page.context.request.get(f"{own.url}/runs/{own.run}/review.csv")
    assert [row["verdict"] for row in csv.DictReader(io.StringIO(csv_page.text()))] == ["reject", "accept"]


class Gate:
    """Progress that lets a training go on only when it is told to."""

    def __init__(self, title, stop_at):
        self.title, self.stop_at = title, stop_at
        self.reached, self.open = threading.Event(), threading.Event()

    @contextmanager
    def track(self, title, total, done=0):
        steps = []

        def advance(count=1, note=""):
            steps.append(count)
            if title == self.title and len(steps) == self.stop_at:
                self.reached.set()
                assert self.open.wait(120)

        yield advance

    def say(self, message):
        pass


def test_live_curves_grow_while_a_run_trains(visit, serve, make_config, tmp_path):
    gate = Gate("full-sup seed 0", 3)
    config = make_config(tmp_path, "train.arms=[full-sup]", "train.epochs=5")
    training = threading.Thread(target=run_stages, args=(config, gate, "segmenter"))
    training.start()
    try:
        assert gate.reached.wait(120)
        studio = serve(tmp_path)
        with studio.client() as client:
            identity = client.get("/table").text.split('data-id="')[1].split('"')[0]
        page = visit(studio, f"/runs/{identity}/training")
        curve = "#charts figure[data-key=loss_real] polyline"
        page.wait_for_selector(f"{curve}[data-count='3']", state="attached")
        overview = visit(studio, f"/runs/{identity}")
        assert "running" in overview.inner_text("#flow")
        assert "full-sup seed 0: " in overview.inner_text("#flow")
    finally:
        gate.open.set()
        training.join(120)
    page.wait_for_selector(f"{curve}[data-count='5']", state="attached")
    assert page.locator("#last tbody tr td").first.inner_text() == "5"
    overview.reload()
    assert "as far as segmenter" in overview.inner_text("#flow")


def test_the_blind_test_counts_right(visit, own):
    page = visit(own, f"/runs/{own.run}/blind")
    page.fill("#who", "Ada")
    page.fill("#count", "6")
    page.keyboard.press("Enter")
    for place in range(6):
        expect(page.locator("#place")).to_have_text(f"Picture {place + 1} of 6")
        page.keyboard.press("r" if place % 2 else "s")
    page.wait_for_selector("#result:not([hidden])")
    (row,) = open_review(read_artifact(own.runs / "trial" / "pairs")).rows
    said = [answer["said_real"] for answer in row["answers"]]
    assert said == [False, True] * 3
    ids = {record.id for record in DatasetIndex.read(own.runs / "trial" / "dataset").records}
    truth = [answer["image"] in ids for answer in row["answers"]]
    assert row["hits"] == sum(a == b for a, b in zip(said, truth, strict=True))
    assert f"{row['hits']} of 6 right" in page.inner_text("#sentence")


def test_images_are_sorted_by_the_difference_as_the_tables_say(visit, served, studio_run):
    page = visit(served, f"/runs/{served.run}/results")
    page.wait_for_selector("#images tbody tr")

    def scores(arm, seed):
        text = (studio_run.evaluations[arm, seed] / "scores.csv").read_text()
        return {row["id"]: float(row["dsc"]) for row in csv.DictReader(io.StringIO(text))}

    def expected(first, second, seeds):
        ids = scores(first, 0)
        gap = {i: np.mean([scores(first, s)[i] - scores(second, s)[i] for s in seeds]) for i in ids}
        return sorted(ids, key=lambda name: (-round(gap[name], 9), name))

    listed = lambda: [row.get_attribute("data-id") for row in page.locator("#images tbody tr").all()]  # noqa: E731
    assert listed() == expected("mcpmix-rla", "full-sup", (0, 1))
    page.select_option("[name=first]", "mcpmix")
    assert listed() == expected("mcpmix", "full-sup", (0, 1))
    with page.expect_response(lambda answer: "seed=1" in answer.url):
        page.select_option("[name=seed]", "1")
    page.wait_for_timeout(200)
    assert listed() == expected("mcpmix", "full-sup", (1,))
    assert page.locator("#scatter circle").count() == len(listed())
    page.locator("#images tbody tr").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#panels canvas")).to_have_count(4)
    assert page.locator("#scatter [aria-selected=true]").get_attribute("data-id") == listed()[0]
    page.locator("table.sortable").first.locator("thead button", has_text="DSC").first.click()
    column = page.locator("table.sortable").first.locator("tbody tr td:nth-child(6)").all_inner_texts()
    assert column == sorted(column, key=lambda text: float(text.split()[0]))


def test_drop_an_image_and_get_its_mask(visit, served, studio_run, tmp_path):
    image = np.ascontiguousarray(render(3, 7, 0, 64).image[:, :48])
    Image.fromarray(image).save(tmp_path / "new.png")
    page = visit(served, "/try")
    drop = """(target, text) => {
        const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0)), data = new DataTransfer();
        data.items.add(new File([bytes], "<new>.png"));
        target.dispatchEvent(new DragEvent("drop", { dataTransfer: data }));
    }"""
    page.locator("#drop").evaluate(drop, base64.b64encode((tmp_path / "new.png").read_bytes()).decode())
    page.wait_for_selector("#outcome:not([hidden])")
    assert "<new>.png: 48 × 64 pixels" in page.inner_text("#sentence")
    assert canvas(page).shape == (64, 48, 4)
    with page.expect_download() as download:
        page.click("#download")
    segmenter = load_segmenter(studio_run.config.folder / "segmenter" / "full-sup" / "seed-0")
    expected = segmenter.predict(image) >= 0.5
    with Image.open(download.value.path()) as mask:
        assert mask.mode == "L"
        assert np.array_equal(np.asarray(mask), expected * 255)
    page.set_input_files("#file", {"name": "no.png", "mimeType": "image/png", "buffer": b"not an image"})
    expect(page.locator("#message")).to_contain_text("no.png cannot be read: it is not a PNG")


def test_the_page_of_a_grid_follows_its_cells(visit, own, grid):
    page = visit(own, viewport={"width": 390, "height": 800})
    page.click("text=bench/toy")
    failed = page.locator("a.seed.failed")
    expect(failed).to_have_attribute("aria-label", re.compile("seed 1: failed TrainingError: nan <script>"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    heading = page.locator("table.sortable").first.locator("thead button").first
    heading.click()
    rows = page.locator("table.sortable").first.locator("tbody th")
    assert rows.all_inner_texts() == ["+ MCPMix", "Full-Sup"]
    write_failures(grid, {})  # as the driver does when it starts again
    expect(failed).to_have_count(0)
    expect(page.locator(".seed.waiting")).to_have_count(2)
    page.click("a.seed.begun")
    page.wait_for_selector("#charts polyline[data-cell='mcpmix-rla:0'][data-count='2']", state="attached")
    page.click("nav >> text=Results")
    page.wait_for_selector("#images tbody tr")
    assert page.locator("[name=first]").input_value() == "mcpmix"  # RLA is not evaluated yet
    page.locator("#images tbody tr").first.click()
    expect(page.locator("#panels canvas")).to_have_count(3)
    page.click("nav >> text=bench/toy")
    page.click("text=The page that the grid has made")
    assert page.inner_text("h1") == "all of it"
    assert page.title() != "stolen"
