"""What the ledger of a bank of pairs says."""

from pathlib import Path

import numpy as np

from mcpmix.core.stage_folder import Artifact
from mcpmix.data.sample import read_image
from mcpmix.generator.admission import tally
from mcpmix.generator.bank import Row


def tries(rows: list[Row], judge: Artifact) -> Row:
    """How many images were tried and admitted, why the others were not, and how well aligned they are."""
    admitted = [row for row in rows if row["admitted"]]
    return {
        "tried": len(rows),
        "admitted": len(admitted),
        "masks": len({row["parent"] for row in admitted}),
        "reasons": tally(rows),
        "alignment": {
            "tried": mean_score(rows, "alignment"),
            "admitted": mean_score(admitted, "alignment"),
            "real": judge.manifest["counts"]["dice"],
            "chance": judge.manifest["counts"]["chance"],
        },
    }


def mean_score(rows: list[Row], name: str) -> float:
    """Mean of a score over ledger rows."""
    return float(np.mean([row["scores"][name] for row in rows]))


def images_of(rows: list[Row], pairs: Path) -> np.ndarray:
    """N,S,S,3 images of ledger rows."""
    return np.stack([read_image(pairs / row["file"]) for row in rows])


def reasons_text(reasons: dict[str, int]) -> str:
    """Why images were rejected, in words."""
    return ", ".join(f"{name} {count}" for name, count in reasons.items()) or "none"
