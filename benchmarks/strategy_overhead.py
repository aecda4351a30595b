"""What a training step costs under each strategy, as a ratio to a step without mixing.

    python benchmarks/strategy_overhead.py [--size 256] [--batch 8] [--rounds 9]

Each round measures every strategy once, in turning order, and a ratio compares times of one round, so that a
busy machine slows all alike; ratios are medians over rounds. What a strategy makes ahead (PixMix, AugMix,
HSMix) is made in a background thread as in training: one core for the step, another one for that. Strategies
that show the network more images than a batch holds cannot cost less than those images do: `images` says how
many for each one. Writes benchmarks/results/strategy_overhead.json and the table of docs/baselines.md.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _markers import fill
from mcpmix.core.seeding import torch_rng
from mcpmix.mixing.strategies import STRATEGIES, build_strategy
from mcpmix.mixing.strategy import Batch, Originals, Strategy, Term
from mcpmix.models.features import load_features
from mcpmix.models.segmenters import build_segmenter
from mcpmix.reporting.arms import label_of
from mcpmix.training.ahead import one_ahead
from mcpmix.training.objective import input_gradient, predict_terms, segmentation_loss

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "strategy_overhead.json"
REFERENCE = "full-sup"
LIMITS = {"mixup": 1.03, "cutmix": 1.03, "gridmix": 1.03, "smoothmix": 1.03, "puzzlemix": 2.2}


def make_batch(size: int, images: int) -> Batch:
    """Smooth random images with counterparts and one blob each."""
    rng = torch_rng("overhead")
    coarse = torch.randn(2, images, 3, size // 16, size // 16, generator=rng).flatten(0, 1)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    real, synthetic = smooth.unflatten(0, (2, images))
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    blob = ((rows - size / 2) ** 2 + (columns - size / 3) ** 2 < (size / 6) ** 2).float()
    names = tuple(f"sample-{number}" for number in range(images))
    return Batch(real, blob.expand(images, 1, size, size), synthetic, names, Originals(lambda: real, _same))


def _same(maps: Tensor) -> Tensor:
    return maps


def build(name: str) -> Strategy:
    """A strategy with its defaults, but a small mixing set, so that it is made before the measurement."""
    settings: dict[str, dict[str, Any]] = {
        "mcpmix-rla": {"epochs": 10, "features": load_features("embedded")},
        "mcpmix-stepwise": {"epochs": 10},
        "mcpmix-cosine": {"epochs": 10},
        "pixmix": {"pictures": 16},
        "diffusemix": {"pictures": 16},
        "cutmix": {"probability": 1.0},  # the dearer case: no batch stays as it is
        "gridmix": {"probability": 1.0},
        "smoothmix": {"probability": 1.0},
    }
    return build_strategy(name, **settings.get(name, {}))


class Runner:
    """Training steps of one strategy on one batch."""

    def __init__(self, name: str, network: nn.Module, batch: Batch, warm_up: int) -> None:
        self.name, self.network, self.batch = name, network, batch
        self.strategy = build(name)
        self.strategy.attach(partial(input_gradient, network))
        self.strategy.prepare([batch])
        self.strategy.set_epoch(1)
        groups = [{"params": list(network.parameters())}, *self.strategy.parameter_groups(1000)]
        self.optimiser = torch.optim.AdamW(groups, lr=1e-4)
        self.number = count()
        self.shown = 0.0
        if self.strategy.ahead or name == "diffusemix":  # fills the caches of pictures and superpixels
            for _ in range(warm_up):
                self.terms()
        self.step(self.terms())

    def terms(self) -> list[Term]:
        """What the strategy makes of the batch, anew at each call."""
        terms = self.strategy.terms(self.batch, torch_rng("overhead", self.name, next(self.number)))
        self.shown = sum(len(term.images) for term in terms) / len(self.batch.ids)
        return terms

    def step(self, terms: list[Term]) -> None:
        """One optimiser step as the trainer does it."""
        logits = predict_terms(self.network, [t.images for t in terms], [t.name for t in terms])
        losses = [segmentation_loss(part, t.targets) for part, t in zip(logits, terms, strict=True)]
        total = self.strategy.combine(losses, self.batch, terms) + self.strategy.consistency(logits, terms)
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        self.optimiser.step()

    def seconds(self, steps: int) -> float:
        """Seconds of a step, over `steps` of them; as many terms are made in that time, here or ahead."""
        work: Iterator[list[Term]] = (self.terms() for _ in range(steps + 1))
        if not self.strategy.ahead:
            return _timed(lambda: self.step(next(work)), steps)
        coming = one_ahead(work)
        kept = [next(coming)]

        def overlapped() -> None:
            self.step(kept.pop())
            kept.append(next(coming))

        return _timed(overlapped, steps)


def _timed(call: Callable[[], None], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def measure(runners: list[Runner], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each strategy in each round."""
    times: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for number in range(rounds):
        first = number % len(runners)
        for runner in runners[first:] + runners[:first]:
            times[runner.name].append(runner.seconds(steps))
    return times


def rows_of(times: dict[str, list[float]], runners: list[Runner]) -> dict[str, dict[str, Any]]:
    """Medians, ratios and their quartiles, and whether a limit is kept."""
    rows = {}
    for runner in runners:
        values = times[runner.name]
        ratios = [value / base for value, base in zip(values, times[REFERENCE], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        limit = LIMITS.get(runner.name)
        rows[runner.name] = {
            "ms": round(1000 * statistics.median(values), 1),
            "ratio": round(middle, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "images": runner.shown,
            "ahead": runner.strategy.ahead,
            "limit": limit,
            "kept": None if limit is None else middle <= limit,
        }
    return rows


def markdown(result: dict[str, Any]) -> str:
    """The table of the page."""
    options = result["options"]
    lines = [
        f"UNet with EfficientNet-lite0, {options['size']} px, batch {options['batch']}, {options['threads']} "
        f"thread(s) for the step, {result['cores']} cores.",
        "",
        "| | time of a step | ratio to Full-Sup (quartiles) | images per image | made ahead | limit |",
        "|---|---:|---:|---:|---|---|",
    ]
    for name, row in result["rows"].items():
        low, high = row["quartiles"]
        kept = "–" if row["limit"] is None else f"{row['limit']} {'kept' if row['kept'] else '**missed**'}"
        lines.append(
            f"| {label_of(name)} | {row['ms']:.0f} ms | {row['ratio']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{row['images']:.0f} | {'yes' if row['ahead'] else 'no'} | {kept} |"
        )
    return "\n".join([*lines, "", "Written by `python benchmarks/strategy_overhead.py`."])


def main() -> None:
    """Measure, store, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2, help="steps of each strategy in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=tuple(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--trial", action="store_true", help="print only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batch = make_batch(options.size, options.batch)
    torch.manual_seed(0)
    network = build_segmenter("unet", "tu-tf_efficientnet_lite0").train()
    names = [REFERENCE, *(name for name in options.only if name != REFERENCE)]
    runners = [Runner(name, network, batch, options.warm_up) for name in names]
    rows = rows_of(measure(runners, options.rounds, options.steps), runners)
    result = {"options": vars(options), "cores": os.cpu_count(), "rows": rows}
    print(markdown(result))
    if not options.trial:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        fill(ROOT / "docs" / "baselines.md", "overhead-table", markdown(result))


if __name__ == "__main__":
    main()
