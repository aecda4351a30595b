"""A finished run made by hand, with hostile names in it, a studio that serves it, and a browser."""

import json
import os
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.helpers.finished_run import FinishedRun

from mcpmix.bench.state import REAL, Cell, Listed, home_of, list_cells, relative, write_failures
from mcpmix.config_file import to_yaml
from mcpmix.core.files import file_digest
from mcpmix.core.stage_folder import StageKey
from mcpmix.generator.ledger import Ledger, write_synthetic
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.phantom import render
from mcpmix.studio.runs import Runs
from mcpmix.studio.server import bind, build_app, make_server

TOKEN = "a-token-for-tests"
SCRIPT = "<script>document.title='stolen'</script>"
PROMPT = f"a polyp {SCRIPT} \"'><img src=x onerror=document.title='stolen'>"
GROUP = f'g"{SCRIPT}'
ABSENT = "/runs/nothing"
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class StudioRun(FinishedRun):
    """With a sealed ledger: of the first sample one image was rejected for alignment, one as a copy."""

    def __init__(self, folder):
        super().__init__(folder, ["train.seeds=[0, 1]", "train.epochs=8"])
        run = self.config.folder
        (run / "config.yaml").write_text(to_yaml(self.config))
        self.report()
        self._make("depth", self._write_depth)
        network = build_segmenter("segformer", "nano", None, {})
        known = {"name": "segformer", "variant": "nano", "size": self.config.data.size}
        save_segmenter(network, run / "segmenter" / "full-sup" / "seed-0", known)

    def _write_dataset(self, folder):
        counts = super()._write_dataset(folder)
        index = json.loads((folder / "index.json").read_text())
        first = index["samples"][0]["group"]
        for row in index["samples"]:
            row["group"] = GROUP if row["group"] == first else row["group"]
        (folder / "index.json").write_text(json.dumps(index))
        return counts

    def _write_pairs(self, folder):
        ledger = Ledger(folder / "ledger.jsonl", StageKey("pairs", {}).digest)
        train = self.index.part("train")
        for place, record in enumerate(train):
            for replica in range(self.config.synthesis.replicas):
                reasons = []
                if place == 0 and replica:
                    reasons = [["alignment: 0.10 < 0.50"], ["copy: features of its source at 0.1 < 0.2"]][
                        replica - 1
                    ]
                kept = f"images/{record.id}/{replica}.png"
                file = f"rejected/{record.id}/{replica}-0.png" if reasons else kept
                pixels = render(99, 100 + replica, place, self.config.data.size).image
                write_synthetic(folder / file, pixels, run="trial", seed=replica)
                scores = {"alignment": 0.9 - replica / 4, "nearest_train": train[-1].id}
                row = {"parent": record.id, "replica": replica, "try": 0, "seed": 2**62 + replica}
                row |= {"prompt": PROMPT if replica else "a polyp", "file": file, "scores": scores}
                row |= {
                    "image_sha256": file_digest(folder / file),
                    "admitted": not reasons,
                    "reasons": reasons,
                }
                ledger.append(row)
        return {"images": len(ledger.rows) - 2, "warnings": [f"look {SCRIPT}"], "ledger": ledger.head}

    def _write_depth(self, folder):
        side = self.config.data.size
        ramp = np.tile(np.linspace(0, 65535, side).astype(np.uint16), (side, 1))
        for record in self.index.part("train"):
            Image.fromarray(ramp).save(folder / f"{record.id}.png")
        return {"maps": len(self.index.part("train"))}


@dataclass
class Served:
    """A studio under test."""

    url: str
    runs: Path
    run: str  # id of the run `trial`

    def client(self, **headers):
        """A client that holds the token and says that it is one of the studio's own pages."""
        return httpx.Client(
            base_url=self.url, headers={"x-token": TOKEN, "origin": self.url, **headers}, timeout=60
        )


@pytest.fixture(scope="session")
def studio_run(tmp_path_factory):
    """The run; tests that change it take a copy."""
    return StudioRun(tmp_path_factory.mktemp("studio") / "runs")


@pytest.fixture
def runs(studio_run, tmp_path):
    """A copy of the folder of all runs, free to change."""
    shutil.copytree(studio_run.config.output, tmp_path / "runs", ignore=shutil.ignore_patterns(".studio"))
    return tmp_path / "runs"


def make_grid(runs):
    """A grid by hand: the cells of the run `trial` as its own, one of them failed, one begun, one waiting."""
    grid = runs / "bench" / "toy"
    shutil.copytree(runs / "trial", grid / "inputs/data/all/plain")
    trained = grid / "inputs/data/all/plain"
    shutil.rmtree(trained / "report")
    listed = []
    for arm in ("full-sup", "mcpmix", "mcpmix-rla"):
        for seed in (0, 1):
            generator = REAL if arm == "full-sup" else "plain"
            cell = Cell("data", "all", generator, "net", arm, seed)
            home, tail = home_of(grid, cell), f"{arm}/seed-{seed}"
            done = arm != "mcpmix-rla" and (arm, seed) != ("mcpmix", 1)
            for stage in ("segmenter", "evaluation"):
                if done:
                    shutil.copytree(trained / stage / tail, home.stage(stage))
            place = relative(grid, home.stage("segmenter")) if done else None
            label = f"{arm} <b>" if arm == "mcpmix" else arm
            listed.append(Listed(cell, label, "data/all/plain", "inputs/data/all/plain", 8, place))
    for stage in ("segmenter", "evaluation"):
        shutil.rmtree(trained / stage)
    begun = home_of(grid, listed[4].cell).stage("segmenter").with_name("seed-0.partial")
    begun.mkdir(parents=True)
    (begun / "log.jsonl").write_text('{"epoch": 1, "loss_real": 0.5}\n{"epoch": 2, "loss_real": 0.25}\n')
    list_cells(grid, listed)
    write_failures(grid, {listed[3].cell.name: f"TrainingError: nan {SCRIPT}"})
    metrics = {"dsc": {"mean": 55.5, "sd": 1.25, "count": 2}}
    lines = [
        {"label": name, "seeds": [0, 1], "ranks": {"dsc": rank}, "spreads": metrics}
        for rank, name in enumerate(("Full-Sup", "+ MCPMix"))
    ]
    block = {"dataset": "data", "labels": "5pc", "images": 6, "lines": lines}
    column = {"key": "dsc", "label": "DSC", "unit": "%", "higher_is_better": True}
    (grid / "tables").mkdir()
    table = {"title": "Ablation", "columns": [column], "blocks": [block]}
    (grid / "tables" / "far.json").write_text(json.dumps(table))
    (grid / "tables" / "pairs.json").write_text('{"data/all/plain": {}}')
    (grid / "tables" / "pairs.csv").write_text("pairs,tried\ndata/all/plain,12\n")
    tables = [{"kind": "ablation", "name": "far", "part": "abroad"}, {"kind": "pairs"}]
    (grid / "grid.json").write_text(json.dumps({"name": "toy", "tables": tables}))
    (grid / "index.html").write_text(f"<h1>all of it</h1>{SCRIPT}")
    return grid


@pytest.fixture
def grid(runs):
    """The folder of a grid beside the run, free to change."""
    return make_grid(runs)


@contextmanager
def serving():
    """Serves folders from threads, as many as are asked for, until the context ends."""
    stop = []

    def start(folder, **options):
        listener = bind("127.0.0.1", 0)
        server = make_server(build_app(folder, TOKEN, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stop.append((server, thread, listener))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return Served(url, folder, next((run.id for run in Runs(folder).all() if run.name == "trial"), ""))

    yield start
    for server, thread, listener in stop:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def serve():
    with serving() as start:
        yield start


@pytest.fixture(scope="session")
def served(studio_run):
    """A studio for tests that change nothing."""
    with serving() as start:
        yield start(studio_run.config.output)


@pytest.fixture
def own(serve, runs):
    """A studio whose run is free to change."""
    return serve(runs)


@pytest.fixture(scope="module")  # not longer: Playwright can be started only once at a time in a process
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens a studio's page as a visitor who has the address; at the end, nothing may have gone wrong."""
    contexts, problems, titles = [], [], []

    def go(studio, path="/", **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda entry: problems.append(entry.text) if is_problem(entry) else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        ours = (studio.url, f"blob:{studio.url}")
        page.on("request", lambda sent: None if sent.url.startswith(ours) else problems.append(sent.url))
        page.goto(f"{studio.url}{path}?token={TOKEN}")
        assert "token" not in page.url  # it does not stay where somebody could read or bookmark it
        titles.append(page)
        return page

    yield go
    assert [page.title() for page in titles if "stolen" in page.title()] == []
    assert problems == []
    for context in contexts:
        context.close()


def is_problem(entry):
    """An error of the page; a refusal with a message (400), a script that a sandbox blocks and the page that
    tests ask for although it does not exist are none."""
    expected = ("status of 400", "Blocked script execution in")
    if any(text in entry.text for text in expected) or entry.location["url"].endswith(ABSENT):
        return False
    return entry.type == "error"
