"""What waiting threads cost: fine-tuning and prediction with spinning and with passive waiting.

python benchmarks/threads.py [--busy N]

Each measurement is a process of its own, because OpenMP reads its variables once. `--busy N` adds N processes
that only count, as another program on the same machine would. Run it on a quiet machine, without and with
`--busy`; the figures of a machine that does other work mean nothing.
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

RESULTS = Path(__file__).parent / "results" / "threads.json"
WAYS = {
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
}
_REPEATS = 3
_STEPS = 20
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


def _count() -> None:
    while True:
        pass


def measure(work: str, way: dict[str, str]) -> float:
    """Seconds of one step in a process with these variables: the median of some runs."""
    names = {name for setting in WAYS.values() for name in setting}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", _CHILD, work, str(_STEPS)],
                env=clean | way,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(_REPEATS)
    ]
    return statistics.median(seconds)


def main() -> None:
    """Measure and add the figures to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that count beside it")
    busy = parser.parse_args().busy
    others = [multiprocessing.Process(target=_count, daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    found = {
        work: {way: measure(work, values) for way, values in WAYS.items()} for work in ("train", "predict")
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
    for work, ways in found.items():
        print(f"{work}, busy {busy}: " + ", ".join(f"{way} {value:.4f} s" for way, value in ways.items()))


if __name__ == "__main__":
    main()
