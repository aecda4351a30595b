"""Curves and scores: the logs of trainings as they grow, and the figures of single images."""

import csv
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.data.splits import KNOWN
from mcpmix.studio.runs import RunView

_PARTS = {"test": "scores.csv", KNOWN: "scores-known.csv"}
_MOST_BYTES = 2**21  # of one log in one answer; the rest comes with the next
_DRAWN = ("loss", "loss_real", "loss_mixed", "s", "rho", "s_prior", "rho_prior", "discrepancy", "tau")


def cell_name(arm: str, seed: int) -> str:
    """`mcpmix:0`: a training in requests and answers."""
    return f"{arm}:{seed}"


# --- curves -------------------------------------------------------------------------------------------------


def new_rows(run: RunView, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What the logs of all trainings have gained.

    Args:
        known: by the name of a training, the mark that the last answer gave for it.

    Returns:
        By name: the new `mark`, the new rows, and whether they start over (`fresh`), because the log was
        rewritten: a resumed training drops the epochs that it is about to repeat.
    """
    found = {}
    for (arm, seed), folder in run.cells("segmenter").items():
        name = cell_name(arm, seed)
        answer = _read_on(folder / "log.jsonl", known.get(name, ""))
        if answer is not None:
            found[name] = answer
    return found


def _read_on(path: Path, mark: str) -> dict[str, Any] | None:
    """Complete rows after a mark, which is the file's number and a place in it."""
    inode, _, place = mark.partition("-")
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            fresh = inode != str(about.st_ino) or not place.isdecimal() or int(place) > about.st_size
            start = 0 if fresh else int(place)
            file.seek(start)
            content = file.read(_MOST_BYTES)
    except OSError:  # not there yet, or just being renamed
        return None
    content = content[: content.rfind(b"\n") + 1]
    rows = [_drawn(json.loads(line)) for line in content.split(b"\n") if line]
    return {"mark": f"{about.st_ino}-{start + len(content)}", "fresh": fresh, "rows": rows}


def _drawn(row: Mapping[str, Any]) -> dict[str, float | None]:
    """What curves show of an epoch; JSON has no NaN, so what is not finite becomes None."""
    values = {name: row[name] for name in _DRAWN if name in row}
    values |= {"dsc": row["validation"]["dsc"]} if "validation" in row else {}
    kept = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
    return {"epoch": int(row["epoch"]), **kept}


# --- scores of single images --------------------------------------------------------------------------------


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
                values.setdefault(row["id"], {}).setdefault(arm, []).append(float(row[metric]))
    rows = [
        {"id": name, "values": {arm: _mean(found) for arm, found in arms.items()}}
        for name, arms in values.items()
    ]
    return {"metrics": metrics, "images": rows}


def _mean(values: list[float]) -> float | None:
    defined = [value for value in values if math.isfinite(value)]
    return fmean(defined) if defined else None
