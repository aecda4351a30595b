"""What trainings leave: logs as they grow, scores of single images, and segmenters to try on an own image."""

import csv
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from mcpmix.core.errors import DataError
from mcpmix.data.sample import read_image
from mcpmix.data.splits import KNOWN
from mcpmix.studio.pictures import to_base64
from mcpmix.studio.reading import look_up
from mcpmix.studio.runs import Runs, RunView

if TYPE_CHECKING:
    from mcpmix.segmenter.predict import Predictor

MOST_BYTES = 25_000_000
"""Of an upload."""
_MOST_PIXELS = 40_000_000  # a map of probabilities takes several bytes for each
_MOST_READ = 2**21  # bytes of one log in one answer; the rest comes with the next
_PARTS = {"test": "scores.csv", KNOWN: "scores-known.csv"}
_DRAWN = ("loss", "loss_real", "loss_mixed", "s", "rho", "s_prior", "rho_prior", "discrepancy", "tau")


def cell_name(arm: str, seed: int) -> str:
    """`mcpmix:0`: a training in requests and answers."""
    return f"{arm}:{seed}"


def new_rows(run: RunView, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What the logs of all trainings have gained.

    Args:
        known: by the name of a training, the mark that the last answer gave for it: the file's number and a
            place in it.

    Returns:
        By name: the new `mark`, the new rows, and whether they start over (`fresh`), because the log was
        rewritten: a resumed training drops the epochs that it is about to repeat.
    """
    found = {}
    for (arm, seed), folder in run.cells("segmenter").items():
        name = cell_name(arm, seed)
        inode, _, place = known.get(name, "").partition("-")
        try:
            with (folder / "log.jsonl").open("rb") as file:
                about = os.fstat(file.fileno())
                fresh = inode != str(about.st_ino) or not place.isdecimal() or int(place) > about.st_size
                start = 0 if fresh else int(place)
                file.seek(start)
                content = file.read(_MOST_READ)
        except OSError:  # not there yet, or just being renamed
            continue
        content = content[: content.rfind(b"\n") + 1]
        rows = []
        for row in (json.loads(line) for line in content.split(b"\n") if line):
            values = {key: row[key] for key in _DRAWN if key in row}
            values |= {"dsc": row["validation"]["dsc"]} if "validation" in row else {}
            # JSON has no NaN, so what is not finite becomes None.
            plain = {key: float(value) if math.isfinite(value) else None for key, value in values.items()}
            rows.append({"epoch": int(row["epoch"]), **plain})
        found[name] = {"mark": f"{about.st_ino}-{start + len(content)}", "fresh": fresh, "rows": rows}
    return found


def image_scores(run: RunView, part: str, metric: str, seed: str) -> dict[str, Any]:
    """The scores of all images of a part by all arms that are evaluated.

    Args:
        seed: a number; empty: the mean over seeds.
    """
    if part not in _PARTS:
        raise DataError(f"The part is {part!r}; expected one of {', '.join(_PARTS)}.")
    values: dict[str, dict[str, list[float]]] = {}
    metrics: list[str] = []
    for (arm, number), artifact in run.finished_cells("evaluation").items():
        path = artifact / _PARTS[part]
        if seed not in ("", str(number)) or not path.exists():
            continue
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            metrics = [name for name in table.fieldnames or () if name != "id"]
            if metric not in metrics:
                raise DataError(f"The metric is {metric!r}; expected one of {', '.join(metrics)}.")
            for row in table:
                defined = values.setdefault(row["id"], {}).setdefault(arm, [])
                if math.isfinite(value := float(row[metric])):
                    defined.append(value)
    images = []
    for name, arms in values.items():
        means = {arm: fmean(defined) if defined else None for arm, defined in arms.items()}
        images.append({"id": name, "values": means})
    return {"metrics": metrics, "images": images}


def segmenters_of(run: RunView) -> list[dict[str, str]]:
    """The finished segmenters of a run: a name for requests, and a label for readers."""
    found = []
    for (arm, seed), artifact in run.finished_cells("segmenter").items():
        dsc = artifact.manifest.get("counts", {}).get("validation_dsc")
        score = f", validation DSC {dsc:.1f}" if isinstance(dsc, int | float) else ""
        label = f"{run.name}: {run.label(arm)}, seed {seed}{score}"
        found.append({"name": f"{run.id}:{cell_name(arm, seed)}", "label": label})
    return found


class Predictions:
    """Segments one image at a time, and keeps none; the last segmenter stays in memory."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self._lock = runs, Lock()
        self._last: tuple[str, Predictor] | None = None

    def predict(self, segmenter: str, content: bytes, name: str) -> dict[str, Any]:
        """Probabilities and mask (at 0.5) of an image as PNGs in base64, with their size.

        Raises:
            DataError: the image is not one, too large, or damaged.
            AbsentError: there is no such segmenter.
        """
        identity, _, cell = segmenter.partition(":")
        run = self.runs.get(identity)
        found = {cell_name(*key): item for key, item in run.finished_cells("segmenter").items()}
        artifact = look_up(found, cell)
        label = Path(name).name[:100] or "the image"
        if not content:
            raise DataError("Nothing was sent. Expected an image file.")
        with self._lock:  # decoding and segmenting take memory: one after the other
            image = read_image(Path(label), content, most_pixels=_MOST_PIXELS)
            if self._last is None or self._last[0] != artifact.digest:
                from mcpmix.segmenter.predict import load_segmenter  # torch takes seconds to load

                self._last = artifact.digest, load_segmenter(artifact.folder)
            probabilities = self._last[1].predict(image)
            if probabilities.ndim == 3:  # several classes: that it is any of them
                probabilities = 1 - probabilities[0]
        levels = np.round(probabilities * 255).astype(np.uint8)
        mask = (probabilities >= 0.5).astype(np.uint8) * np.uint8(255)
        return {
            "width": image.shape[1],
            "height": image.shape[0],
            "share": float(mask.mean() / 255),
            "highest": float(probabilities.max()),
            "probabilities": to_base64(levels),
            "mask": to_base64(mask),
        }
