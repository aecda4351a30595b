"""Which counterparts the bank admits: well aligned, not a copy, and exposed like real images."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.pixels import Pixels
from mcpmix.data.augment import LUMA
from mcpmix.data.index import Arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.copies import CopyCheck, copy_problems
from mcpmix.generator.judge import Judge, load_judge
from mcpmix.generator.ledger import Row, kind_of
from mcpmix.networks.features import load_features

Verdict = tuple[dict[str, float | str | None], list[str]]
"""What was measured on an image, for the ledger, and why it is rejected; without a reason it is admitted."""

_WHITE = 250 / 255  # brighter counts as burnt out
_MORE_CLIPPED = 0.2  # share of pixels that may be burnt out beyond what real images have, at tolerance 1
_DIGITS = 6  # of scores in the ledger
_AVERAGED = ("alignment", "distance_source", "distance_train", "distance_held_out")


def expose(images: Pixels) -> list[dict[str, float]]:
    """Of B,S,S,3 uint8 images: `mean` grey, its `spread` (0: blank), and the share of `clipped` pixels."""
    grey = (image.astype(np.float64) @ np.array(LUMA) / 255 for image in images)  # large, so one by one
    return [
        {"mean": float(row.mean()), "spread": float(row.std()), "clipped": float((row >= _WHITE).mean())}
        for row in map(np.ravel, grey)
    ]


def exposure_limits(images: Pixels, tolerance: float) -> dict[str, float]:
    """Limits around real images, B,S,S,3 uint8.

    Args:
        images: real ones, at least one.
        tolerance: how far beyond the extremes of the real images, 0 to 1. 0: no further than they go; 1:
            everything. At 0.5 half the mean or spread of the darkest or flattest real image is allowed.

    Returns:
        Mean grey of the `darkest` and `brightest` image, spread of the `flattest`, largest share `clipped`.
    """
    real = expose(images)
    return {
        "darkest": min(row["mean"] for row in real) * (1 - tolerance),
        "brightest": 1 - (1 - max(row["mean"] for row in real)) * (1 - tolerance),
        "flattest": min(row["spread"] for row in real) * (1 - tolerance),
        "clipped": max(row["clipped"] for row in real) + _MORE_CLIPPED * tolerance,
    }


def exposure_problem(exposure: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """Why an image is rejected; empty if it is not."""
    if exposure["spread"] < limits["flattest"]:
        return "blank"
    if exposure["mean"] < limits["darkest"]:
        return "too dark"
    if exposure["mean"] > limits["brightest"]:
        return "too bright"
    return "burnt out" if exposure["clipped"] > limits["clipped"] else ""


def open_admission(
    config: Config,
    judge: Path,
    arrays: Arrays,
    groups: Sequence[str],
    unseen: Arrays,
    device: torch.device,
    *,
    copies: bool = True,
) -> "Admission":
    """The configured admission, by the judge in a folder.

    Args:
        arrays: training images and masks; `groups` has the group of each.
        unseen: validation images; may be empty.
        copies: whether an image may be rejected as a copy.
    """
    settings, strength = config.synthesis.admission, config.synthesis.strength
    trained, phi = load_judge(judge, device, trust=settings.judge.network), load_features(config.rla.features)
    check = CopyCheck(phi, arrays, groups, unseen, seed=config.seed, device=device)
    return Admission(
        trained,
        check,
        arrays,
        groups,
        alignment=trained.threshold(settings.alignment_quantile),
        copy=check.limits(settings.copy_quantile if copies else 0.0, strength),
        exposure=exposure_limits(arrays.images, settings.exposure_tolerance),
    )


class Admission:
    """Judge, copy check and exposure together.

    Args:
        arrays: training images and masks; `groups` has the group of each.
        alignment: lowest Dice of the judge's mask against the true one.
        copy: lowest distances to any training image, from `CopyCheck.limits`.
        exposure: from `exposure_limits`.
    """

    def __init__(
        self,
        judge: Judge,
        copies: CopyCheck,
        arrays: Arrays,
        groups: Sequence[str],
        *,
        alignment: float,
        copy: Mapping[str, float],
        exposure: Mapping[str, float],
    ) -> None:
        self.judge, self.copies, self.arrays, self.groups = judge, copies, arrays, tuple(groups)
        self.alignment, self.copy, self.exposure = alignment, copy, exposure

    def assess(self, images: Pixels, sources: Sequence[int]) -> list[Verdict]:
        """A verdict on each of B,S,S,3 uint8 images; `sources` are the places of their training images."""
        masks, groups = self.arrays.masks[list(sources)], [self.groups[place] for place in sources]
        return self.assess_under(images, masks, groups, sources)

    def assess_under(
        self, images: Pixels, masks: Pixels, groups: Sequence[str], sources: Sequence[int | None]
    ) -> list[Verdict]:
        """A verdict on each of B,S,S,3 uint8 images under any masks B,S,S.

        Args:
            groups: as for `Judge.probabilities`; a group that is not of the training part: all networks.
            sources: as for `CopyCheck.measure`.
        """
        alignments, contrasts = self.judge.scores(images, masks, groups)
        distances = self.copies.measure(self.copies.features(images), images, sources)
        verdicts: list[Verdict] = []
        for alignment, contrast, near, light in zip(
            alignments, contrasts, distances, expose(images), strict=True
        ):
            reasons = [exposure_problem(light, self.exposure)]
            if alignment < self.alignment:
                reasons.append(f"alignment: {alignment:.2f} < {self.alignment:.2f}")
            reasons += copy_problems(near, self.copy)
            scores = {"alignment": float(alignment), "contrast": float(contrast), **near, **light}
            kept: dict[str, float | str | None] = {}
            for name, value in scores.items():
                if isinstance(value, str):
                    kept[name] = value
                else:  # JSON has no NaN
                    kept[name] = round(value, _DIGITS) if math.isfinite(value) else None
            verdicts.append((kept, [reason for reason in reasons if reason]))
        return verdicts

    def summary(self, rows: Sequence[Row], folder: Path, replicas: int) -> dict[str, Any]:
        """What the manifest says about a judged bank."""
        ids, copies = self.arrays.ids, self.copies
        admitted = [row for row in rows if row["admitted"]]
        files: dict[str, list[Path]] = defaultdict(list)
        for row in admitted:
            files[row["parent"]].append(folder / row["file"])
        spreads = [  # mean distance of counterparts of one mask from each other
            copies.spread(copies.features(np.stack([read_image(path) for path in paths])))
            for paths in files.values()
            if len(paths) > 1
        ]
        without = [name for name in ids if name not in files]
        # Real images in which the judge itself does not reach the threshold.
        unjudgeable = [name for name in ids if self.judge.real.get(name, 1.0) < self.alignment]
        wanted, warnings = len(ids) * replicas, []
        if without:
            warnings.append(
                f"no counterpart of {', '.join(without)} was admitted: training uses the real image instead, "
                "so mixing does nothing there"
            )
        if len(admitted) < wanted / 2:
            warnings.append(
                f"only {len(admitted)} of {wanted} places of the bank are filled: look at sheet.png; "
                "fine-tune longer, raise synthesis.mask_guidance or admission.tries, or lower "
                "admission.alignment_quantile"
            )
        if unjudgeable:
            warnings.append(
                f"the judge finds no lesion in the real images {', '.join(unjudgeable)} either: that their "
                "counterparts were rejected for alignment says little about them, and the bank has fewer of "
                "such lesions"
            )
        return {
            "rejected": tally(rows),
            "without": without,
            "unjudgeable": unjudgeable,
            "thresholds": {
                "alignment": self.alignment,
                "copy": copies.as_json(self.copy),
                "exposure": dict(self.exposure),
            },
            "scores": {
                **{name: _mean([row["scores"][name] for row in admitted]) for name in _AVERAGED},
                "alignment_tried": _mean([row["scores"]["alignment"] for row in rows]),
                "alignment_real": float(self.judge.real_dice.mean()),
                "alignment_chance": self.judge.chance,
                "diversity": _mean(spreads),
            },
            "warnings": warnings,
        }


def tally(rows: Iterable[Row]) -> dict[str, int]:
    """How many images each kind of reason has rejected; one image may have several."""
    kinds = Counter(kind for row in rows for kind in {kind_of(reason) for reason in row["reasons"]})
    return dict(sorted(kinds.items()))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 4) if known else None
