"""A grid of seconds, an engine that runs its tasks in this process, and a grid that was never trained."""

from mcpmix.bench.cells import Made, Outcome, Scored
from mcpmix.bench.grid import Grid, expand
from mcpmix.core.device import setup
from mcpmix.core.errors import TrainingError
from mcpmix.core.stage_folder import Artifact, StageKey, workspace
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.tables import write_csv
from mcpmix.metrics import score_keys
from mcpmix.segmenter.arms import Inputs


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


IMAGES = [f"i{number}" for number in range(6)]


def scored_by_hand(
    folder, value, *, arms=("full-sup", "cutmix", "mcpmix-rla"), seeds=(0, 1), train=4, **changes
):
    """A grid whose cells have made-up scores: `value(cell, image)` is the value of every metric.

    Its six test images belong to three groups; nothing but scores is there.
    """
    grid = {"name": "t", "base": {"preset": "tiny"}, "arms": arms, "seeds": seeds, **changes}
    found = Outcome(expand(Grid.model_validate(grid), folder))
    records = []
    for place, name in enumerate(IMAGES):
        files = (folder / f"{name}.jpg", folder / f"{name}.png")
        records.append(Record(name, *files, f"g{place // 2}", "x", "test", "0", "0", 9, 9, ""))
    for number, name in enumerate(found.plan.groups):
        with workspace(folder / "data" / str(number), StageKey("dataset", {})) as space:
            DatasetIndex(tuple(records)).write(space.folder)
            data = space.finish(train=train * (number + 1))
        found.groups[name] = Made(dict.fromkeys(arms, Inputs(data)), "")
    for cell in found.plan.cells:
        home = found.plan.home(cell)
        with workspace(home.stage("evaluation"), StageKey("evaluate", {})) as space:
            rows = [
                {"id": name} | dict.fromkeys(score_keys((2, 5, 10)), value(cell, place))
                for place, name in enumerate(IMAGES)
            ]
            write_csv(space.folder / "scores.csv", rows)
            scores = space.finish()
        trained = Artifact(home.stage("segmenter"), {"versions": {}})
        found.cells[cell] = Scored(trained, {"test": scores})
    return found
