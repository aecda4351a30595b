"""What a step of +MCPMix+RLA costs, against a plain step on a batch twice as large.

The floor is 1: real and mixed images both pass through the network. Ratios are medians over interleaved
rounds inside one run, of processor time, so that a busy machine slows all variants alike.

    python benchmarks/training_step.py [--size 128] [--batch 8] [--rounds 15]
    python benchmarks/training_step.py --size 256 --variant b0 --features resnet50 --mmd-every 1 4 8

Results of other sizes, networks and features are kept beside each other; docs/rla.md shows them.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from _markers import fill
from mcpmix.core.files import write_json
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.strategy import Batch, Strategy
from mcpmix.networks.features import load_features
from mcpmix.networks.loss import predict_terms, segmentation_loss
from mcpmix.networks.segmenter import build_segmenter

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "training_step.json"


def make_batch(count: int, size: int) -> Batch:
    """Random images with counterparts and masks."""
    rng = torch_rng("benchmark")
    images, synthetic = torch.randn(2, count, 3, size, size, generator=rng)
    masks = (torch.rand(count, 1, size, size, generator=rng) < 0.1).float()
    return Batch(images, masks, synthetic, tuple(str(i) for i in range(count)))


def make_step(network: nn.Module, strategy: Strategy, batch: Batch) -> Callable[[], None]:
    """One optimiser step as the trainer does it."""
    groups = [{"params": list(network.parameters())}, *strategy.parameter_groups(1000)]
    optimiser = torch.optim.AdamW(groups, lr=1e-3)
    strategy.prepare([batch])
    strategy.set_epoch(1)
    rng = torch_rng("steps")

    def step() -> None:
        terms = strategy.terms(batch, rng)
        logits = predict_terms(network, [t.images for t in terms], [t.name for t in terms])
        losses = [segmentation_loss(part, t.targets) for part, t in zip(logits, terms, strict=True)]
        optimiser.zero_grad(set_to_none=True)
        strategy.combine(losses, batch, terms).backward()
        optimiser.step()

    return step


def measure(steps: dict[str, Callable[[], None]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds per call of each variant in each round; the order turns with the round."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        steps[name]()
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.process_time()
            for _ in range(calls):
                steps[name]()
            times[name].append((time.process_time() - start) / calls)
    return times


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--variant", default="nano", help="of SegFormer")
    parser.add_argument("--features", default="embedded", help="phi; weights decide nothing about time")
    parser.add_argument("--mmd-every", type=int, nargs="+", default=[1, 2], help="2: as in the preset tiny")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    phi = load_features(arguments.features)
    batch = make_batch(arguments.batch, arguments.size)

    def network() -> nn.Module:
        torch.manual_seed(0)
        return build_segmenter("segformer", arguments.variant).train()

    def rla(**settings: object) -> Strategy:
        return build_strategy("mcpmix-rla", epochs=10, **settings)

    steps = {
        "plain, twice the batch": make_step(
            network(), build_strategy("full-sup"), make_batch(2 * arguments.batch, arguments.size)
        ),
        "RLA without phi": make_step(network(), rla(mu=0.0), batch),
        **{
            f"RLA, phi every {every} steps": make_step(network(), rla(features=phi, mmd_every=every), batch)
            for every in arguments.mmd_every
        },
    }
    times = measure(steps, arguments.rounds, calls=math.lcm(2, *arguments.mmd_every))
    floor = times["plain, twice the batch"]
    rows = {}
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, floor, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "ms": round(1000 * statistics.median(values), 1),
            "ratio": round(statistics.median(ratios), 3),
            "quartiles": [round(low, 3), round(high, 3)],
        }
        row = rows[name]
        print(f"{name:28s} {row['ms']:8.1f} ms   ratio {row['ratio']:.2f}  {row['quartiles']}")
    name = f"SegFormer {arguments.variant}, {arguments.size} px, {type(phi).__name__}"
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    kept[name] = {"batch": arguments.batch, "rounds": arguments.rounds, "rows": rows}
    write_json(RESULT, kept)
    lines = ["| | step | relative to the floor | quartiles |", "| --- | ---: | ---: | ---: |"]
    for network_name, found in kept.items():
        for row_name, row in found["rows"].items():
            spread = ", ".join(f"{quartile:.2f}" for quartile in row["quartiles"])
            lines.append(
                f"| {network_name}: {row_name} | {row['ms']:.0f} ms | {row['ratio']:.2f} | {spread} |"
            )
    fill(ROOT / "docs" / "rla.md", "training-step", "\n".join(lines))


if __name__ == "__main__":
    main()
