"""How soon the studio answers, and what watching costs a run on the same machine.

python benchmarks/studio.py

A short run on the phantom is made several times, in turn alone and with the studio open and 50 clients that
ask for its live curves every two seconds, as an open page does. The clients run on this machine too, at the
lowest priority. Writes benchmarks/results/studio.json and a part of docs/studio.md; needs a quiet machine.
"""

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
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from _markers import fill

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "studio.json"
CLIENTS, PAUSE, REPEATS = 50, 2.0, 3
SETTINGS = ("train.seeds=[0]", "train.arms=[full-sup,mcpmix]", "train.epochs=60")


def timed_run(folder: Path) -> float:
    """Seconds of the trainings of a short run; what they read is reused if it is there."""
    for stage in ("segmenter", "evaluation", "report"):
        shutil.rmtree(folder / "demo-fast" / stage, ignore_errors=True)
    command = [sys.executable, "-m", "mcpmix", "demo", "--fast", "--out", str(folder), *SETTINGS]
    seconds = -time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return seconds + time.monotonic()


@contextmanager
def opened(runs: Path) -> Iterator[tuple[str, str, float]]:
    """The studio of a folder: yields its address, its token and the seconds until it answers."""
    start = time.monotonic()
    command = [sys.executable, "-m", "mcpmix", "studio", str(runs), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"(http://\S+?)/?\?token=(\S+)", server.stdout.readline())
            assert found is not None
            ask(found[1], found[2])
            yield found[1], found[2], time.monotonic() - start
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
    with opened(folder) as (address, token, start):
        clients = multiprocessing.Process(target=watch_all, args=(address, token, over, answers))
        clients.start()
        seconds = timed_run(folder)
        over.set()
        clients.join()
    return seconds, answers.value, start


def main() -> None:
    """Measure in turn, store, and write the part of the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"
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
    found = {"alone": alone, "watched": watched, "ratio": ratio, "starts": starts, "answers": answers}
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
