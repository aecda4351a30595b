"""The site builds without a warning, shows every page, asks for nothing from elsewhere, and finds words."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools.site import ROOT, for_the_site, lay_out

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    lay_out(folder)
    return folder


@pytest.fixture(scope="module")
def site(laid_out):
    pytest.importorskip("zensical")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(laid_out / "zensical.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # links and anchors that lead nowhere are warnings
    return laid_out / "site"


def listed(entries):
    """The pages of a navigation, in order."""
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else listed(value)


def test_the_navigation_lists_every_page_once(laid_out):
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    pages = [page.relative_to(laid_out / "docs").as_posix() for page in laid_out.glob("docs/**/*.md")]

    assert len(pages) > 25
    assert sorted(listed(nav)) == sorted(pages)


def test_links_follow_pages_to_their_places():
    readme = "[a](docs/rla.md#x) ![p](docs/images/phantom.png) [c](CONTRIBUTING.md) [l](LICENSE) [w](https://a.b/c)"
    page = "[home](../README.md#x) [`run.py`](../src/mcpmix/run.py) [rla](rla.md) x[0](y)"

    assert for_the_site(readme, ROOT / "README.md") == (
        "[a](rla.md#x) ![p](images/phantom.png) [c](contributing.md) l [w](https://a.b/c)"
    )
    assert (
        for_the_site(page, ROOT / "docs" / "data.md") == "[home](index.md#x) `run.py` [rla](rla.md) x[0](y)"
    )


def test_marks_of_command_blocks_become_titles_and_pipes_are_pipes():
    text = "```bash gpu\nx\n```\n```bash run\ny\n```\n```console data\n$ z\n```\n| `a\\|b` |\n"

    assert for_the_site(text, ROOT / "README.md") == (
        '```bash title="needs a GPU"\nx\n```\n```bash\ny\n```\n```console\n$ z\n```\n| `a|b` |\n'
    )


def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    pages = list(site.rglob("*.html"))

    assert len(pages) > 25
    assert [(page.name, found) for page in pages for found in loads.findall(page.read_text())] == []
    assert not any('class="mermaid"' in page.read_text() for page in pages)  # its renderer would be fetched


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")
def test_search_works_from_disk_and_asks_nobody(site):
    started = pytest.importorskip("playwright.sync_api").sync_playwright()
    with started as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(30_000)
        asked, problems = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        for name in ("architecture.html", "reference/configuration.html", "index.html"):
            page.goto((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("label[for=__search], button.md-search__button").first.click()
        page.keyboard.type("gate_learning_rate", delay=50)
        page.locator("a[href$='#rlagate_learning_rate']").first.wait_for()
        assert page.locator("input:focus").input_value() == "gate_learning_rate"
        browser.close()
    assert problems == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []
