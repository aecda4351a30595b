"""Speed, memory and disagreements of the metrics, against other libraries, in one run.

    OMP_NUM_THREADS=1 python benchmarks/metrics.py [--pairs 24] [--rounds 3] [--files 1000] [--out FILE]

All methods score the same pairs, in an order that is shuffled anew for every pair, and our own
suite runs twice under two names: what the two differ by is what the machine adds. Ratios are to be trusted,
absolute times depend on what else runs. Libraries that are not installed are left out by name:
`pip install monai surface-distance torchmetrics medpy` brings them, best into an environment of its own.
"""

import argparse
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mcpmix.metrics import boundary_distances, score, score_folder
from metrics_libraries import EXAMPLE_CALLS, Call, answer, available_calls, installed, scipy_suite

OURS = "mcpmix, whole suite"
OURS_AGAIN = "mcpmix again (A/A)"
SOURCE = Path(__file__).resolve().parents[1] / "src"


def blob_pair(rng: np.random.Generator, size: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """A wavy lesion and a disturbed copy of it; two of five copies have an island of false positives."""
    y, x = np.mgrid[:size, :size] / size
    cy, cx = rng.uniform(0.3, 0.7, 2)
    ry, rx = rng.uniform(0.08, 0.3, 2)
    waves = [(int(rng.integers(2, 9)), rng.uniform(0.02, 0.15), rng.uniform(0, 6)) for _ in range(3)]

    def shape(dy: float, dx: float, scale: float, turn: float) -> np.ndarray:
        angle = np.arctan2(y - cy - dy, x - cx - dx)
        radius = scale * (1 + sum(a * np.sin(k * angle + phase + turn) for k, a, phase in waves))
        return ((y - cy - dy) / ry) ** 2 + ((x - cx - dx) / rx) ** 2 <= radius**2

    truth = shape(0, 0, 1, 0)
    prediction = shape(*rng.normal(0, 0.02, 2), rng.uniform(0.8, 1.2), rng.uniform(0, 0.8))
    if rng.random() < 0.4:
        iy, ix = rng.uniform(0.1, 0.9, 2)
        prediction |= (y - iy) ** 2 + (x - ix) ** 2 <= rng.uniform(0.01, 0.05) ** 2
    return truth, prediction


def time_methods(
    pairs: list[tuple[np.ndarray, np.ndarray]], rounds: int, seed: int = 0
) -> dict[str, list[float]]:
    """Best time in seconds of each method on each pair, over some rounds, in shuffled order."""
    methods: dict[str, Callable[..., Any]] = {OURS: score, OURS_AGAIN: score} | available_calls()
    shuffler = random.Random(seed)
    for call in methods.values():
        call(*pairs[0])
    best = {name: [math.inf] * len(pairs) for name in methods}
    for _ in range(rounds):
        for k, pair in enumerate(pairs):
            order = list(methods)
            shuffler.shuffle(order)
            for name in order:
                started = time.perf_counter()
                methods[name](*pair)
                best[name][k] = min(best[name][k], time.perf_counter() - started)
    return best


def speed_table(times: dict[str, list[float]], seed: int = 1) -> list[dict[str, Any]]:
    """Median time, rate, and how many times as long as ours, with a 95 % bootstrap interval over pairs."""
    rng = np.random.default_rng(seed)
    ours = np.array(times[OURS])
    rows = []
    for name, values in times.items():
        seconds = np.array(values)
        draws = rng.integers(0, len(ours), (2000, len(ours)))
        ratios = seconds[draws].sum(1) / ours[draws].sum(1)
        rows.append(
            {
                "method": name,
                "ms_per_pair": 1e3 * float(np.median(seconds)),
                "images_per_second": float(len(seconds) / seconds.sum()),
                "times_ours": float(seconds.sum() / ours.sum()),
                "low": float(np.quantile(ratios, 0.025)),
                "high": float(np.quantile(ratios, 0.975)),
            }
        )
    return sorted(rows, key=lambda row: row["times_ours"])


def exactness(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Largest difference between our suite and scipy's, over all metrics of all pairs."""
    worst = 0.0
    for pair in pairs:
        expected, found = scipy_suite(*pair), score(*pair)
        worst = max(worst, *(abs(found[key] - value) for key, value in expected.items()))
    return worst


def folder_speed(pairs: list[tuple[np.ndarray, np.ndarray]], count: int) -> dict[str, float]:
    """Seconds to score `count` pairs of PNG files, of which decoding, and of which metrics."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for k, role in enumerate(("truth", "prediction")):
            (root / role).mkdir()
            for n in range(count):
                Image.fromarray(pairs[n % len(pairs)][k]).convert("L").save(root / role / f"{n:05d}.png")
        paths = [path for role in ("truth", "prediction") for path in sorted((root / role).iterdir())]
        started = time.perf_counter()
        for path in paths:
            with Image.open(path) as image:
                np.asarray(image)
        decoding = time.perf_counter() - started
        started = time.perf_counter()
        for n in range(count):
            score(*pairs[n % len(pairs)])
        metrics = time.perf_counter() - started
        started = time.perf_counter()
        score_folder(root / "truth", root / "prediction")
        total = time.perf_counter() - started
    return {"pairs": count, "total_s": total, "decoding_s": decoding, "metrics_s": metrics}


def in_fresh_process(code: str, **environment: str) -> str:
    """Output of a piece of Python in a process of its own."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": path} | environment
    result = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def cold_start() -> dict[str, float]:
    """Seconds of the first call after import, without and with compiled code on disk."""
    code = (
        "import time, numpy as np\nfrom mcpmix.metrics import score\n"
        "masks = np.zeros((2, 512, 512), bool)\n"
        "masks[0, 100:300, 120:260] = masks[1, 110:310, 100:250] = True\n"
        "wall, cpu = time.perf_counter(), time.process_time()\nscore(*masks)\n"
        "print(time.perf_counter() - wall, time.process_time() - cpu)"
    )
    with tempfile.TemporaryDirectory() as cache:
        cold = in_fresh_process(code, NUMBA_CACHE_DIR=cache).split()
        warm = in_fresh_process(code, NUMBA_CACHE_DIR=cache).split()
    return {
        "first_ever_wall_s": float(cold[0]),
        "first_ever_cpu_s": float(cold[1]),
        "cached_wall_s": float(warm[0]),
        "cached_cpu_s": float(warm[1]),
    }


def large_masks() -> dict[str, float]:
    """Peak memory of a process, and seconds per pair, for 4096 x 4096 masks; Linux only."""
    if not sys.platform.startswith("linux"):
        return {}
    code = """
import time, numpy as np
from mcpmix.metrics import score
y, x = (side.astype(np.int32) for side in np.ogrid[:4096, :4096])
disc = (y - 2000) ** 2 + (x - 2100) ** 2 < 1500**2
noise = np.random.default_rng(0).integers(0, 2, (4096, 4096), np.uint8).view(bool)
seconds = []
for pair in [(disc, disc), (disc, np.roll(disc, 50, 0)), (noise, ~noise)]:
    started = time.perf_counter()
    score(*pair)
    seconds.append(time.perf_counter() - started)
# Not getrusage: its peak includes that of the parent process before the new program was loaded.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) / 2**10, *seconds[1:])
"""
    peak, lesion, noise = map(float, in_fresh_process(code).split())
    return {"peak_mb": peak, "lesion_s": lesion, "noise_s": noise}


def example_pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small pairs on which libraries disagree."""
    y, x = np.mgrid[:64, :64]
    disc = (y - 30) ** 2 + (x - 26) ** 2 <= 15**2
    moved = (y - 33) ** 2 + (x - 28) ** 2 <= 14**2
    island = moved | ((y - 50) ** 2 + (x - 56) ** 2 <= 4**2)
    edge, full, pixel, empty = x < 20, x >= 0, (y == 30) & (x == 26), x < 0
    return {
        "disc, moved": (disc, moved),
        "disc, moved, with an island": (disc, island),
        "half plane at the image edge": (edge, x < 24),
        "full image against disc": (full, disc),
        "one pixel against disc": (pixel, disc),
        "identical": (disc, disc.copy()),
        "missed lesion": (disc, empty),
        "false alarm": (empty, disc),
        "both empty": (empty, empty.copy()),
        "disc, moved, cut to 40 x 64": (disc[:40], moved[:40]),
        "the same, turned to 64 x 40": (disc[:40].T.copy(), moved[:40].T.copy()),
    }


def ours(truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """Our suite, with the largest distance beside it: that is what torchmetrics has."""
    distances = np.concatenate(boundary_distances(truth, prediction))
    return score(truth, prediction) | {"hd": float(distances.max()) if distances.size else math.nan}


def disagreements() -> dict[str, dict[str, Any]]:
    """What each library says about each example."""
    found, _ = installed()
    calls: dict[str, Call] = {"mcpmix": ours}
    calls |= {label: call for label, (package, call) in EXAMPLE_CALLS.items() if package in found}
    return {
        title: {label: answer(call, *pair) for label, call in calls.items()}
        for title, pair in example_pairs().items()
    }


def means_over_pairs(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, float]]:
    """Mean of each metric over the pairs, by library."""
    result = {}
    for name, call in ({OURS: score} | available_calls()).items():
        rows = [answer(call, *pair) for pair in pairs]
        keys = rows[0] if isinstance(rows[0], dict) else {}
        result[name] = {key: float(np.mean([row[key] for row in rows])) for key in keys}
    return result


def plain(value: Any) -> Any:  # noqa: ANN401
    """The same content with numbers that JSON knows: NaN and infinity become text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"\n{'method':45s} {'ms/pair':>9s} {'images/s':>9s}  times ours [95 %]")
    for row in result["speed"]:
        print(
            f"{row['method']:45s} {row['ms_per_pair']:9.3f} {row['images_per_second']:9.0f}  "
            f"{row['times_ours']:.2f} [{row['low']:.2f}..{row['high']:.2f}]"
        )
    for name in result["not_installed"]:
        print(f"{name:45s} not installed, left out")
    for key in ("exactness_against_scipy", "files", "cold_start", "large_masks"):
        print(f"{key}: {result[key]}")


def main() -> None:
    """Run everything, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "metrics.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries, about empty masks and their own future
    found, absent = installed()
    if "monai" in found or "torchmetrics" in found:
        import torch

        torch.set_num_threads(1)
    rng = np.random.default_rng(2024)
    pairs = [blob_pair(rng) for _ in range(options.pairs)]
    result = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/metrics.py " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": found | {"numpy": np.__version__},
        "not_installed": absent,
        "speed": speed_table(time_methods(pairs, options.rounds)),
        "exactness_against_scipy": exactness(pairs),
        "files": folder_speed(pairs, options.files),
        "cold_start": cold_start(),
        "large_masks": large_masks(),
        "means": means_over_pairs(pairs),
        "disagreements": disagreements(),
    }
    show(result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(plain(result), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
