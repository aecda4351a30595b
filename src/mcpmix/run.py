"""The whole run from top to bottom, in the order of the paper.

    dataset -> unlabelled -> depth -> base -> judge -> pseudo -> generator -> pairs
            -> synthetic -> segmenter -> evaluation -> report

Each stage is a folder below the run's folder and meets the others through it only. A finished folder is
reused while everything that it depends on is the same; an unfinished one is resumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from mcpmix.config import PSEUDO, Config
from mcpmix.config_file import are_kept, keep_settings
from mcpmix.core.device import Runtime, setup
from mcpmix.core.errors import ConfigError
from mcpmix.core.processes import connect, launched, leader_first
from mcpmix.core.progress import SILENT, Progress, recorded
from mcpmix.core.stage_folder import Artifact
from mcpmix.data import dataset, unlabelled
from mcpmix.generator import adapt, depth, finetune, judge, pseudo, synthesize
from mcpmix.generator.baselines import controlpolypnet, gensrrfi, satsynth
from mcpmix.generator.baselines.labelled_set import Sources
from mcpmix.generator.ledger import Review, read_review
from mcpmix.report import report
from mcpmix.segmenter import evaluate, train
from mcpmix.segmenter.arms import (
    Cell,
    Inputs,
    make_cells,
    needs_base,
    needs_generator,
    needs_judge,
    needs_pseudo,
    needs_set,
    needs_unlabelled,
    takes_edits,
    takes_pairs,
)
from mcpmix.timing import seconds_left, time_text

_BASELINES = {stage.METHOD: stage for stage in (controlpolypnet, gensrrfi, satsynth)}


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
    review: Review | None = None
    edits: Artifact | None = None
    sets: dict[str, Artifact] = field(default_factory=dict)
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
        if needs_set(arm):
            return replace(more, labelled_set=self.sets[arm])
        if takes_edits(config, arm):
            return replace(more, edits=self.edits)
        if not takes_pairs(config, arm):
            return more
        return replace(more, depth=self.depth, generator=self.generator, pairs=self.pairs, review=self.review)


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
    left: dict[str, float] = {}
    estimated, same = until == "report" and progress is not SILENT, are_kept(config)
    with recorded(progress, config.folder, until, writes=connect().leads) as shown:
        for stage in _stages(config, made, shown, until):
            if stage == until:
                break
            if stage == "dataset" and estimated and made.dataset is not None:
                left = seconds_left(config, made.dataset.manifest["counts"], runtime, reuses=same)
                if left:
                    progress.say(f"time: {time_text(left)}")
            elif stage in left:
                names = list(left)  # in the order of the run: what stands before it is there too
                left = {name: left[name] for name in names[names.index(stage) + 1 :]}
                if left:
                    progress.say(f"left: {time_text(left)}")
    return made


def _stages(config: Config, made: Run, progress: Progress, until: str) -> Iterator[str]:
    """Make one stage after the other into `made`, and yield the name of each that is there."""
    folder, runtime, arms, asked = config.folder, made.runtime, config.train.arms, config
    if connect().leads:
        keep_settings(config, progress)
    with leader_first():
        data = made.dataset = dataset.run(config, folder / "dataset", progress)
    yield "dataset"

    asked_for = until in ("base", "depth", "generator", "pairs")
    based, search = asked_for or any(needs_base(config, arm) for arm in arms), None
    if until in ("evaluation", "report"):  # refuses now, not after hours of training
        search = evaluate.search_leaks(config, data, with_generator=based)
    generated = asked_for or any(needs_generator(config, arm) for arm in arms)
    marked = any(map(needs_pseudo, arms)) or (generated and config.finetune.start == PSEUDO)
    if config.data.has_unlabelled and (based or any(map(needs_unlabelled, arms))):
        with leader_first():
            made.unlabelled = unlabelled.run(config, data, folder / "unlabelled", progress)
    if generated:
        with leader_first():
            made.depth = depth.run(config, data, made.unlabelled, folder / "depth", runtime, progress)
        yield "depth"
    if based and config.adapt.steps:
        with leader_first():
            made.base = adapt.run(config, data, made.unlabelled, folder / "base", runtime, progress)
        config = made.on_base(config)
    yield "base"
    judging = marked or (based and config.synthesis.admission.enabled)
    if judging or any(needs_judge(config, arm) for arm in arms):
        with leader_first():
            made.judge = judge.run(config, data, folder / "judge", runtime, progress)
            if marked and made.unlabelled is not None:
                made.pseudo = pseudo.run(
                    config, made.unlabelled, made.judge, folder / "pseudo", runtime, progress
                )
        yield "judge"
    if generated:
        assert made.depth is not None
        begins = None
        if config.finetune.start == PSEUDO and made.unlabelled is not None and made.pseudo is not None:
            begins = finetune.Marked(made.unlabelled, made.pseudo)
        made.generator = finetune.run(
            config, data, made.depth, made.judge, begins, folder / "generator", runtime, progress
        )
        yield "generator"
        stored = config.synthesis.source == "bank" and any(takes_pairs(config, arm) for arm in arms)
        if stored or until == "pairs":
            admitting = made.judge if config.synthesis.admission.enabled else None
            made.pairs = synthesize.run(
                config, data, made.depth, made.generator, admitting, folder / "pairs", runtime, progress
            )
            made.review = read_review(made.pairs, progress)
        yield "pairs"
    if any(takes_edits(config, arm) for arm in arms):
        from mcpmix.generator import edit  # its library is heavy, and few runs edit

        made.edits = edit.run(config, data, folder / "edits", runtime, progress)
    sources = Sources(data, made.unlabelled, made.judge, made.generator)
    made.sets = {
        arm: _BASELINES[arm].run(config, sources, folder / "synthetic" / arm, runtime, progress)
        for arm in filter(needs_set, arms)
    }
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
    made.segmenters = make_cells(config, "segmenter", trainings, runtime, progress)
    yield "segmenter"

    evaluations = {
        cell: (
            evaluate.key(config, data, segmenter),
            partial(evaluate.run, config, data, segmenter, inputs[cell[0]].generator, search),
        )
        for cell, segmenter in made.segmenters.items()
    }
    made.evaluations = make_cells(config, "evaluation", evaluations, runtime, progress)
    yield "evaluation"

    made.report = report.run(
        asked, data, made.pairs, made.segmenters, made.evaluations, folder / "report", progress, made.review
    )
    yield "report"
