"""The stage graph: what feeds what, what is reused, what is made again and why.

    dataset -> depth -> generator -> pairs -> segmenter -> evaluation -> report
           `-> judge ----^----------^

With admission, the judge scores what the generator makes, while it is fine-tuned and for the bank of pairs.
Each stage is a folder below the run's folder. Asking for one makes everything it needs first.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cached_property
from pathlib import Path

from mcpmix.config import Config
from mcpmix.config_file import to_yaml
from mcpmix.core.device import Runtime, core_count, setup, worker_count
from mcpmix.core.errors import ConfigError
from mcpmix.core.processes import connect, launched, leader_first
from mcpmix.core.progress import SILENT, Channel, ChannelProgress, Progress, end_with_parent, relay
from mcpmix.core.stage_folder import (
    Artifact,
    StageKey,
    changes,
    read_artifact,
    reusable,
    storage_errors,
    write_text,
)
from mcpmix.data import dataset
from mcpmix.generator import depth, finetune, judge, synthesize
from mcpmix.segmenter import evaluate, train
from mcpmix.segmenter.arms import Inputs, needs_generator, needs_pairs, takes_edits

Run = tuple[str, int]  # arm, seed


class Pipeline:
    """One run of a configuration.

    Args:
        config: the whole configuration.
        progress: where to report.
    """

    def __init__(self, config: Config, progress: Progress = SILENT) -> None:
        self.config = config
        self.progress = progress
        self.folder = config.folder

    @cached_property
    def runtime(self) -> Runtime:
        """Device and precision, set up once per process."""
        settings = self.config.runtime
        return setup(settings.device, settings.precision, settings.threads, settings.deterministic)

    # --- stages ------------------------------------------------------------------------------------------

    @cached_property
    def dataset(self) -> Artifact:
        """Samples, split and digests."""
        self._write_config()
        out = self.folder / "dataset"
        return self._ensure(
            out, dataset.key(self.config), lambda: dataset.run(self.config, out, self.progress)
        )

    @cached_property
    def depth(self) -> Artifact:
        """Depth maps of the training images."""
        out = self.folder / "depth"
        return self._ensure(
            out,
            depth.key(self.config, self.dataset),
            lambda: depth.run(self.config, self.dataset, out, self.runtime, self.progress),
        )

    @cached_property
    def generator(self) -> Artifact:
        """The fine-tuned ControlNet."""
        out = self.folder / "generator"
        inputs = (self.dataset, self.depth)
        arbiter = self.judge if finetune.chosen_by_judge(self.config) else None
        finished = self._reuse(out, finetune.key(self.config, *inputs, arbiter))
        if finished is not None:
            return finished
        if finetune.takes_judge(self.config):
            arbiter = self.judge  # it knows the data set only, and so can be there before the generator
        # Not `_ensure`: this is the one stage that all processes of torchrun work on together.
        return finetune.run(self.config, *inputs, out, self.runtime, self.progress, judge=arbiter)

    @cached_property
    def pairs(self) -> Artifact:
        """The bank of synthetic counterparts."""
        _refuse_several_processes()
        out = self.folder / "pairs"
        inputs = (self.dataset, self.depth, self.generator)
        arbiter = self.judge if self.config.synthesis.admission.enabled else None
        finished = self._reuse(out, synthesize.key(self.config, self.generator, arbiter))
        if finished is not None:
            return synthesize.mend(self.config, *inputs, finished, self.runtime, self.progress)
        return synthesize.run(self.config, *inputs, arbiter, out, self.runtime, self.progress)

    @cached_property
    def judge(self) -> Artifact:
        """Segmenters trained on real images only, to judge synthetic ones."""
        out = self.folder / "judge"
        return self._ensure(
            out,
            judge.key(self.config, self.dataset),
            lambda: judge.run(self.config, self.dataset, out, self.runtime, self.progress),
        )

    @cached_property
    def edits(self) -> Artifact:
        """Edits of the training images by instruction, for DiffuseMix."""
        from mcpmix.generator import edit  # its library is heavy, and few runs edit

        out = self.folder / "edits"
        return self._ensure(
            out,
            edit.key(self.config, self.dataset),
            lambda: edit.run(self.config, self.dataset, out, self.runtime, self.progress),
        )

    def segmenters(self) -> dict[Run, Artifact]:
        """All arms with all seeds, trained side by side where the machine allows it."""
        _refuse_several_processes()
        return self._all_runs("segmenter", lambda run: train.key(self.config, self.inputs(run[0]), *run))

    def evaluations(self) -> dict[Run, Artifact]:
        """Scores of all segmenters on the test split."""
        self._require_unseen()
        segmenters = self.segmenters()
        return self._all_runs(
            "evaluation", lambda run: evaluate.key(self.config, self.dataset, segmenters[run])
        )

    def report(self) -> Artifact:
        """Tables and the page."""
        from mcpmix.report import report  # its plots are heavy to import, and workers need none

        self._require_unseen()
        segmenters, evaluations = self.segmenters(), self.evaluations()
        pairs = self.pairs if self._needs_bank() else None
        out = self.folder / "report"
        return self._ensure(
            out,
            report.key(self.config, self.dataset, pairs, evaluations),
            lambda: report.run(
                self.config, self.dataset, pairs, segmenters, evaluations, out, progress=self.progress
            ),
        )

    # --- many trainings ----------------------------------------------------------------------------------

    def run_one(self, stage: str, run: Run) -> Artifact:
        """Train or evaluate one arm with one seed; what it needs must be there or is made."""
        arm, seed = run
        out = self._place(stage, run)
        inputs = self.inputs(arm)
        if stage == "segmenter":
            return train.run(self.config, inputs, arm, seed, out, self.runtime, self.progress)
        segmenter = read_artifact(self._place("segmenter", run))
        assert segmenter is not None  # evaluations() trains first
        return evaluate.run(
            self.config, self.dataset, segmenter, out, self.runtime, inputs.generator, self.progress
        )

    def _all_runs(self, stage: str, key: Callable[[Run], StageKey]) -> dict[Run, Artifact]:
        runs = [(arm, seed) for seed in self.config.train.seeds for arm in self.config.train.arms]
        finished: dict[Run, Artifact] = {}
        for run in runs:
            artifact = self._reuse(self._place(stage, run), key(run))
            if artifact is not None:
                finished[run] = artifact
        todo = [run for run in runs if run not in finished]
        if todo:
            finished |= self._make(stage, todo)
        return {run: finished[run] for run in runs}

    def _make(self, stage: str, runs: list[Run]) -> dict[Run, Artifact]:
        workers = worker_count(self.config.runtime.jobs, self.runtime.device, len(runs))
        if workers == 1:
            return {run: self.run_one(stage, run) for run in runs}
        context = multiprocessing.get_context("spawn")
        made: dict[Run, Artifact] = {}
        errors: dict[Run, BaseException] = {}
        with context.Manager() as manager:
            channel = manager.Queue()
            arguments = (share_threads(self.config, workers), channel)
            with (
                relay(channel, self.progress),
                ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=arguments) as pool,
            ):
                futures = {pool.submit(_work, stage, run): run for run in runs}
                try:
                    for future in as_completed(futures):
                        error = future.exception()
                        if error is None:
                            made[futures[future]] = future.result()
                        else:  # the other runs go on: what they finish is kept
                            errors[futures[future]] = error
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        if errors:
            first, *others = errors.values()
            for (arm, seed), error in zip(list(errors)[1:], others, strict=True):
                if str(error) != str(first):  # a killed worker fails all runs alike
                    self.progress.say(f"{stage} {arm} seed {seed} failed too: {error}")
            raise first
        return made

    def inputs(self, arm: str) -> Inputs:
        """What the training of an arm reads; made if it is not there."""
        if takes_edits(self.config, arm):
            return Inputs(self.dataset, edits=self.edits)
        if not needs_pairs(arm):
            return Inputs(self.dataset)
        bank = self.pairs if self._needs_bank() else None
        return Inputs(self.dataset, self.depth, self.generator, bank)

    def _needs_bank(self) -> bool:
        paired = any(needs_generator(self.config, arm) for arm in self.config.train.arms)
        return paired and self.config.synthesis.source == "bank"

    def _require_unseen(self) -> None:
        generated = any(needs_generator(self.config, arm) for arm in self.config.train.arms)
        evaluate.require_unseen(self.config, self.dataset, with_generator=generated)

    def _place(self, stage: str, run: Run) -> Path:
        return self.folder / stage / run[0] / f"seed-{run[1]}"

    # --- reuse -------------------------------------------------------------------------------------------

    def _ensure(self, out: Path, key: StageKey, make: Callable[[], Artifact]) -> Artifact:
        with leader_first():
            return self._reuse(out, key) or make()

    def _reuse(self, out: Path, key: StageKey) -> Artifact | None:
        """The finished artefact if it is still valid; says why, if one is there that is not."""
        artifact = reusable(out, key)
        if artifact is None and (old := read_artifact(out)) is not None:
            self.progress.say(f"{self._name(out)}: made again, {_listed(changes(old, key))}")
        return artifact

    def _name(self, out: Path) -> str:
        return out.relative_to(self.folder).as_posix()

    def _write_config(self) -> None:
        if not connect().leads:
            return
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / "config.yaml", to_yaml(self.config))


def share_threads(config: Config, workers: int) -> Config:
    """The configuration of a worker: an equal share of the threads, one at least."""
    threads = max(1, (config.runtime.threads or core_count()) // workers)
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"threads": threads})})


def _refuse_several_processes() -> None:
    if launched() > 1:
        raise ConfigError(
            f"{launched()} processes were started, but only `mcpmix finetune` works with several. Run that "
            "with torchrun, then this command without."
        )


def _listed(reasons: Iterable[str]) -> str:
    first, *rest = list(reasons) or ["key changed"]
    return first + (f" and {len(rest)} more" if rest else "")


# --- worker processes ------------------------------------------------------------------------------------

_worker: Pipeline | None = None  # one per worker process, set by its initialiser


def _start_worker(config: Config, channel: Channel) -> None:
    global _worker
    end_with_parent()
    # Ctrl-C reaches workers too. The last checkpoint is on disk, so they end at once and quietly.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _worker = Pipeline(config, ChannelProgress(channel))


def _work(stage: str, run: Run) -> Artifact:
    assert _worker is not None
    return _worker.run_one(stage, run)
