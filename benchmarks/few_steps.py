"""Few steps: how good and how fast counterparts are in two to four passes, and where the time goes.

    python benchmarks/few_steps.py table     diffusers, plain and few steps, under the same masks and seeds
    python benchmarks/few_steps.py profile   CPU time of one image by part of the networks

Each works on a run made with few steps (`--run runs/few`, by `mcpmix synthesize CONFIG few_steps.steps=3`),
prints a table, stores it in benchmarks/results/few_steps.json and puts it into docs/synthesis.md. Alignment,
KID, diversity and copies are those of benchmarks/synthesis.py. Times are CPU time of this process, so that
other work on the machine counts little; compare their ratios.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from _markers import fill
from mcpmix.cli.screen import shown_progress
from mcpmix.config_file import load_config
from mcpmix.generator.counterparts import CounterpartMaker, make_filled
from mcpmix.generator.workers import Request
from mcpmix.networks.weight_files import resolve
from synthesis import COLUMNS as QUALITY
from synthesis import PAGE, PLAIN, ROOT, Bench, Make, Row, plain_way

RESULT = ROOT / "benchmarks" / "results" / "few_steps.json"
FEW = (2, 3, 4)
COLUMNS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "drawn": ("drawn by", lambda row: row["drawn"]),
    "passes": ("passes", lambda row: f"{row['passes']}"),
    "cpu": ("CPU time ↓", lambda row: f"{1000 * row['cpu']:.0f} ms"),
    "times_faster": ("against diffusers ↑", lambda row: f"{row['times_faster']:.1f}x"),
    **{name: QUALITY[name] for name in ("alignment", "kid", "diversity", "copies")},
    "part": ("part", lambda row: row["part"]),
    "plain": ("plain", lambda row: f"{1000 * row['plain']:.1f} ms"),
    "plain_calls": ("calls", lambda row: f"{row['plain_calls'] or ''}"),
    "few": ("few steps", lambda row: f"{1000 * row['few']:.1f} ms"),
    "few_calls": ("calls", lambda row: f"{row['few_calls'] or ''}"),
}


def makers(bench: Bench) -> tuple[CounterpartMaker, CounterpartMaker]:
    """Makers of counterparts with plain steps, and with few."""
    off = bench.config.few_steps.model_copy(update={"steps": 0, "lora": None})
    return bench.maker(config=bench.config.model_copy(update={"few_steps": off})), bench.maker()


def in_steps(maker: CounterpartMaker, steps: int, batch_size: int) -> Make:
    """Draws in another number of steps than the maker does."""
    changed = replace(maker.settings, steps=steps)

    def make(requests: Sequence[Request]) -> np.ndarray:
        maker.settings = changed
        return make_filled(maker, requests, batch_size)

    return make


def table(bench: Bench, replicas: int) -> Row:
    """All ways in turn, batch by batch, on the same masks, prompts and seeds."""
    plain, few = makers(bench)
    size, drawn = bench.config.synthesis.batch_size, bench.config.synthesis
    guides = 1 + (drawn.guidance > 1) + (drawn.mask_guidance > 1)
    base = Path(resolve(bench.config.generator.base, "pipeline"))
    ways: dict[str, tuple[int, Make]] = {
        f"diffusers, {PLAIN['num_inference_steps']} steps": (
            2 * PLAIN["num_inference_steps"],
            plain_way(plain, base),
        )
    }
    for steps in (drawn.steps, *reversed(FEW)):
        ways[f"plain, {steps} steps"] = guides * steps, in_steps(plain, steps, size)
    for steps in reversed(FEW):
        ways[f"few steps, {steps}"] = steps, in_steps(few, steps, size)
    requests = bench.requests(replicas)
    seconds: dict[str, float] = defaultdict(float)
    images: dict[str, list[np.ndarray]] = defaultdict(list)
    for _, make in ways.values():
        make(requests[:1])  # what is built or cached at the first call
    with bench.progress.track("few steps", len(requests)) as advance:
        for batch in bench.batches(requests):
            for name, (_, make) in ways.items():
                start = time.process_time()
                images[name].append(make(batch))
                seconds[name] += time.process_time() - start
            advance(len(batch))
    slowest = next(iter(ways))
    rows = [
        {
            "drawn": name,
            "passes": passes,
            "cpu": seconds[name] / len(requests),
            "times_faster": seconds[slowest] / seconds[name],
            **bench.scores(np.concatenate(images[name]), requests),
        }
        for name, (passes, _) in ways.items()
    ]
    return {"rows": rows, "settings": settings_of(bench)}


def profile(bench: Bench, _: int) -> Row:
    """Mean CPU time of an image by part, over all masks, with plain steps and with few."""
    size, columns = bench.config.synthesis.batch_size, {}
    batches = bench.batches(bench.requests(2))
    for name, maker in zip(("plain", "few"), makers(bench), strict=True):
        make_filled(maker, batches[0], size)
        seconds, calls = watched(maker, batches, size)
        columns[name] = {part: value / (size * len(batches)) for part, value in seconds.items()}
        columns[f"{name}_calls"] = {part: value // len(batches) for part, value in calls.items()}
    parts = columns["few"]
    rows = [{"part": part} | {name: column[part] for name, column in columns.items()} for part in parts]
    return {"rows": rows, "settings": settings_of(bench)}


def watched(maker: CounterpartMaker, batches: Sequence[Sequence[Request]], size: int) -> tuple[Row, Row]:
    """CPU seconds and calls of each part of the networks while batches are drawn, and of all of it."""
    base, control = maker.generator.base, maker.generator.control
    assert control is not None
    parts = {
        "UNet": base.unet,
        "ControlNet": control,
        "embedding of the condition": control.controlnet_cond_embedding,
        "decoder": base.vae.decoder,
    }
    seconds, calls, started, hooks = dict.fromkeys(parts, 0.0), dict.fromkeys(parts, 0), {}, []

    def enter(name: str, *_: object) -> None:
        started[name] = time.process_time()

    def leave(name: str, *_: object) -> None:
        seconds[name] += time.process_time() - started[name]
        calls[name] += 1

    for name, part in parts.items():
        hooks += [
            part.register_forward_pre_hook(partial(enter, name)),
            part.register_forward_hook(partial(leave, name)),
        ]
    began = time.process_time()
    for batch in batches:
        make_filled(maker, batch, size)
    whole = time.process_time() - began
    for hook in hooks:
        hook.remove()
    # The embedding is computed before the steps, apart from the ControlNet.
    rest = whole - sum(seconds.values())
    return seconds | {"everything else": rest, "in all": whole}, calls | {"everything else": 0, "in all": 0}


def settings_of(bench: Bench) -> Row:
    """What decides the figures."""
    drawn = {"steps", "guidance", "mask_guidance", "batch_size"}
    few = bench.config.few_steps.model_dump(exclude={"lora"})
    return bench.config.synthesis.model_dump(include=drawn) | {"few_steps": few}


def markdown(part: str, result: Row) -> str:
    """A part of the page."""
    rows, facts, settings = result["rows"], result["facts"], result["settings"]
    few = settings["few_steps"]
    how = (
        f"guidance {settings['guidance']:g}, mask guidance {settings['mask_guidance']:g}, batches of "
        f"{settings['batch_size']}, one CPU thread"
    )
    if part == "table":
        text = (
            f"The generator of the demo ({how}); the copy learnt in {few['distil_steps']} steps from "
            f"{few['paths']} images in {settings['steps']} steps. {rows[0]['images']} images under "
            f"{facts['masks']} masks in each row, with the same prompts and seeds; ± is a standard error "
            "over masks, for KID over images. Passes are those of UNet and ControlNet per image. On real "
            f"images of patients that it has not seen, the judge reaches {facts['alignment_real']:.3f}."
        )
    else:
        text = (
            f"Where the CPU time of an image goes, with {settings['steps']} plain steps and with "
            f"{few['steps']} few ones ({how}). A call has a whole batch, with guidance up to three of them."
        )
    columns = [column for name, column in COLUMNS.items() if name in rows[0]]
    lines = [[heading for heading, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row) for _, cell in columns] for row in rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{body}\n\nWritten by `python benchmarks/few_steps.py {part}`."


PARTS: dict[str, Callable[[Bench, int], Row]] = {"table": table, "profile": profile}


def main() -> None:
    """Measure one part, store and publish it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "few", help="a run's folder")
    parser.add_argument("--replicas", type=int, default=4, help="seeds per mask; two or more")
    parser.add_argument("--trial", action="store_true", help="print only, leave results and documents alone")
    arguments = parser.parse_args()
    place = [f"output={arguments.run.resolve().parent}", f"name={arguments.run.name}"]
    config = load_config(arguments.run / "config.yaml", place)
    if not config.few_steps.distils:
        parser.error(f"{arguments.run} draws as the section synthesis says: make it with few_steps.steps=3")
    with shown_progress() as progress:
        bench = Bench(config, progress)
        result = PARTS[arguments.part](bench, arguments.replicas) | {"facts": bench.facts()}
    text = markdown(arguments.part, result)
    print(text)
    if not arguments.trial:
        known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        RESULT.write_text(json.dumps(known | {arguments.part: result}, indent=1) + "\n", encoding="utf-8")
        fill(PAGE, f"few-steps-{arguments.part}", text)


if __name__ == "__main__":
    main()
