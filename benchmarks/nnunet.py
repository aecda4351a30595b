"""nnU-Net on 60 phantom frames: its plain trainer and ours, scored by `mcpmix evaluate`.

python benchmarks/nnunet.py FOLDER [SEEDS]

Needs the extra `nnunet`. Makes a run and its pairs, exports them, lets nnU-Net plan and preprocess, and
trains each trainer with each seed (3 by default) for 600 steps on one core, five to ten minutes per seed.
Writes results/nnunet.json and the table of docs/nnunet.md. What is finished in FOLDER is reused.

Two settings are not nnU-Net's: its plan has 8 instead of 32 features in the first stage, and batches of 8
instead of 2, which it chooses for so few images.
"""

import copy
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import mcpmix
from _markers import fill
from mcpmix.config_file import resolve_config
from mcpmix.core.files import read_json, write_json
from mcpmix.generator.pair_export import export_to_nnunet
from mcpmix.metrics import score_folder
from mcpmix.run import run

HERE = Path(__file__).parent
NAME, CONFIGURATION = "Dataset501_Phantom", "2d_small"
TRAINERS = {"nnUNetTrainer": "plain", "nnUNetTrainerMCPMix": "MCPMix", "nnUNetTrainerMCPMixRLA": "MCPMix+RLA"}
EPOCHS, ITERATIONS = 20, 30
METRICS = {"dsc": "DSC", "miou": "mIoU", "hd95": "HD95 (px)", "bf1_2": "BF1 at 2 px"}
FRAMES = {
    "train_patients": 5,
    "validation_patients": 2,
    "test_patients": 3,
    "frames_per_patient": 6,
    "test_frames_per_patient": 6,
    "known_frames_per_patient": 0,
}


def prepare(home: Path) -> None:
    """The data set with counterparts, planned and preprocessed by nnU-Net."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    if (home / "preprocessed" / NAME).exists():
        return
    data = {"size": 64, "phantom": FRAMES}
    tree = {"preset": "demo-fast", "name": "frames", "output": str(home), "data": data}
    config = resolve_config(tree, ["runtime.threads=1", "runtime.jobs=1"])
    run(config, until="pairs")
    export_to_nnunet(config.folder, NAME, raw=home / "raw", preprocessed=home / "preprocessed")
    os.environ.update(nnUNet_n_proc_DA="1")  # planning fails with 0
    api.extract_fingerprints([501], num_processes=1)
    api.plan_experiments([501])
    api.preprocess([501], configurations=["2d"], num_processes=[1])
    file = home / "preprocessed" / NAME / "nnUNetPlans.json"
    plans = read_json(file)
    architecture = copy.deepcopy(plans["configurations"]["2d"]["architecture"])
    architecture["arch_kwargs"]["features_per_stage"] = [8, 16, 32, 64, 64]
    small = {"inherits_from": "2d", "batch_size": 8, "architecture": architecture}
    plans["configurations"][CONFIGURATION] = small
    write_json(file, plans)


def train(home: Path, name: str, seed: int) -> dict[str, object]:
    """Train, predict the test images, and score them; nnU-Net seeds nothing itself."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.run.run_training import get_trainer_from_args

    os.environ.update(nnUNet_results=str(home / f"results-{seed}"))
    np.random.seed(seed)
    torch.manual_seed(seed)
    trainer = get_trainer_from_args("501", CONFIGURATION, 0, name, device=torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = (
        EPOCHS,
        ITERATIONS,
        3,
    )
    start = time.monotonic()
    trainer.run_training()
    seconds = time.monotonic() - start
    predictor = nnUNetPredictor(
        device=torch.device("cpu"), perform_everything_on_device=False, allow_tqdm=False
    )
    predictor.initialize_from_trained_model_folder(trainer.output_folder_base, (0,))
    out = Path(trainer.output_folder) / "test"
    out.mkdir(exist_ok=True)
    predictor.predict_from_files_sequential(str(home / "raw" / NAME / "imagesTs"), str(out))
    scores = score_folder(home / "raw" / NAME / "labelsTs", out).method
    log = trainer.logger.get_checkpoint()
    gates = {key: [round(float(value), 4) for value in log[key]] for key in log if key.startswith("mcpmix_")}
    found = {key: scores.metrics[key].mean for key in METRICS}
    return {
        "trainer": name,
        "seed": seed,
        "seconds": round(seconds, 1),
        **found,
        "missed": scores.frames["missed"],
        **gates,
    }


def table(rows: list[dict[str, object]]) -> str:
    """Mean over seeds, with standard deviation if there are several, in Markdown."""
    lines = ["| trainer | " + " | ".join(METRICS.values()) + " | lesions missed, of 18 |"]
    lines.append("|---|" + "---|" * (len(METRICS) + 1))
    for name, label in TRAINERS.items():
        mine = [row for row in rows if row["trainer"] == name]
        cells = [label]
        for key in (*METRICS, "missed"):
            values = np.array([row[key] for row in mine], dtype=float)
            spread = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 and key in METRICS else ""
            cells.append(f"{values.mean():.1f}{spread}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(home: Path, seeds: int) -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    for kind in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{kind}"] = str(home / kind)
    trainers = Path(mcpmix.__file__).parent / "segmenter" / "nnunet_trainers"
    os.environ.update(nnUNet_extTrainer=str(trainers))
    prepare(home)
    os.environ.update(nnUNet_n_proc_DA="0")  # batches are made in this process, so that seeds hold
    results = HERE / "results" / "nnunet.json"
    rows = []
    for seed in range(seeds):
        for name in TRAINERS:
            kept = home / f"row-{name}-{seed}.json"
            if not kept.exists():
                write_json(kept, train(home, name, seed))
            rows.append(json.loads(kept.read_text(encoding="utf-8")))
        write_json(results, {"epochs": EPOCHS, "iterations": ITERATIONS, "frames": FRAMES, "rows": rows})
    fill(HERE.parent / "docs" / "nnunet.md", "table", table(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
