"""What waiting threads cost: fine-tuning and prediction with spinning and with passive waiting.

python benchmarks/threads.py [--busy N] [--steps N] [--repeats N]

Each measurement is a process of its own, because OpenMP reads its variables once. `--busy N` adds N processes
that only count, as another program on the same machine would. Run it on a quiet machine, without and with
`--busy`; the figures of a machine that does other work mean nothing. Writes results/threads.json and, from
all that is in it, the table of docs/first-hour.md.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _markers import fill

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "threads.json"
WAYS = {
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
}
_CHILD = """
import sys, time
import torch
from mcpmix.core.device import setup
from mcpmix.networks.segmenter import build_segmenter
setup("cpu", "float32", 0, deterministic=True)
network = build_segmenter("segformer", "nano", "embedded")
images, masks = torch.rand(8, 3, 128, 128), (torch.rand(8, 1, 128, 128) > 0.5).float()
optimiser = torch.optim.AdamW(network.parameters())
loss = torch.nn.BCEWithLogitsLoss()
def train():
    optimiser.zero_grad(); loss(network(images), masks).backward(); optimiser.step()
def predict():
    with torch.inference_mode(): network(images[:1])
work = {"train": train, "predict": predict}[sys.argv[1]]
for _ in range(3): work()
start = time.perf_counter()
for _ in range(int(sys.argv[2])): work()
print((time.perf_counter() - start) / int(sys.argv[2]))
"""


WORK = {"train": "training, 8 images", "predict": "prediction, 1 image"}


def _count() -> None:
    while True:
        pass


def measure(work: str, way: dict[str, str], steps: int, repeats: int) -> float:
    """Seconds of one step in a process with these variables: the median of some runs."""
    names = {name for setting in WAYS.values() for name in setting}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", _CHILD, work, str(steps)],
                env=clean | way,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(repeats)
    ]
    return statistics.median(seconds)


def main() -> None:
    """Measure and add the figures to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that count beside it")
    parser.add_argument("--steps", type=int, default=20, help="steps of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the median counts")
    told = parser.parse_args()
    busy = told.busy
    others = [multiprocessing.Process(target=_count, daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    found = {
        work: {way: measure(work, values, told.steps, told.repeats) for way, values in WAYS.items()}
        for work in WORK
    }
    for other in others:
        other.terminate()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept[f"busy {busy}"] = {
        "seconds_per_step": found,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page = table(kept)
    fill(HERE.parent / "docs" / "first-hour.md", "threads", page)
    print(page)


def table(kept: dict[str, dict[str, Any]]) -> str:
    """All measurements as a table, and where they come from."""
    rows = ["| machine | step | spinning | passive | |", "|---|---|---:|---:|---:|"]
    for name, one in sorted(kept.items()):
        count = int(name.removeprefix("busy "))
        state = f"with {count} other busy {'process' if count == 1 else 'processes'}" if count else "quiet"
        for work, ways in one["seconds_per_step"].items():
            spinning, passive = (1000 * ways[way] for way in WAYS)
            ratio = f"{spinning / passive:.1f} x"
            rows.append(f"| {state} | {WORK[work]} | {spinning:.0f} ms | {passive:.0f} ms | {ratio} |")
    cores, date = (kept[max(kept)][fact] for fact in ("cores", "date"))
    return "\n".join([*rows, "", f"Written by `python benchmarks/threads.py` on {cores} cores, {date}."])


if __name__ == "__main__":
    main()
