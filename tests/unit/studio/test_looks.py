"""Every page by keyboard alone, and in four looks: wide and narrow, light and dark."""

import re
import shutil
from importlib.resources import files
from itertools import product

import numpy as np
import pytest
from PIL import Image
from tests.unit.studio.conftest import ABSENT, CHROMIUM

from mcpmix.core.stage_folder import read_artifact
from mcpmix.generator.ledger import open_review
from mcpmix.phantom import render
from mcpmix.studio.runs import Runs

playwright = pytest.importorskip("playwright.sync_api")
expect, PlaywrightTimeout = playwright.expect, playwright.TimeoutError
in_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")

STOP = """selector => { const at = document.activeElement, nobody = at === document.body;
const ring = getComputedStyle(at).outlineStyle !== "none";
const name = at.ariaLabel || at.labels?.length || at.textContent.trim();
return [at.matches(selector), nobody || ring, nobody || Boolean(name), at.outerHTML]; }"""
LOOK = """() => { const controls = "button, select, input:not([type=checkbox]), nav a, summary, .seed";
const small = [...document.querySelectorAll(controls)].filter((each) => each.offsetParent &&
each.getBoundingClientRect().height < 36).map((each) => each.outerHTML);
const style = getComputedStyle(document.body);
return [small, [style.backgroundColor, style.color]]; }"""
FITS = "width => innerWidth === width && document.documentElement.scrollWidth <= width"


def tab_to(page, selector, key="Tab"):
    """Press Tab until an element has the focus; whatever has it on the way must show it and have a name."""
    for _ in range(70):
        page.keyboard.press(key)
        found, seen, named, stop = page.evaluate(STOP, selector)
        assert seen, f"no ring around {stop}"
        assert named, f"no name for {stop}"
        if found:
            return
    raise AssertionError(f"{key} does not reach {selector}")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "new.png"
    Image.fromarray(np.ascontiguousarray(render(3, 7, 0, 64).image)).save(path)
    return path


@pytest.fixture
def second(runs):
    """A run beside `trial` that differs in a setting and has failed."""
    folder = runs / "other" / "second-run-with-a-rather-long-name"
    shutil.copytree(runs / "trial", folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 8", "epochs: 9"))
    (folder / "status.json").write_text('{"state": "failed", "message": "full"}')
    return next(run.id for run in Runs(runs).all() if run.name != "trial")


@in_browser
def test_runs_are_found_sorted_and_compared_by_keyboard(visit, own, second):
    page = visit(own)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to(page, "[name=text]")
    page.keyboard.type("second")
    rows = page.locator("#table tbody tr:visible")
    expect(rows).to_have_count(1)
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    expect(rows).to_have_count(2)
    tab_to(page, "[name=state]")
    page.keyboard.type("fa")
    expect(rows).to_have_count(1)
    page.keyboard.press("Home")
    expect(rows).to_have_count(2)
    tab_to(page, "thead button")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("thead th[aria-sort=descending]")).to_have_text("Run")
    assert page.locator("tbody th a").all_inner_texts()[0] == "trial"
    tab_to(page, "tbody input")
    with page.expect_response("**/table"):  # the list is drawn anew under it
        page.keyboard.press("Space")
    page.wait_for_timeout(100)
    expect(page.locator("tbody input").first).to_be_focused()
    tab_to(page, "tbody tr:nth-child(2) input")
    page.keyboard.press("Space")
    tab_to(page, "#compare", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=train.epochs")
    tab_to(page, "thead a")
    page.keyboard.press("Enter")
    page.wait_for_selector("#flow")
    tab_to(page, "summary")
    page.keyboard.press("Enter")
    tab_to(page, "pre")


@in_browser
def test_pairs_are_walked_mixed_and_judged_by_keyboard(visit, own):
    page = visit(own, f"/runs/{own.run}/pairs")
    page.wait_for_selector("#wall button[data-number='0']")
    tab_to(page, "#wall button")
    page.keyboard.press("End")
    expect(page.locator("#wall button[data-number='11']")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # a real image: its first counterpart
    expect(page.locator("#title")).to_contain_text("replica 0")
    tab_to(page, "#share")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")  # moves the slider, not to another pair
    expect(page.locator("#shown-share")).to_have_text("0.97")
    expect(page.locator("#title")).to_contain_text("replica 0")
    tab_to(page, "#who")
    page.keyboard.type("Ada")
    tab_to(page, "#reject")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_contain_text("replica 1")
    tab_to(page, "#previous", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#verdicts")).to_contain_text("Ada: reject")
    page.keyboard.press("u")
    expect(page.locator("#verdicts")).not_to_contain_text("Ada")
    for replica in (1, 2):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#title")).to_contain_text(f"replica {replica}")
    page.keyboard.press("Escape")
    expect(page.locator("#wall button[data-number='2']")).to_be_focused()  # the one that was shown last
    rows = open_review(read_artifact(own.runs / "trial" / "pairs")).rows
    assert [row["verdict"] for row in rows] == ["reject", "withdraw"]


@in_browser
def test_the_blind_test_is_taken_by_keyboard(visit, own):
    page = visit(own, f"/runs/{own.run}/blind")
    tab_to(page, "#who")
    page.keyboard.type("Ada")
    tab_to(page, "#count")
    page.keyboard.press("Control+A")
    page.keyboard.type("4")
    tab_to(page, "#begin button")
    page.keyboard.press("Enter")
    expect(page.locator("#test")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#real")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#place")).to_have_text("Picture 2 of 4")
    page.keyboard.down("s")
    page.keyboard.down("s")  # held: the system repeats it
    expect(page.locator("#place")).to_have_text("Picture 3 of 4")
    page.wait_for_timeout(200)
    expect(page.locator("#place")).to_have_text("Picture 3 of 4")
    page.keyboard.up("s")
    page.keyboard.press("s")
    expect(page.locator("#place")).to_have_text("Picture 4 of 4")
    page.keyboard.press("r")
    expect(page.locator("#result")).to_be_focused()
    tab_to(page, "nav [href$=training]", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#last tbody tr")
    tab_to(page, "[aria-label='Last epoch of each training']")


@in_browser
def test_images_are_chosen_by_keyboard_from_the_list_and_from_the_scatter(visit, served):
    page = visit(served, f"/runs/{served.run}/results")
    page.wait_for_selector("#images tbody tr")
    listed = [row.get_attribute("data-id") for row in page.locator("#images tbody tr").all()]
    chosen = page.locator("#images [aria-selected=true]")
    tab_to(page, "#scatter [data-id]", "Shift+Tab")  # the last stop of the page
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    point = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("Enter")
    expect(chosen).to_have_attribute("data-id", point)
    expect(page.locator("#scatter [aria-selected=true]")).to_have_attribute("data-id", point)
    expect(page.locator("#case h3")).to_contain_text(point)
    tab_to(page, "#errors", "Shift+Tab")
    page.keyboard.press("e")
    expect(page.locator("#errors")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Shift+Tab")  # one stop for the whole list
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(chosen).to_have_attribute("data-id", listed[1])
    expect(page.locator("#case h3")).to_contain_text(listed[1])
    expect(page.locator("#panels canvas").last).to_be_in_viewport()
    expect(page.locator(f"#images [data-id={listed[1]}]")).to_be_focused()
    tab_to(page, "[name=second]", "Shift+Tab")
    page.keyboard.type("+ MCPMix +")
    expect(page.locator("#images thead th").last).to_have_text("+ MCPMix + RLA")


@in_browser
def test_a_file_is_tried_by_keyboard(visit, served, photo):
    page = visit(served, "/try")
    tab_to(page, "#segmenter")
    tab_to(page, "#file")  # the dialog that a key opens here is the browser's own
    page.set_input_files("#file", photo)
    expect(page.locator("#outcome")).to_be_focused()
    tab_to(page, "#probability")
    page.keyboard.press("Enter")
    expect(page.locator("#probability")).to_have_attribute("aria-pressed", "true")
    tab_to(page, "#download")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "mask.png"


@in_browser
def test_a_grid_is_sorted_and_its_cells_opened_by_keyboard(visit, own, grid):
    page = visit(own)
    tab_to(page, "[href^='/grids/']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#state")
    tab_to(page, "table.sortable thead button")
    page.keyboard.press("Enter")
    expect(page.locator("thead th[aria-sort=ascending]")).to_have_text("Method")
    tab_to(page, "a.seed.begun", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#charts polyline", state="attached")


@in_browser
def test_no_page_is_wider_than_the_window_in_any_look(visit, own, grid, second, photo):
    """With what can be opened on each page open; the fixture finds errors in the console."""
    page = visit(own)

    def go(path, shown):
        page.goto(own.url + path)
        page.wait_for_selector(shown, state="attached")

    def check(where):
        assert "not a medical device" in page.inner_text("footer")
        for width, scheme in product((1280, 390), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            try:  # the wall is laid anew after the window has changed, not at once
                page.wait_for_function(FITS, arg=width)
            except PlaywrightTimeout as error:
                raise AssertionError(f"{where} is wider than {width}") from error
            small, colours = page.evaluate(LOOK)
            assert width > 720 or small == [], where
            paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
            assert (ink - paper if scheme == "dark" else paper - ink) > 3 * 180, (where, scheme)

    run, identity = f"/runs/{own.run}", Runs(own.runs).grids()[0].id
    check("list")
    go(f"/grids/{identity}", "table.sortable")
    check("grid")
    go(run, "summary")
    page.click("summary")
    check("run")
    go(f"{run}/pairs", "#wall button[data-number]")
    check("wall")
    page.locator("#wall button[data-number]").first.click()
    page.wait_for_selector("#view[open]")
    check("pair")
    view = page.locator("#view")
    assert view.evaluate("view => view.scrollWidth <= view.clientWidth")
    view.evaluate("view => view.scrollTo(0, view.scrollHeight)")
    expect(page.locator("#view .close button")).to_be_in_viewport(ratio=1)
    go(f"{run}/blind", "#begin")
    check("blind")
    page.fill("#who", "Ada")
    page.fill("#count", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#place")).to_have_text("Picture 1 of 2")
    check("question")
    page.keyboard.press("r")
    expect(page.locator("#place")).to_have_text("Picture 2 of 2")
    page.keyboard.press("r")
    page.wait_for_selector("#result:not([hidden])")
    check("answer")
    go(f"{run}/training", "#charts polyline")
    check("training")
    go(f"{run}/results", "#images tbody tr")
    page.locator("#images tbody tr").first.click()
    page.wait_for_selector("#panels canvas")
    check("results")
    go(f"/compare?run={own.run}&run={second}", "text=train.epochs")
    check("compare")
    go("/try", "#file")
    page.set_input_files("#file", photo)
    page.wait_for_selector("#outcome:not([hidden])")
    check("try")
    go(ABSENT, "text=Not possible")
    check("error")


def contrast(first, second):
    """The ratio of WCAG 2 for two colours such as #0b62a8, at least 1."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ (0.2126, 0.7152, 0.0722)

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_told_apart_in_both_looks():
    """WCAG AA: 4.5 for text, 3 for the edges of controls and the ring around what has the focus."""
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    style = (files("mcpmix.studio") / "static" / "studio.css").read_text()
    looks = [
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root {(.*?)}", style, re.S)
    ]
    assert len(looks) == 2
    for look in looks:
        for ground in ("paper", "panel"):
            for name in ("ink", "quiet", "link", "good", "bad", "warn"):
                assert contrast(look[name], look[ground]) >= 4.5, (name, ground)
            for name in ("edge", "focus"):
                assert contrast(look[name], look[ground]) >= 3, (name, ground)
        assert contrast(look["ink"], look["mark"]) >= 4.5
