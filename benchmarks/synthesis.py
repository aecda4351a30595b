"""Synthesis: how fast, how well aligned, how near to real images.

    python benchmarks/synthesis.py speed      against diffusers' pipeline called image by image as it comes
    python benchmarks/synthesis.py strength   what starting from the source image (strength below 1) does
    python benchmarks/synthesis.py condition  mask and depth against mask only and depth only
    python benchmarks/synthesis.py swap       whether another mask moves the lesion, and seeds the image
    python benchmarks/synthesis.py bank       what was admitted to the run's bank of pairs

Each works on a run (`--run runs/demo`, made by `mcpmix demo`; what is missing or out of date is made first),
prints a table, stores it in benchmarks/results/synthesis.json and puts it into docs/synthesis.md. All figures
of a table come from one call, from the same masks and seeds.

Alignment is the Dice of what a judge, trained on real images of other patients, finds against the mask. KID
is measured in phi against the real training and validation images. Diversity is the mean distance in phi
between images under one mask, in units of the mean distance between real images of different patients. A copy
is as near to a training image as near-duplicates are, and nearer than real images of other patients
(docs/pairs.md); the limits are those of strength 1 in all rows.
"""

import argparse
import copy
import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

from _markers import fill
from _swap import draw_partners, where_changed
from mcpmix.bench.banks import bank_facts, images_of, reasons_text
from mcpmix.cli.screen import shown_progress
from mcpmix.config import Config
from mcpmix.config_file import load_config
from mcpmix.core.progress import Progress
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.generator.conditions import swapped_conditions
from mcpmix.generator.copies import CopyCheck, copy_problems
from mcpmix.generator.counterparts import CounterpartMaker, build_maker, make_filled
from mcpmix.generator.depth import read_depths
from mcpmix.generator.judge import dice_of, load_judge
from mcpmix.generator.ledger import read_rows
from mcpmix.generator.workers import Request
from mcpmix.metrics.statistics import kid
from mcpmix.networks.features import load_features
from mcpmix.networks.weight_files import resolve
from mcpmix.run import run

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "synthesis.json"
PAGE = ROOT / "docs" / "synthesis.md"
STRENGTHS = (0.4, 0.6, 0.8, 0.9, 1.0)
PLAIN = {"num_inference_steps": 50, "guidance_scale": 7.5}  # what diffusers' pipeline takes unasked
ENOUGH = 0.5  # diversity that is asked for
ALIGNED = 0.9  # alignment of admitted images that is asked for, as a share of that of real ones

Row = dict[str, Any]
Make = Callable[[Sequence[Request]], np.ndarray]


class Bench:
    """A run's generator with the yardsticks for its images."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.run = made = run(config, progress, until="pairs")
        index = DatasetIndex.read(made.dataset)
        records = index.part("train")
        self.groups = [record.group for record in records]
        self.train = load_arrays(records, config.data.size)
        held_out = load_arrays(index.part("validation"), config.data.size)
        self.depth, self.generator, self.device = made.depth, made.generator, made.runtime.device
        self.judge = load_judge(made.judge.folder, self.device)
        phi = load_features(config.rla.features)
        self.copies = CopyCheck(phi, self.train, self.groups, held_out, seed=config.seed, device=self.device)
        held_out_features = [self.copies.held_out] if self.copies.held_out is not None else []
        self.real = np.concatenate([self.copies.train, *held_out_features])

    def maker(self, generator: Artifact | None = None, config: Config | None = None) -> CounterpartMaker:
        """Makes counterparts with the run's generator, or with another one on the same images."""
        depths = read_depths(self.depth.folder, self.train.ids)
        folder = (generator or self.generator).folder
        return build_maker(config or self.config, folder, self.train, depths, self.device)

    def requests(self, replicas: int) -> list[Request]:
        """All masks, `replicas` seeds each."""
        return [Request(index, replica) for index in range(len(self.train)) for replica in range(replicas)]

    def batches(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Requests by whole batches of the generator."""
        size = self.config.synthesis.batch_size
        return [requests[start : start + size] for start in range(0, len(requests), size)]

    def draw(self, maker: CounterpartMaker, requests: Sequence[Request], title: str) -> np.ndarray:
        """The images of all requests."""
        parts = []
        with self.progress.track(title, len(requests)) as advance:
            for batch in self.batches(requests):
                parts.append(make_filled(maker, batch, self.config.synthesis.batch_size))
                advance(len(batch))
        return np.concatenate(parts)

    def scores(self, images: np.ndarray, requests: Sequence[Request]) -> Row:
        """Alignment, KID, diversity and copies of images."""
        sources = [request.index for request in requests]
        dice = self.judge.dice(images, self.train.masks[sources], [self.groups[i] for i in sources])
        features = self.copies.features(images)
        limits = self.copies.limits(self.config.synthesis.admission.copy_quantile, 1.0)
        copied = [bool(copy_problems(d, limits)) for d in self.copies.measure(features, images, sources)]
        distance = kid(features, self.real)
        return {
            "images": len(images),
            "alignment": float(dice.mean()),
            "alignment_error": error_by_mask(dice, sources),
            "kid": distance.value,
            "kid_error": distance.error,
            "diversity": self.diversity(features, sources),
            "copies": float(np.mean(copied)),
        }

    def diversity(self, features: np.ndarray, sources: Sequence[int]) -> float:
        """Mean distance between images under one mask, where there are several, in units of real patients."""
        places, counts = np.unique(sources, return_counts=True)
        several = [features[np.asarray(sources) == place] for place in places[counts > 1]]
        return float(np.mean([self.copies.spread(part) for part in several]))

    def facts(self) -> Row:
        """What all tables of a run share."""
        return {
            "run": self.config.name,
            "masks": len(self.train),
            "real_images": len(self.real),
            "alignment_real": float(self.judge.real_dice.mean()),
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "diffusers": diffusers.__version__},
        }


def error_by_mask(values: np.ndarray, sources: Sequence[int]) -> float:
    """Standard error of a mean: images under one mask are alike, so that masks are what is counted."""
    places = np.asarray(sources)
    means = np.array([values[places == place].mean() for place in sorted(set(sources))])
    return float(means.std(ddof=1) / np.sqrt(len(means)))


# --- the plain way ---------------------------------------------------------------------------------------


def plain_way(maker: CounterpartMaker, base: Path) -> Make:
    """The pipeline of diffusers on the same networks, image by image, with everything at its default."""
    generator = maker.generator
    scheduler_config = json.loads((base / "scheduler" / "scheduler_config.json").read_text())
    scheduler = getattr(diffusers, scheduler_config["_class_name"]).from_pretrained(base / "scheduler")
    pipeline = diffusers.StableDiffusionControlNetPipeline(
        vae=generator.base.vae,
        text_encoder=generator.base.text_encoder,
        tokenizer=generator.base.tokenizer,
        unet=generator.base.unet,
        controlnet=generator.control,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    known = inspect.signature(type(pipeline).__call__).parameters
    if any(known[name].default != value for name, value in PLAIN.items()):
        raise SystemExit(f"This version of diffusers has other defaults than {PLAIN}: say so on the page.")

    def make(requests: Sequence[Request]) -> np.ndarray:
        images = [
            pipeline(
                maker.text(request),
                image=maker.conditions[[request.index]],
                generator=torch.Generator().manual_seed(maker.seed(request)),
                output_type="np",
            ).images[0]
            for request in requests
        ]
        return np.round(np.stack(images) * 255).astype(np.uint8)

    return make


def speed(bench: Bench, replicas: int) -> Row:
    """Both ways on the same masks, prompts and seeds, batch by batch in turn."""
    maker = bench.maker()
    size = bench.config.synthesis.batch_size
    base = Path(resolve(bench.config.generator.base, "pipeline"))
    ways: dict[str, Make] = {
        "mcpmix": lambda batch: make_filled(maker, batch, size),
        "plain": plain_way(maker, base),
    }
    requests = bench.requests(replicas)
    seconds, images = dict.fromkeys(ways, 0.0), {name: [] for name in ways}
    for make in ways.values():
        make(requests[:1])  # what is built or cached at the first call
    with bench.progress.track("speed", len(requests)) as advance:
        for number, batch in enumerate(bench.batches(requests)):
            in_turn = list(ways.items())
            for name, make in in_turn if number % 2 else reversed(in_turn):
                start = time.perf_counter()
                images[name].append(make(batch))
                seconds[name] += time.perf_counter() - start
            advance(len(batch))
    rows = [
        {"way": name, "images_per_second": len(requests) / seconds[name]}
        | bench.scores(np.concatenate(images[name]), requests)
        for name in ways
    ]
    settings = bench.config.synthesis.model_dump(include={"steps", "guidance", "mask_guidance", "batch_size"})
    settings |= {"scheduler": type(maker.generator.base.scheduler).__name__}
    return {"rows": rows, "times_faster": seconds["plain"] / seconds["mcpmix"], "settings": settings}


# --- tables of settings ----------------------------------------------------------------------------------


def strength(bench: Bench, replicas: int) -> Row:
    """The same masks and seeds at each strength."""
    maker, requests, rows = bench.maker(), bench.requests(replicas), []
    for value in STRENGTHS:
        maker.settings = replace(maker.settings, strength=value)
        images = bench.draw(maker, requests, f"strength {value}")
        rows.append({"strength": value} | bench.scores(images, requests))
    return {"rows": rows}


def condition(bench: Bench, replicas: int) -> Row:
    """A generator for each condition, fine-tuned alike; those that the run lacks go beside its folder."""
    requests, rows = bench.requests(replicas), []
    for use in CONDITIONS:
        tuned = bench.config.finetune.model_copy(update={"condition": use})
        own = use == bench.config.finetune.condition
        name = bench.config.name if own else f"{bench.config.name}-{use}"
        config = bench.config.model_copy(update={"finetune": tuned, "name": name})
        made = bench.run if own else run(config, bench.progress, until="generator")
        if made.dataset.digest != bench.run.dataset.digest:
            raise SystemExit(f"{config.folder} has another data set than {bench.config.folder}.")
        generator = made.generator
        images = bench.draw(bench.maker(generator, config), requests, f"condition: {use}")
        rows.append({"condition": use} | bench.scores(images, requests))
    return {"rows": rows}


# --- swapping the mask ------------------------------------------------------------------------------------


def swap(bench: Bench, replicas: int) -> Row:
    """The same seeds, prompts and depths under a frame's own mask and under that of another one.

    A depth map shows the lesion too, and contradicts a swapped mask. So depth is the same for both, filled
    under both masks if the generator was trained with filled depth; and all is done once more without depth.
    """
    use = bench.config.finetune.condition
    if use == "depth":
        raise SystemExit("swap needs a generator that sees the mask: finetune.condition is depth.")
    requests = bench.requests(replicas)
    folds = [bench.judge.fold_of[group] for group in bench.groups]
    partners = draw_partners(bench.train.masks, folds, bench.train.ids, bench.config.seed)
    ways = [swapped(bench, requests, partners, channels) for channels in dict.fromkeys((use, "mask"))]
    sources = [request.index for request in requests]
    masks = bench.train.masks
    return {
        "rows": [row for way in ways for row in way["rows"]],
        "changes": {way["condition"]: way["change"] for way in ways},
        "overlap": float(dice_of(masks[sources].astype(bool), masks[partners[sources]]).mean()),
        "diversity": bench.diversity(ways[0]["features"], sources),
    }


def swapped(bench: Bench, requests: Sequence[Request], partners: np.ndarray, channels: str) -> Row:
    """Images under both masks with these channels of the condition: where they differ, what a judge finds."""
    masks, sources = bench.train.masks, [request.index for request in requests]
    depths = torch.from_numpy(read_depths(bench.depth.folder, bench.train.ids))
    given = {"own": masks, "other": masks[partners]}
    both = (torch.from_numpy(part).float() for part in given.values())
    conditions = swapped_conditions(*both, depths, channels, bench.config.finetune.depth_under_mask)
    images = {}
    for name, shown in zip(given, conditions, strict=True):
        maker = copy.copy(bench.maker())
        maker.conditions = shown
        images[name] = bench.draw(maker, requests, f"{MASKS[name]}, {CONDITIONS[channels]}")
    groups = [bench.groups[place] for place in sources]
    rows = []
    for name, absent in (("own", "other"), ("other", "own")):
        found = bench.judge.probabilities(images[name], groups) > 0.5
        there, elsewhere = (dice_of(found, given[key][sources]) for key in (name, absent))
        rows.append(
            {
                "mask": name,
                "condition": channels,
                "images": len(found),
                "given": float(there.mean()),
                "given_error": error_by_mask(there, sources),
                "not_given": float(elsewhere.mean()),
                "not_given_error": error_by_mask(elsewhere, sources),
            }
        )
    return {
        "condition": channels,
        "rows": rows,
        "change": where_changed(images["own"], images["other"], masks[sources], masks[partners[sources]]),
        "features": bench.copies.features(images["own"]),
    }


# --- the bank ---------------------------------------------------------------------------------------------


def bank(bench: Bench, _: int) -> Row:
    """The images that the run trains with, against all that were tried and against real ones."""
    pairs, judge = bench.run.pairs, bench.run.judge
    tried = read_rows(pairs.folder)
    admitted = [row for row in tried if row["admitted"]]
    place = {name: index for index, name in enumerate(bench.train.ids)}
    requests = [Request(place[row["parent"]], row["replica"]) for row in admitted]
    images = images_of(admitted, pairs.folder)
    return {"rows": [bench.scores(images, requests)]} | bank_facts(tried, judge)


def bank_text(result: Row) -> str:
    """Admission in sentences."""
    alignment = result["alignment"]
    share = alignment["admitted"] / alignment["real"]
    reached = "reached" if share >= ALIGNED else "not reached"
    return (
        f"Tried {result['tried']} images, admitted {result['admitted']}, for {result['masks']} masks; "
        f"rejected for: {reasons_text(result['reasons'])}. Alignment of all tried "
        f"{alignment['tried']:.3f}, of the admitted {alignment['admitted']:.3f}: {share:.2f} of what the "
        f"judge reaches on real images (asked for: {ALIGNED:g}, {reached}); against the masks of other "
        f"patients it reaches {alignment['chance']:.3f} there. Admitted images were chosen by the judge that "
        "scores them here; all tried are the fairer figure."
    )


# --- what is written -------------------------------------------------------------------------------------

WAYS = {"mcpmix": "mcpmix", "plain": "diffusers, image by image"}
CONDITIONS = {"both": "mask and depth", "mask": "mask only", "depth": "depth only"}
MASKS = {"own": "its own mask", "other": "another mask"}
COLUMNS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "way": ("", lambda row: WAYS[row["way"]]),
    "strength": ("strength", lambda row: f"{row['strength']:.1f}"),
    "condition": ("condition", lambda row: CONDITIONS[row["condition"]]),
    "mask": ("image made under", lambda row: MASKS[row["mask"]]),
    "given": ("Dice, that mask ↑", lambda row: f"{row['given']:.3f} ± {row['given_error']:.3f}"),
    "not_given": ("Dice, the other ↓", lambda row: f"{row['not_given']:.3f} ± {row['not_given_error']:.3f}"),
    "images_per_second": ("images/s", lambda row: f"{row['images_per_second']:.2f}"),
    "alignment": ("alignment ↑", lambda row: f"{row['alignment']:.3f} ± {row['alignment_error']:.3f}"),
    "kid": ("KID ↓", lambda row: f"{row['kid']:.3f} ± {row['kid_error']:.3f}"),
    "diversity": ("diversity", lambda row: f"{row['diversity']:.2f}"),
    "copies": ("copies", lambda row: f"{100 * row['copies']:.0f} %"),
}  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown of the columns that the rows have."""
    columns = [column for name, column in COLUMNS.items() if name in rows[0]]
    lines = [[heading for heading, _ in columns], ["---"] * len(columns)]
    lines += [[text(row) for _, text in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(part: str, result: Row) -> str:
    """A part of the page."""
    rows, facts = result["rows"], result["facts"]
    text = (
        f"{rows[0]['images']} images under {facts['masks']} masks in each row; ± is a standard error over "
        "masks, for KID over images. On "
        f"real images of patients that it has not seen, the judge reaches {facts['alignment_real']:.3f}."
    )
    if part == "speed":
        ours, plain = rows
        settings = result["settings"]
        better = ours["alignment"] >= plain["alignment"] and ours["kid"] <= plain["kid"]
        text = (
            f"mcpmix ({settings['steps']} steps, guidance {settings['guidance']:g}, mask guidance "
            f"{settings['mask_guidance']:g}, batches of {settings['batch_size']}) is "
            f"{result['times_faster']:.1f} times faster than the pipeline of "
            f"diffusers, image by image as it comes ({settings['scheduler']}, {PLAIN['num_inference_steps']} "
            f"steps, guidance {PLAIN['guidance_scale']:g}), "
            f"{'at' if better else 'but not at'} equal or better alignment and KID. " + text
        )
    if part == "swap":
        text = f"{text} {swap_text(result)}"
    if part == "bank":
        text = f"{text} {bank_text(result)}"
    return f"{text}\n\n{table(rows)}\n\nWritten by `python benchmarks/synthesis.py {part}`."


def swap_text(result: Row) -> str:
    """What swapping and other seeds did, in sentences."""
    diversity = result["diversity"]
    changes = "; ".join(
        f"with {CONDITIONS[name]} {100 * change['share']:.0f} percent of the change lies inside the two "
        f"masks ({100 * change['area']:.0f} percent of the image), {change['concentration']:.1f} times as "
        "much on a pixel as outside"
        for name, change in result["changes"].items()
    )
    return (
        "Each image is made twice with the same seed and prompt, under its own mask and under that of "
        f"another frame (mean Dice of the two masks {result['overlap']:.2f}). Where they differ: {changes}. "
        f"Different seeds under one mask are {diversity:.2f} of the distance between real images of "
        f"different patients apart in phi (asked for: {ENOUGH:g}, "
        f"{'' if diversity >= ENOUGH else 'not '}reached)."
    )


PARTS: dict[str, Callable[[Bench, int], Row]] = {
    "speed": speed,
    "strength": strength,
    "condition": condition,
    "swap": swap,
    "bank": bank,
}


def main() -> None:
    """Measure one part, store and publish it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "demo", help="a run's folder")
    parser.add_argument("--replicas", type=int, default=4, help="seeds per mask; two or more")
    parser.add_argument("--trial", action="store_true", help="print only, leave results and documents alone")
    parser.add_argument("overrides", nargs="*", help="settings to change, as synthesis.steps=12")
    arguments = parser.parse_intermixed_args()
    if arguments.replicas < 2:
        parser.error("--replicas must be 2 or more: diversity is a distance between images under one mask")
    place = [f"output={arguments.run.resolve().parent}", f"name={arguments.run.name}"]
    config = load_config(arguments.run / "config.yaml", [*place, *arguments.overrides])
    with shown_progress() as progress:
        bench = Bench(config, progress)
        result = PARTS[arguments.part](bench, arguments.replicas) | {"facts": bench.facts()}
    text = markdown(arguments.part, result)
    print(text)
    if not arguments.trial:
        known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(known | {arguments.part: result}, indent=1) + "\n", encoding="utf-8")
        fill(PAGE, f"synthesis-{arguments.part}", text)


if __name__ == "__main__":
    main()
