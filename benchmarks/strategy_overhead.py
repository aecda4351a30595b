"""What a training step costs under each strategy, as a ratio to a step without mixing.

    python benchmarks/strategy_overhead.py [--size 256] [--batch 8] [--rounds 18]

Made for busy machines. Times are CPU time of the training thread (one torch thread), not of the clock. Steps
of the strategies, in an order that every round draws anew, take turns with steps without mixing, and a ratio
compares a step with the mean of its two neighbours. The table has medians and quartiles over the rounds; what
has a limit close to 1 is measured several times in each. The network is the smallest one (SegFormer nano of
preset tiny, which the demo trains): any other one takes longer for a step, so that mixing weighs less.

What a strategy makes ahead (AugMix, PixMix, HSMix) is made in a background thread as in training. `mixing`
is CPU time of the training thread, `ahead` that of the background thread, and the total is that of the whole
process. Strategies that show the network more images than a batch holds cannot cost less than those images
do: `images` says how many for each one. HSMix starts without superpixels a second time: the second table
shows what the first epochs cost. Writes benchmarks/results/strategy_overhead.json and the tables of
docs/baselines.md.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _markers import fill
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.core.training import one_ahead
from mcpmix.mixing.hsmix import HSMix
from mcpmix.mixing.registry import STRATEGIES, build_strategy
from mcpmix.mixing.strategy import Batch, Originals, Strategy, Term
from mcpmix.networks.features import load_features
from mcpmix.networks.loss import input_gradient, predict_terms, segmentation_loss
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.report.arms import label_of

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "strategy_overhead.json"
REFERENCE = "full-sup"
RATIOS = {"mixup": 1.03, "cutmix": 1.03, "gridmix": 1.03, "smoothmix": 1.03, "puzzlemix": 2.2}
CLOSE, REPEATS = 1.1, 4  # a limit below the first is measured so many times in each round
ELSEWHERE = ("augmix", "pixmix")  # their images are made off the training thread
MOST_HERE = 0.01  # what such a strategy may take of the training thread, in steps without mixing
EPOCHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # those of HSMix that the table shows

Times = dict[str, float]
"""Seconds of a step: thread, process, clock, and mixing and ahead, which are parts of the first two."""


def make_batch(size: int, images: int) -> Batch:
    """Smooth random images with counterparts and one blob each."""
    rng = torch_rng("overhead")
    coarse = torch.randn(2, images, 3, size // 16, size // 16, generator=rng).flatten(0, 1)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    real, synthetic = smooth.unflatten(0, (2, images))
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    blob = ((rows - size / 2) ** 2 + (columns - size / 3) ** 2 < (size / 6) ** 2).float()
    masks = blob.expand(images, 1, size, size).contiguous()
    names = tuple(f"sample-{number}" for number in range(images))
    whole, more = Originals(lambda: real, _same), real.flip(0)
    return Batch(real, masks, synthetic, names, whole, more, masks, (more, masks))


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
        self.strategy.attach(partial(input_gradient, network), network)
        self.strategy.prepare([batch])
        self.strategy.set_epoch(1)
        groups = [{"params": list(network.parameters())}, *self.strategy.parameter_groups(1000)]
        self.optimiser = torch.optim.AdamW(groups, lr=1e-4)
        self.number = count()
        self.shown = self.making = 0.0
        if self.strategy.ahead or name == "diffusemix":  # fills the caches of pictures and superpixels
            for _ in range(warm_up):
                self.terms()
        self.measure()

    def terms(self) -> list[Term]:
        """What the strategy makes of the batch, anew at each call."""
        start = time.thread_time()
        terms = self.strategy.terms(self.batch, torch_rng("overhead", self.name, next(self.number)))
        self.making = time.thread_time() - start
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

    def measure(self) -> Times:
        """The cost of a step and of making terms once, here or in the background meanwhile."""
        work: Iterator[list[Term]] = (self.terms() for _ in range(2))
        coming = one_ahead(work) if self.strategy.ahead else None
        terms = next(coming) if coming else None  # the next ones are begun now
        before = _now()
        if coming and terms:
            self.step(terms)
            between = time.thread_time()
            next(coming)
            mixing, ahead = time.thread_time() - between, self.making
        else:
            self.step(self.terms())
            mixing, ahead = self.making, 0.0
        spent = {key: value - before[key] for key, value in _now().items()}
        return {**spent, "mixing": mixing, "ahead": ahead}


def _now() -> Times:
    return {"thread": time.thread_time(), "process": time.process_time(), "clock": time.perf_counter()}


def measure(runners: list[Runner], rounds: int) -> dict[str, list[tuple[Times, Times]]]:
    """Each step of a strategy with the mean of the reference's steps before and after it."""
    reference, *others = runners
    chain = [runner for runner in others for _ in range(REPEATS if RATIOS.get(runner.name, 9) < CLOSE else 1)]
    pairs: dict[str, list[tuple[Times, Times]]] = defaultdict(list)
    before = reference.measure()
    for number in range(rounds):
        for place in numpy_rng("overhead order", number).permutation(len(chain)):
            own, after = chain[place].measure(), reference.measure()
            base = {key: (before[key] + after[key]) / 2 for key in after}
            pairs[chain[place].name].append((own, base))
            before = after
    return pairs


def row_of(runner: Runner, pairs: list[tuple[Times, Times]]) -> dict[str, Any]:
    """Medians, ratios and their quartiles, and whether a limit is kept."""
    own = {key: statistics.median(times[key] for times, _ in pairs) for key in pairs[0][0]}
    ratios = {
        key: statistics.quantiles([times[key] / base[key] for times, base in pairs], n=4, method="inclusive")
        for key in ("thread", "process", "clock")
    }
    here = statistics.median(times["mixing"] / base["thread"] for times, base in pairs)
    limit, kept = None, None
    if runner.name in RATIOS:
        limit, kept = f"ratio at most {RATIOS[runner.name]}", ratios["thread"][1] <= RATIOS[runner.name]
    elif runner.name in ELSEWHERE:
        limit, kept = f"mixing off the training thread (at most {MOST_HERE:.0%} on it)", here <= MOST_HERE
    return {
        "ms": {key: round(1000 * value, 2) for key, value in own.items()},
        "ratio": {key: [round(value, 4) for value in values] for key, values in ratios.items()},
        "mixing_share": round(here, 5),
        "images": runner.shown,
        "steps": len(pairs),
        "limit": limit,
        "kept": kept,
    }


def superpixel_epochs(batch: Batch, repeats: int) -> list[dict[str, float]]:
    """What HSMix's images cost in each epoch from the first on, for the one batch; medians over repeats."""
    seconds: dict[int, list[float]] = defaultdict(list)
    made: dict[int, list[int]] = defaultdict(list)
    for repeat in range(repeats):
        strategy = HSMix()
        known = 0
        for epoch in range(1, max(EPOCHS) + 1):
            strategy.set_epoch(epoch)
            start = time.thread_time()
            strategy.terms(batch, torch_rng("superpixels", repeat, epoch))
            seconds[epoch].append(time.thread_time() - start)
            made[epoch].append(len(strategy.kept) - known)
            known = len(strategy.kept)
    return [
        {
            "epoch": epoch,
            "ms": round(1000 * statistics.median(seconds[epoch]), 1),
            "maps": round(statistics.mean(made[epoch]), 2),
        }
        for epoch in EPOCHS
    ]


def markdown(result: dict[str, Any]) -> str:
    """The tables of the page."""
    options, step = result["options"], result["reference_ms"]
    lines = [
        f"{options['segmenter']} {options['variant']}, {options['size']} px, batch {options['batch']}, CPU "
        f"time with one torch thread, medians of {options['rounds']} steps or more, each compared with the "
        f"steps without mixing before and after it ({step:.0f} ms). *Ratio* and *mixing* are of the "
        "training thread, *ahead* is of the background thread, and *all threads* is the ratio of both "
        "together.",
        "",
        "| | ratio to Full-Sup (quartiles) | mixing | ahead | all threads | images per image | limit |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in result["rows"].items():
        low, middle, high = row["ratio"]["thread"]
        outcome = "kept" if row["kept"] else "**missed**"
        verdict = "–" if row["limit"] is None else f"{row['limit']}: {outcome}"
        ahead = f"{row['ms']['ahead']:.0f} ms" if row["ms"]["ahead"] else "–"
        lines.append(
            f"| {label_of(name)} | {middle:.3f} ({low:.3f} to {high:.3f}) | {row['ms']['mixing']:.1f} ms | "
            f"{ahead} | {row['ratio']['process'][1]:.2f} | {row['images']:.0f} | {verdict} |"
        )
    lines += [
        "",
        f"HSMix makes the images of a batch of {options['batch']} from superpixels that are computed once "
        "and kept, each of a sample's four maps when it is first drawn:",
        "",
        "| epoch | " + " | ".join(str(row["epoch"]) for row in result["superpixels"]) + " |",
        "|---|" + "---:|" * len(result["superpixels"]),
        "| maps computed | " + " | ".join(f"{row['maps']:.1f}" for row in result["superpixels"]) + " |",
        "| CPU time, ms | " + " | ".join(f"{row['ms']:.0f}" for row in result["superpixels"]) + " |",
    ]
    return "\n".join([*lines, "", "Written by `python benchmarks/strategy_overhead.py`."])


def main() -> None:
    """Measure, store, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=18, help="2 or more")
    parser.add_argument("--segmenter", default="segformer")
    parser.add_argument("--variant", default="nano")
    parser.add_argument("--warm-up", type=int, default=24)
    parser.add_argument("--only", nargs="+", choices=tuple(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--trial", action="store_true", help="print only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = make_batch(options.size, options.batch)
    torch.manual_seed(0)
    network = build_segmenter(options.segmenter, options.variant).train()
    network = network.to(memory_format=torch.channels_last)  # as the trainer has it
    names = [REFERENCE, *(name for name in options.only if name != REFERENCE)]
    runners = [Runner(name, network, batch, options.warm_up) for name in names]
    pairs = measure(runners, options.rounds)
    result: dict[str, Any] = {
        "options": vars(options),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "reference_ms": 1000 * statistics.median(b["thread"] for rows in pairs.values() for _, b in rows),
        "rows": {runner.name: row_of(runner, pairs[runner.name]) for runner in runners[1:]},
        "superpixels": superpixel_epochs(batch, repeats=3),
    }
    print(markdown(result))
    missed = [name for name, row in result["rows"].items() if row["kept"] is False]
    print(f"\nLimits: {'FAIL, missed by ' + ', '.join(missed) if missed else 'PASS, all kept'}")
    if not options.trial:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        fill(ROOT / "docs" / "baselines.md", "overhead-table", markdown(result))
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
