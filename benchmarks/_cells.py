"""Arms and seeds of a benchmark: what they read, their training and evaluation, and the file of results."""

import json
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, read_artifact, reuse
from mcpmix.segmenter import evaluate, train
from mcpmix.segmenter.arms import Inputs


def finished_inputs(run: Path) -> Inputs:
    """Data set, depth, generator and bank of a run.

    Raises:
        SystemExit: one of them is not finished.
    """
    found = {name: read_artifact(run / name) for name in ("dataset", "depth", "generator", "pairs")}
    missing = [name for name, artifact in found.items() if artifact is None]
    if missing:
        raise SystemExit(f"{run} has no finished {', '.join(missing)}: run `mcpmix synthesize` there first.")
    data = found["dataset"]
    assert data is not None
    return Inputs(data, found["depth"], found["generator"], found["pairs"])


def train_and_score(
    config: Config,
    inputs: Inputs,
    arm: str,
    seed: int,
    folder: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> tuple[Artifact, Artifact]:
    """Segmenter and evaluation of an arm and a seed below a folder; what is finished there is reused."""
    places = [folder / stage / arm / f"seed-{seed}" for stage in ("segmenter", "evaluation")]
    segmenter = reuse(places[0], train.key(config, inputs, arm, seed), progress) or train.run(
        config, inputs, arm, seed, places[0], runtime, progress
    )
    scores = reuse(places[1], evaluate.key(config, inputs.dataset, segmenter), progress) or evaluate.run(
        config, inputs.dataset, segmenter, inputs.generator, None, places[1], runtime, progress
    )
    return segmenter, scores


def read_results(path: Path, protocol: dict[str, Any]) -> dict[str, Any]:
    """The results so far, under `cells`.

    Raises:
        SystemExit: they were made under another protocol than the one wanted.
    """
    if not path.exists():
        return {"protocol": protocol, "cells": {}}
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result["protocol"] != json.loads(json.dumps(protocol)):
        raise SystemExit(
            f"{path} was made under another protocol ({result['protocol']}, now {protocol}). Take the same "
            "options, or another --result."
        )
    return result
