"""What the synthetic images of a grid are worth: admission, alignment, and the distance to real images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.bench.cells import Made
from mcpmix.bench.tables import Item, Sheet
from mcpmix.config import Config
from mcpmix.core.stage_folder import Artifact, read_artifact
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.adapt import features_of
from mcpmix.generator.admission import tally
from mcpmix.generator.ledger import Row, read_rows
from mcpmix.metrics.statistics import kid
from mcpmix.networks.features import load_features
from mcpmix.report.arms import label_of

_FEWEST = 3  # images of which KID can be estimated
_NOTE = (
    "Alignment is the Dice between the mask and what the judge finds under it; `real` is the same judge on "
    "real images of groups that it has not seen, `chance` on masks of other groups. KID ± its standard "
    "error, in the features of RLA: of the admitted images to training images, to held-out (validation) "
    "images, and of training to held-out images, for scale. Test images are not looked at."
)


def bank_facts(rows: list[Row], judge: Artifact | None) -> dict[str, Any]:
    """How many images were tried and admitted, why others were not, and how well aligned they are."""
    admitted = [row for row in rows if row["admitted"]]
    facts: dict[str, Any] = {
        "tried": len(rows),
        "admitted": len(admitted),
        # A counterpart has the mask of its parent; images of generative baselines bring masks of their own.
        "masks": len({row.get("parent", row.get("mask_sha256")) for row in admitted}),
        "reasons": tally(rows),
    }
    if judge is not None:
        facts["alignment"] = {
            "tried": mean_score(rows, "alignment"),
            "admitted": mean_score(admitted, "alignment"),
            "real": judge.manifest["counts"]["dice"],
            "chance": judge.manifest["counts"]["chance"],
        }
    return facts


def mean_score(rows: list[Row], name: str) -> float:
    """Mean of a score over ledger rows."""
    return float(np.mean([row["scores"][name] for row in rows])) if rows else float("nan")


def images_of(rows: list[Row], pairs: Path) -> np.ndarray:
    """N,S,S,3 images of ledger rows."""
    return np.stack([read_image(pairs / row["file"]) for row in rows])


def reasons_text(reasons: Mapping[str, int]) -> str:
    """Why images were rejected, in words."""
    return ", ".join(f"{name} {count}" for name, count in reasons.items()) or "none"


def measure_banks(config: Config, made: Made) -> dict[str, dict[str, Any]]:
    """The facts of a group's bank, and of the sets of its generative baselines, by what drew them.

    Each with its KID to seen and to held-out images. A group may have neither.
    """
    banks = {}
    for arm, inputs in made.inputs.items():
        if inputs.pairs is not None:
            banks["counterparts"] = inputs.pairs
        if inputs.labelled_set is not None:
            banks[label_of(arm)] = inputs.labelled_set
    if not banks:
        return {}
    dataset = next(iter(made.inputs.values())).dataset
    judge = read_artifact(config.folder / "judge") if config.synthesis.admission.enabled else None
    index, cache = DatasetIndex.read(dataset), cache_of(dataset.folder)
    phi = load_features(config.rla.features)
    train, held = (
        features_of(phi, load_arrays(index.part(part), config.data.size, cache).images)
        for part in ("train", "validation")
    )
    found = {}
    for name, bank in banks.items():
        rows = read_rows(bank.folder)
        found[name] = facts = bank_facts(rows, judge)
        admitted = [row for row in rows if row["admitted"]]
        if min(len(admitted), len(train)) >= _FEWEST and len(held) >= _FEWEST - 1:
            synthetic = features_of(phi, images_of(admitted, bank.folder))
            facts["kid"] = {
                "to training": kid(synthetic, train)._asdict(),
                "to held-out": kid(synthetic, held)._asdict(),
                "training to held-out": kid(train, held)._asdict(),
            }
    return found


def bank_sheet(title: str, found: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """A row for each bank by the names of its input group and of what drew it."""
    kids = ("to training", "to held-out", "training to held-out")
    heading = ["images", "tried", "admitted", "masks", "rejected for", "alignment, tried", "admitted", "real"]
    heading += ["chance", *(f"KID {name}" for name in kids)]
    rows = []
    for name, facts in found.items():
        alignment, distances = facts.get("alignment", {}), facts.get("kid", {})
        counts = [str(facts[key]) for key in ("tried", "admitted", "masks")]
        texts = [name, *counts, reasons_text(facts["reasons"])]
        texts += [
            f"{alignment[key]:.3f}" if alignment else "–" for key in ("tried", "admitted", "real", "chance")
        ]
        for key in kids:
            value = distances.get(key)
            texts.append(f"{value['value']:.4f} ± {value['error']:.4f}".replace("-", "−") if value else "–")
        rows.append([Item(text) for text in texts])
    return Sheet(title, heading, rows, [_NOTE])
