"""How soon the studio answers, and what watching costs a run on the same machine.

python benchmarks/studio.py
python benchmarks/studio.py --wall      the wall of pairs alone

The wall is that of a bank of 20,000 counterparts which nobody has looked at: a new server is asked for what a
browser asks for, the page, the first tiles and the thumbnails of a screen, six at a time. Where Chromium and
Playwright are installed, the wall is then scrolled in a real window, and the time between frames is measured.

A short run on the phantom is made several times, in turn alone and with the studio open and 50 clients that
ask for its live curves every two seconds, as an open page does. The clients run on this machine too, at the
lowest priority. Writes benchmarks/results/studio.json and parts of docs/studio.md; needs a quiet machine.
"""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from _markers import fill
from mcpmix.config_file import resolve_config, to_yaml
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.data.dataset import build_index
from mcpmix.data.index import DatasetIndex
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.generator.ledger import write_synthetic
from mcpmix.phantom import render

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "studio.json"
CLIENTS, PAUSE, REPEATS = 50, 2.0, 3
IMAGES, REPLICAS, SHOWN = 20_000, 4, 80
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
SCROLLED = 10.0  # seconds, at a screen and a half per second
SETTINGS = ("train.seeds=[0]", "train.arms=[full-sup,mcpmix]", "train.epochs=60")


def timed_run(folder: Path) -> float:
    """Seconds of the trainings of a short run; what they read is reused if it is there."""
    for stage in ("segmenter", "evaluation", "report"):
        shutil.rmtree(folder / "demo-fast" / stage, ignore_errors=True)
    command = [sys.executable, "-m", "mcpmix", "demo", "--fast", "--out", str(folder), *SETTINGS]
    seconds = -time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return seconds + time.monotonic()


# Scrolls at a constant speed from the first frame on; a slow frame is followed by a larger step, as under a
# finger. Counts what a viewer would see as well: places in the window whose picture is not there yet.
SCROLL = """async (seconds) => {
  const wall = document.querySelector("#wall"), gaps = [], late = [];
  const start = performance.now(), top = scrollY;
  let last = start;
  while (last - start < 1000 * seconds) {
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - last);
    last = now;
    scrollTo(0, top + 1.5 * innerHeight * (now - start) / 1000);
    const seen = [...wall.querySelectorAll("button")].filter((tile) => {
      const box = tile.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    });
    late.push(seen.filter((tile) => !tile.querySelector("img").complete).length / Math.max(1, seen.length));
  }
  return { gaps: gaps.slice(1), late };
}"""


@contextmanager
def opened(runs: Path) -> Iterator[tuple[str, str, float, int]]:
    """The studio of a folder: yields its address, token, seconds until it answers, and process number."""
    start = time.monotonic()
    command = [sys.executable, "-m", "mcpmix", "studio", str(runs), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"(http://\S+?)/?\?token=(\S+)", server.stdout.readline())
            assert found is not None
            ask(found[1], found[2])
            yield found[1], found[2], time.monotonic() - start, server.pid
        finally:
            server.terminate()


def ask(address: str, token: str, path: str = "/") -> bytes:
    """One page or answer."""
    request = urllib.request.Request(address + path, headers={"x-token": token})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def watch_all(address: str, token: str, over: Event, answers: Synchronized) -> None:
    """All clients, in a process of their own at the lowest priority, until it is over."""
    os.nice(19)
    page = ask(address, token).decode()
    (run, *_) = re.findall(r'href="(/runs/[^"/?]+)"', page)

    def watch() -> None:
        while not over.wait(PAUSE):
            ask(address, token, f"/api{run}/logs")
            with answers.get_lock():
                answers.value += 1

    clients = [threading.Thread(target=watch) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def watched_run(folder: Path) -> tuple[float, int, float]:
    """Seconds of the run while clients watch, how many answers they got, and the start of the studio."""
    over, answers = multiprocessing.Event(), multiprocessing.Value("i", 0)
    with opened(folder) as (address, token, start, _):
        clients = multiprocessing.Process(target=watch_all, args=(address, token, over, answers))
        clients.start()
        seconds = timed_run(folder)
        over.set()
        clients.join()
    return seconds, answers.value, start


def make_bank(folder: Path) -> None:
    """A run with nothing but a data set and a bank of as many counterparts as `IMAGES`, all alike."""
    config = resolve_config({"preset": "tiny", "name": "large", "output": str(folder)}, [])
    (folder / "large").mkdir()
    (folder / "large" / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    with workspace(folder / "large" / "dataset", StageKey("dataset", {})) as space:
        plan = config.data.phantom.model_dump()
        samples, split = write_phantom_set(space.folder, **plan, seed=0, size=config.data.size)
        index = build_index(samples, split)
        train = index.part("train")
        records = [replace(train[n % len(train)], id=f"p{n:05}") for n in range(IMAGES // REPLICAS)]
        DatasetIndex(tuple(records)).write(space.folder)
        space.finish(train=len(records))
    with workspace(folder / "large" / "pairs", StageKey("pairs", {})) as space:
        pixels = render(1, 2, 3, config.data.size).image
        ledger = []
        for number in range(IMAGES):
            parent, replica = f"p{number // REPLICAS:05}", number % REPLICAS
            file = f"images/{parent}/{replica}.png"
            write_synthetic(space.folder / file, pixels, run="large", seed=number)
            scores = dict.fromkeys(("alignment", "contrast", "distance_train", "mean"), number / IMAGES)
            row = {"parent": parent, "replica": replica, "file": file, "prompt": "a polyp", "scores": scores}
            ledger.append({**row, "admitted": True, "reasons": [], "image_sha256": f"{number:064x}"})
        text = "".join(json.dumps(row) + "\n" for row in ledger)
        (space.folder / "ledger.jsonl").write_text(text, encoding="utf-8")
        space.finish(images=IMAGES)


def first_screen(runs: Path) -> float:
    """Seconds from the request for the wall to the last thumbnail of the first screen."""
    shutil.rmtree(runs / ".studio", ignore_errors=True)
    with opened(runs) as (address, token, *_), ThreadPoolExecutor(6) as browser:
        (run, *_) = re.findall(r'href="(/runs/[^"/?]+)"', ask(address, token).decode())
        start = time.monotonic()
        ask(address, token, f"{run}/pairs")
        list(browser.map(lambda name: ask(address, token, f"/static/studio.{name}"), ("css", "js")))
        page = json.loads(ask(address, token, f"/api{run}/pairs?limit=200&choices=true"))
        shown = [
            f"id={tile['parent']}" if tile["kind"] == "real" else f"number={tile['number']}"
            for tile in page["items"][:SHOWN]
        ]
        list(browser.map(lambda name: ask(address, token, f"{run}/thumbnail?{name}"), shown))
        return time.monotonic() - start


def scroll(runs: Path) -> dict[str, float]:
    """What a viewer sees who scrolls through a wall whose thumbnails are not made yet, in a real browser."""
    from playwright.sync_api import sync_playwright

    shutil.rmtree(runs / ".studio", ignore_errors=True)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with opened(runs) as (address, token, _, server), sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        (run, *_) = re.findall(r'href="(/runs/[^"/?]+)"', ask(address, token).decode())
        page.goto(f"{address}{run}/pairs?token={token}")
        page.locator("#wall button img").first.wait_for()
        page.wait_for_timeout(2000)
        found = page.evaluate(SCROLL, SCROLLED)
        browser.close()
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server}/status").read_text())
        assert peak is not None
    gaps = sorted(found["gaps"])
    return {
        "frames": len(gaps),
        "median_ms": statistics.median(gaps),
        "p99_ms": gaps[int(0.99 * len(gaps))],
        "longest_ms": gaps[-1],
        "pictures_late_percent": 100 * statistics.fmean(found["late"]),
        "server_mb": int(peak[1]) / 1024,
    }


def measure_wall() -> None:
    """Make the bank, measure, store, and write the part of the page."""
    with tempfile.TemporaryDirectory() as work:
        make_bank(Path(work))
        seconds = [first_screen(Path(work)) for _ in range(5)]
        scrolled = scroll(Path(work)) if CHROMIUM.exists() else None
    known = json.loads(RESULT.read_text(encoding="utf-8"))
    load = [round(value, 1) for value in os.getloadavg()]
    wall = {"images": IMAGES, "thumbnails": SHOWN, "seconds": seconds, "load": load, "scrolled": scrolled}
    RESULT.write_text(json.dumps({**known, "wall": wall}, indent=1) + "\n", encoding="utf-8")
    text = (
        f"Of a bank of {IMAGES:,} counterparts, the first screen ({SHOWN} thumbnails that were not made yet, "
        f"ledger not read yet) took {statistics.median(seconds):.2f} s (median of {len(seconds)}, "
        f"{min(seconds):.2f} to {max(seconds):.2f}; load of the machine {load[0]:g} on two cores). "
    )
    if scrolled is not None:
        frames, median, slow, longest, late, memory = (
            f"{scrolled[name]:.0f}"
            for name in ("frames", "median_ms", "p99_ms", "longest_ms", "pictures_late_percent", "server_mb")
        )
        text += (
            f"Scrolled for {SCROLLED:g} s at a screen and a half per second in Chromium, without a GPU and "
            f"with all thumbnails still to be made, it drew {frames} frames, {median} ms apart "
            f"(median; 99th percentile {slow}, longest {longest} ms); {late} % of the pictures in sight were "
            f"still to come. The server held {memory} MB at most. "
        )
    text += "Written by `python benchmarks/studio.py --wall`."
    fill(ROOT / "docs" / "studio.md", "studio-wall", text)
    print(text)


def main() -> None:
    """Measure in turn, store, and write the parts of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wall", action="store_true", help="the wall of pairs alone")
    only_wall = parser.parse_args().wall
    os.environ["HF_HUB_OFFLINE"] = "1"
    measure_wall()
    if only_wall:
        return
    alone, watched, starts, answers = [], [], [], 0
    with tempfile.TemporaryDirectory() as work:
        runs = Path(work)
        timed_run(runs)  # makes all that trainings read
        for _ in range(REPEATS):
            alone.append(timed_run(runs))
            seconds, count, start = watched_run(runs)
            watched.append(seconds)
            starts.append(start)
            answers += count
    ratio = statistics.median(watched) / statistics.median(alone)
    known = json.loads(RESULT.read_text(encoding="utf-8"))
    found = {
        **known,
        "alone": alone,
        "watched": watched,
        "ratio": ratio,
        "starts": starts,
        "answers": answers,
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = (
        f"A run took {ratio:.2f} times as long with the studio open and {CLIENTS} clients that asked for "
        f"live curves every {PAUSE:g} seconds, all on the same two cores (medians of {REPEATS}; {answers} "
        f"answers in all). The studio answered {statistics.median(starts):.1f} s after it was started. "
        "Written by `python benchmarks/studio.py`."
    )
    fill(ROOT / "docs" / "studio.md", "studio-cost", text)
    print(text)


if __name__ == "__main__":
    main()
