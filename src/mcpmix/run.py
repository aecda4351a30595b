"""The whole run from top to bottom, in the order of the paper.

    dataset -> unlabelled -> depth -> base -> judge -> pseudo -> generator -> pairs
            -> segmenter -> evaluation -> report

Each stage is a folder below the run's folder and meets the others through it only. A finished folder is
reused while everything that it depends on is the same; an unfinished one is resumed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mcpmix.config import PSEUDO, Config
from mcpmix.config_file import to_yaml
from mcpmix.core.device import Runtime, core_count, setup, worker_count
from mcpmix.core.errors import ConfigError
from mcpmix.core.processes import connect, launched, leader_first, side_by_side
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, storage_errors, write_text
from mcpmix.data import dataset, unlabelled
from mcpmix.generator import adapt, depth, finetune, judge, pseudo, synthesize
from mcpmix.segmenter import evaluate, train
from mcpmix.segmenter.arms import (
    Inputs,
    needs_generator,
    needs_pairs,
    needs_pseudo,
    needs_unlabelled,
    takes_edits,
)

Cell = tuple[str, int]
"""An arm and a seed: one training with its evaluation."""


@dataclass
class Run:
    """What a run has made so far."""

    runtime: Runtime
    dataset: Artifact | None = None
    unlabelled: Artifact | None = None
    base: Artifact | None = None
    depth: Artifact | None = None
    judge: Artifact | None = None
    pseudo: Artifact | None = None
    generator: Artifact | None = None
    pairs: Artifact | None = None
    edits: Artifact | None = None
    segmenters: dict[Cell, Artifact] = field(default_factory=dict)
    evaluations: dict[Cell, Artifact] = field(default_factory=dict)
    report: Artifact | None = None

    def on_base(self, config: Config) -> Config:
        """What stages after `adapt` work with: the configuration with the adapted base, if there is one."""
        return config if self.base is None else config.on_base(self.base / adapt.PIPELINE)

    def inputs(self, config: Config, arm: str) -> Inputs:
        """What the training of an arm reads."""
        assert self.dataset is not None
        more = Inputs(self.dataset)
        if needs_unlabelled(arm):
            more = Inputs(self.dataset, unlabelled=self.unlabelled, pseudo=self.pseudo)
        if takes_edits(config, arm):
            return replace(more, edits=self.edits)
        if not needs_pairs(arm):
            return more
        return replace(more, depth=self.depth, generator=self.generator, pairs=self.pairs)


def run(config: Config, progress: Progress = SILENT, until: str = "report") -> Run:
    """Make every stage up to one that is named, reusing what is finished.

    Args:
        until: `dataset`, `depth`, `base`, `generator`, `pairs`, `inputs` (all that training reads),
            `segmenter`, `evaluation` or `report`.
    """
    if launched() > 1 and until not in ("dataset", "base", "depth", "generator"):
        raise ConfigError(
            f"{launched()} processes were started, but only `mcpmix finetune` works with several. Run that "
            "with torchrun, then this command without."
        )
    settings = config.runtime
    runtime = setup(settings.device, settings.precision, settings.threads, settings.deterministic)
    progress.say(f"device: {runtime.reason}")
    made = Run(runtime)
    for stage in _stages(config, made, progress, until):
        if stage == until:
            break
    return made


def _stages(config: Config, made: Run, progress: Progress, until: str) -> Iterator[str]:
    """Make one stage after the other into `made`, and yield the name of each that is there."""
    folder, runtime, arms, asked = config.folder, made.runtime, config.train.arms, config
    if connect().leads:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "config.yaml", to_yaml(config))
    with leader_first():
        data = made.dataset = dataset.run(config, folder / "dataset", progress)
    yield "dataset"

    generated = any(needs_generator(config, arm) for arm in arms)
    search = None
    if until in ("evaluation", "report"):  # refuses now, not after hours of training
        search = evaluate.search_leaks(config, data, with_generator=generated)

    generated = generated or until in ("base", "depth", "generator", "pairs")
    marked = any(map(needs_pseudo, arms)) or (generated and config.finetune.start == PSEUDO)
    if config.data.has_unlabelled and (generated or any(map(needs_unlabelled, arms))):
        with leader_first():
            made.unlabelled = unlabelled.run(config, data, folder / "unlabelled", progress)
    if generated:
        with leader_first():
            made.depth = depth.run(config, data, made.unlabelled, folder / "depth", runtime, progress)
        yield "depth"
        if config.adapt.steps:
            with leader_first():
                made.base = adapt.run(config, data, made.unlabelled, folder / "base", runtime, progress)
            config = made.on_base(config)
        yield "base"
    if marked or (generated and config.synthesis.admission.enabled):
        with leader_first():
            made.judge = judge.run(config, data, folder / "judge", runtime, progress)
            if marked and made.unlabelled is not None:
                made.pseudo = pseudo.run(
                    config, made.unlabelled, made.judge, folder / "pseudo", runtime, progress
                )
    if generated:
        assert made.depth is not None
        begins = None
        if config.finetune.start == PSEUDO and made.unlabelled is not None and made.pseudo is not None:
            begins = finetune.Marked(made.unlabelled, made.pseudo)
        made.generator = finetune.run(
            config, data, made.depth, made.judge, begins, folder / "generator", runtime, progress
        )
        yield "generator"
        if config.synthesis.source == "bank" or until == "pairs":
            admitting = made.judge if config.synthesis.admission.enabled else None
            made.pairs = synthesize.run(
                config, data, made.depth, made.generator, admitting, folder / "pairs", runtime, progress
            )
        yield "pairs"
    if any(takes_edits(config, arm) for arm in arms):
        from mcpmix.generator import edit  # its library is heavy, and few runs edit

        made.edits = edit.run(config, data, folder / "edits", runtime, progress)
    yield "inputs"

    cells = [(arm, seed) for seed in config.train.seeds for arm in arms]
    inputs = {arm: made.inputs(config, arm) for arm in arms}
    trainings = {
        (arm, seed): (
            train.key(config, inputs[arm], arm, seed),
            partial(train.run, config, inputs[arm], arm, seed),
        )
        for arm, seed in cells
    }
    made.segmenters = _all_cells(config, "segmenter", trainings, runtime, progress)
    yield "segmenter"

    evaluations = {
        cell: (
            evaluate.key(config, data, segmenter),
            partial(evaluate.run, config, data, segmenter, inputs[cell[0]].generator, search),
        )
        for cell, segmenter in made.segmenters.items()
    }
    made.evaluations = _all_cells(config, "evaluation", evaluations, runtime, progress)
    yield "evaluation"

    from mcpmix.report import report  # its plots are heavy to import, and nothing before needs them

    made.report = report.run(
        asked, data, made.pairs, made.segmenters, made.evaluations, folder / "report", progress
    )
    yield "report"


def _all_cells(
    config: Config,
    stage: str,
    work: Mapping[Cell, tuple[StageKey, Callable[..., Artifact]]],
    runtime: Runtime,
    progress: Progress,
) -> dict[Cell, Artifact]:
    """A stage of all arms with all seeds, side by side where the machine allows it."""
    made: dict[Cell, Artifact | None] = {}
    todo: dict[str, Callable[..., Artifact]] = {}
    for (arm, seed), (key, task) in work.items():
        name = f"{stage}/{arm}/seed-{seed}"
        made[arm, seed] = reuse(config.folder / name, key, progress, name)
        if made[arm, seed] is None:
            todo[f"{stage} {arm} seed {seed}"] = partial(task, out=config.folder / name)
    settings = config.runtime
    # Counted over all of them, not over those left: a resumed run must round like an uninterrupted one.
    workers = worker_count(settings.jobs, runtime.device, len(work))
    threads = max(1, (settings.threads or core_count()) // workers)
    open_runtime = partial(setup, settings.device, settings.precision, threads, settings.deterministic)
    new = iter(side_by_side(todo, workers, open_runtime, progress).values())
    return {cell: artifact or next(new) for cell, artifact in made.items()}
