"""A grid of seconds, and an engine that runs its tasks in this process."""

from mcpmix.bench.grid import Grid
from mcpmix.core.device import setup
from mcpmix.core.errors import TrainingError


class Here:
    """Runs tasks one after the other; remembers their names."""

    def __init__(self):
        self.ran = []

    def run(self, tasks, progress, *, wide=False):
        for name, task in tasks.items():
            self.ran.append(name)
            try:
                yield name, task(runtime=setup("cpu", "float32", 1, True), progress=progress)
            except Exception as error:
                yield name, error


def fails_with_seed_0(run):
    """`train.run`, but for one seed of each arm."""

    def fail(config, inputs, arm, seed, *rest):
        if seed == 0:
            raise TrainingError("The loss is nan.")
        return run(config, inputs, arm, seed, *rest)

    return fail


def toy_grid(make_config, output, **changes):
    """Two seeds of four arms on a few phantom frames, and of one arm with half of the labels."""
    base = make_config(output).model_dump(mode="json", exclude={"name", "output"})
    base["data"]["phantom"] |= {"test_patients": 3}
    world = {"train_patients": 1, "validation_patients": 1, "test_patients": 1, "known_frames_per_patient": 0}
    grid = {
        "name": "toy",
        "base": base,
        "labels": [2, "all"],
        "arms": ["full-sup", "cutmix", "mcpmix", "mcpmix-rla"],
        "seeds": [0, 1],
        "cells": [{"labels": ["all"]}, {"labels": [2], "arms": ["full-sup"]}],
        "transfer": {"elsewhere": {"seed": 11, "data": {"phantom": world}}},
        "tables": [
            {"kind": "mixing", "labels": ["all"]},
            {"kind": "ablation", "labels": ["all"], "published": "kvasir-seg"},
            {"kind": "boundary", "part": "known", "labels": ["all"]},
            {"kind": "mixing", "name": "transfer", "part": "elsewhere", "labels": ["all"]},
            "pairs",
        ],
        "figures": [
            {"kind": "distribution", "labels": ["all"]},
            {"kind": "gates", "labels": ["all"]},
            {"kind": "cases", "labels": ["all"]},
            "labels",
            {"kind": "cost", "labels": ["all"]},
            {"kind": "gradients", "labels": ["all"], "epochs": 2, "arms": ["full-sup", "cutmix"]},
        ],
    }
    return Grid.model_validate(grid | changes)
