"""What mixing makes of bad pairs: a bank degraded on purpose, with fixed mixing, fixed schedules and RLA.

    mcpmix demo                                               # or another run with a bank of pairs
    python benchmarks/degraded_pairs.py --run runs/demo

In copies of the bank a share of the counterparts shows the lesion of another mask, or is blurred. Every arm
is trained on every bank with the recipe of the run, and scored on all test parts of its data set. What is
finished is kept, an interrupted training continues: run the same command again. Writes
benchmarks/results/degraded_pairs.json and the part of docs/rla.md; `--table` only does the latter.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from _cells import finished_inputs, read_results, train_and_score
from _degrade import Kind, degrade
from _markers import fill
from mcpmix.cli.screen import shown_progress
from mcpmix.config import Config
from mcpmix.config_file import load_config
from mcpmix.core.device import core_count, setup, worker_count
from mcpmix.core.files import write_json
from mcpmix.core.progress import Progress
from mcpmix.core.side_by_side import side_by_side
from mcpmix.core.stage_folder import Artifact
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.splits import ALL_PARTS, KNOWN
from mcpmix.report.arms import label_of
from mcpmix.report.tables import read_summary, spread_of, spread_text
from mcpmix.segmenter.arms import Inputs
from mcpmix.segmenter.evaluate import TESTED

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "degraded_pairs.json"
PAGE = ROOT / "docs" / "rla.md"
REAL, FIXED, RLA = "full-sup", "mcpmix", "mcpmix-rla"
ARMS = (REAL, "append", FIXED, "mcpmix-stepwise", "mcpmix-cosine", RLA)
KINDS: tuple[Kind, ...] = ("wrong", "blurred")
CLEAN = "clean"
TESTS = {"test": "unseen patients", KNOWN: "new frames of known patients"}

Cell = dict[str, Any]
Cells = dict[str, dict[str, dict[str, Cell]]]
"""Bank to arm to seed to what came out."""


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run with a finished bank of pairs")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "degraded-pairs", help="where all goes")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--percent", type=int, nargs="+", default=[25, 50, 100], help="besides 0")
    parser.add_argument("--epochs", type=int, help="those of the run, if not given")
    parser.add_argument("--sigma", type=float, default=4.0, help="of the blur, in pixels")
    parser.add_argument("--jobs", type=int, default=0, help="trainings side by side; 0: one per core")
    parser.add_argument("--table", action="store_true", help="only write the table from the results")
    return parser.parse_args()


def recipe(options: argparse.Namespace) -> Config:
    """The configuration of the run, with what the options change."""
    given = {"runtime.jobs": options.jobs, "synthesis.source": "bank", "synthesis.refresh": 0}
    if options.epochs is not None:
        given["train.epochs"] = options.epochs
    return load_config(options.run / "config.yaml", [f"{name}={value}" for name, value in given.items()])


def make_banks(config: Config, inputs: Inputs, options: argparse.Namespace) -> dict[str, Artifact]:
    """The banks by name; the clean one, which both kinds share, is that of the run itself."""
    assert inputs.pairs is not None
    records = DatasetIndex.read(inputs.dataset).part("train")
    arrays = load_arrays(records, config.data.size, cache_of(inputs.dataset.folder))
    banks = {CLEAN: inputs.pairs}
    for kind in options.kinds:
        for percent in options.percent:
            name = f"{kind}-{percent}"
            banks[name] = degrade(
                inputs.pairs,
                arrays,
                kind,
                percent,
                sigma=options.sigma,
                seed=config.seed,
                out=options.work / "pairs" / name,
            )
    return banks


def protocol(config: Config, inputs: Inputs, options: argparse.Namespace) -> dict[str, Any]:
    """What all cells of the table share."""
    counts = inputs.dataset.manifest["counts"]
    assert inputs.pairs is not None
    return {
        "content": counts["content"],
        "frames": {part: counts[part] for part in ALL_PARTS if part in counts},
        "pairs": inputs.pairs.digest,
        "images": inputs.pairs.manifest["counts"]["images"],
        "size": config.data.size,
        "segmenter": [config.segmenter.name, config.segmenter.variant],
        "train": {name: getattr(config.train, name) for name in ("epochs", "batch_size", "learning_rate")},
        "sigma": options.sigma,
    }


def train_bank(
    config: Config, inputs: Inputs, cells: list[tuple[str, int]], folder: Path, progress: Progress
) -> dict[tuple[str, int], Cell]:
    """Train and score arms with seeds on one bank, side by side."""
    settings = config.runtime
    device = setup(settings.device, settings.precision, settings.threads, settings.deterministic).device
    workers = worker_count(settings.jobs, device, len(ARMS))  # not of those left: the same rounding always
    threads = max(1, (settings.threads or core_count()) // workers)
    tasks = {
        f"{folder.name} {arm} seed {seed}": partial(train_and_score, config, inputs, arm, seed, folder)
        for arm, seed in cells
    }
    runtime = partial(setup, settings.device, settings.precision, threads, settings.deterministic)
    found = side_by_side(tasks, workers, runtime, progress).values()
    return {cell: collect(*artifacts) for cell, artifacts in zip(cells, found, strict=True)}


def collect(segmenter: Artifact, scores: Artifact) -> Cell:
    """DSC on each test part, and what the log says of the gates: means over the epochs."""
    counts, epochs = segmenter.manifest["counts"], JsonLines(segmenter / "log.jsonl").rows()
    names = [name for name in ("s", "rho", "discrepancy") if name in epochs[0]]
    return {
        "dsc": {
            part: read_summary(path)["dsc"]["mean"]
            for part, ending in TESTED.items()
            if (path := scores / f"summary{ending}.json").exists()
        },
        "gates": {name: fmean(row[name] for row in epochs if name in row) for name in names},
        "best_epoch": counts["best_epoch"],
        "warnings": counts["warnings"],
    }


# --- the page -----------------------------------------------------------------------------------------------


def place_of(bank: str) -> tuple[int, int]:
    """Where a bank stands in the table: by kind, then by percent."""
    kind, _, percent = bank.partition("-")
    return (CLEAN, *KINDS).index(kind), int(percent or 0)


def words_of(bank: str) -> str:
    """A bank for readers."""
    kind, percent = place_of(bank)
    return ("all as they are", f"{percent} % with a wrong lesion", f"{percent} % blurred")[kind]


def by_seed(cells: Cells, bank: str, arm: str, test: str) -> dict[str, float]:
    """DSC of an arm; real images alone do not depend on the bank."""
    found = cells[CLEAN if arm == REAL else bank].get(arm, {})
    return {seed: cell["dsc"][test] for seed, cell in sorted(found.items()) if test in cell["dsc"]}


def gain_text(cells: Cells, bank: str, other: str, test: str) -> tuple[str, str]:
    """RLA minus another arm with the same seed: mean and spread, and how often it is above 0."""
    learnt, against = (by_seed(cells, bank, arm, test) for arm in (RLA, other))
    gains = [learnt[seed] - against[seed] for seed in learnt if seed in against]
    return spread_text(spread_of(gains), signed=True), f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def table(cells: Cells, test: str) -> str:
    """A row for each bank: DSC of all arms, RLA minus fixed mixing, and the mean gates of RLA."""
    arms = [arm for arm in ARMS if any(arm in found for found in cells.values())]
    head = ["counterparts", *map(label_of, arms), "RLA − fixed", "seeds ahead", "mean s", "mean ρ"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for bank in sorted(cells, key=place_of):
        means = [spread_text(spread_of(by_seed(cells, bank, arm, test).values())) for arm in arms]
        gates = [cell["gates"] for cell in cells[bank].get(RLA, {}).values()]
        shares = [f"{fmean(each[name] for each in gates):.2f}" if gates else "–" for name in ("s", "rho")]
        lines.append([words_of(bank), *means, *gain_text(cells, bank, FIXED, test), *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdict(cells: Cells, test: str) -> str:
    """How RLA stands where most counterparts of a kind are bad."""
    sentences = []
    for kind in range(1, 1 + len(KINDS)):
        banks = [bank for bank in cells if place_of(bank)[0] == kind and RLA in cells[bank]]
        if not banks:
            continue
        worst = max(banks, key=place_of)
        (fixed, ahead), (real, above) = (gain_text(cells, worst, arm, test) for arm in (FIXED, REAL))
        sentences.append(
            f"{words_of(worst)}: RLA minus fixed mixing is {fixed} points ({ahead} seeds ahead), and "
            f"RLA minus real images alone {real} ({above} ahead)."
        )
    return " ".join(sentences)


def markdown(result: dict[str, Any]) -> str:
    """The part of the page."""
    setting, cells, banks = result["protocol"], result["cells"], result["banks"]
    all_cells = [cell for arms in cells.values() for found in arms.values() for cell in found.values()]
    seeds = {seed for arms in cells.values() for found in arms.values() for seed in found}
    overlaps = [bank["overlap"] for bank in banks.values() if bank["overlap"] is not None]
    overlap = f" (mean Dice with the label {fmean(overlaps):.2f})" if overlaps else ""
    parts = [
        f"DSC, mean ± standard deviation over {len(seeds)} seeds; {setting['frames']['train']} annotated "
        f"frames with {setting['images']} admitted counterparts, {setting['train']['epochs']} epochs in "
        f"every arm. A wrong lesion is that of a counterpart of another mask{overlap}, the blur a Gaussian "
        f"of {setting['sigma']:g} pixels in images of {setting['size']}."
    ]
    for test, words in TESTS.items():
        if any(test in cell["dsc"] for cell in all_cells):
            parts += [f"On {words}:", table(cells, test), verdict(cells, test)]
    return "\n\n".join(part for part in [*parts, "Written by `python benchmarks/degraded_pairs.py`."] if part)


def main() -> None:
    """Degrade, train bank by bank what is missing, store the results of each, write the page."""
    options = parse()
    if options.table:
        fill(PAGE, "degraded-pairs", markdown(json.loads(options.result.read_text(encoding="utf-8"))))
        return
    if options.run is None:
        print("Skipped: a run with a bank of pairs is not given (--run).")
        return
    inputs, config = finished_inputs(options.run), recipe(options)
    result = read_results(options.result, protocol(config, inputs, options))
    for name, bank in make_banks(config, inputs, options).items():
        cells = [
            (arm, seed) for seed in options.seeds for arm in options.arms if arm != REAL or name == CLEAN
        ]
        cells = [(arm, seed) for arm, seed in cells if str(seed) not in kept(result, name, arm)]
        with shown_progress() as progress:
            progress.say(f"counterparts: {words_of(name)}; {len(cells)} trainings to do")
            found = train_bank(config, replace(inputs, pairs=bank), cells, options.work / name, progress)
        for (arm, seed), cell in found.items():
            kept(result, name, arm)[str(seed)] = cell
        facts = {fact: bank.manifest["counts"].get(fact) for fact in ("images", "spoilt", "overlap")}
        result.setdefault("banks", {})[name] = facts
        options.result.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.result, result)
    if options.result == RESULT:
        fill(PAGE, "degraded-pairs", markdown(result))
    print(markdown(result))


def kept(result: dict[str, Any], bank: str, arm: str) -> dict[str, Cell]:
    """The finished cells of an arm on a bank by seed, to read and to add to."""
    found: dict[str, Cell] = result["cells"].setdefault(bank, {}).setdefault(arm, {})
    return found


if __name__ == "__main__":
    main()
