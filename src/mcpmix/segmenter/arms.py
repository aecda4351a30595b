"""The arms of a run: what each reads, the strategy it trains with, and all of them with all seeds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from mcpmix.config import Config
from mcpmix.core.device import Runtime, setup, thread_count, worker_count
from mcpmix.core.progress import Progress
from mcpmix.core.side_by_side import side_by_side
from mcpmix.core.stage_folder import Artifact, StageKey, reuse
from mcpmix.data.augment import denormalise
from mcpmix.generator.baselines import controlpolypnet, gensrrfi
from mcpmix.generator.ledger import Review
from mcpmix.mixing.registry import (
    STRATEGIES,
    build_strategy,
    setting_problems,
    strategy_needs_pairs,
    strategy_needs_set,
    typed_settings,
    unlabelled_source,
)
from mcpmix.mixing.strategy import Strategy
from mcpmix.networks.features import features_digest, load_features

Cell = tuple[str, int]
"""An arm and a seed: one training with its evaluation."""


@dataclass(frozen=True)
class Inputs:
    """The artefacts that training reads; all but the data set only where the strategy needs pairs."""

    dataset: Artifact
    depth: Artifact | None = None
    generator: Artifact | None = None
    pairs: Artifact | None = None
    edits: Artifact | None = None
    unlabelled: Artifact | None = None
    pseudo: Artifact | None = None
    review: Review | None = None  # of the pairs, by people
    labelled_set: Artifact | None = None


def takes_edits(config: Config, arm: str) -> bool:
    """Whether an arm trains on edits by instruction instead of counterparts."""
    return arm == "diffusemix" and config.editor.model is not None


def takes_pairs(config: Config, arm: str) -> bool:
    """Whether an arm trains on counterparts from the generator."""
    return needs_pairs(arm) and not takes_edits(config, arm)


def needs_generator(config: Config, arm: str) -> bool:
    """Whether something that an arm trains on is drawn by the run's generator."""
    return takes_pairs(config, arm) or arm == gensrrfi.METHOD


def needs_base(config: Config, arm: str) -> bool:
    """Whether something that an arm trains on is drawn by the diffusion base, on whichever way."""
    return takes_pairs(config, arm) or needs_set(arm)


def needs_set(arm: str) -> bool:
    """Whether a strategy trains on synthetic images with masks of their own."""
    return arm in STRATEGIES and strategy_needs_set(arm)


def needs_judge(config: Config, arm: str) -> bool:
    """Whether an arm needs the judge for something else than pseudo-masks and admission."""
    # It finds the unlabelled images that show no lesion.
    return arm == controlpolypnet.METHOD and config.data.has_unlabelled


def needs_pairs(arm: str) -> bool:
    """Whether a strategy trains on synthetic counterparts."""
    return arm not in STRATEGIES or strategy_needs_pairs(arm)  # `check_arms` reports unknown names


def needs_unlabelled(arm: str) -> bool:
    """Whether a strategy trains on unlabelled images."""
    return arm in STRATEGIES and unlabelled_source(arm) != ""


def needs_pseudo(arm: str) -> bool:
    """Whether a strategy trains on pseudo-masks."""
    return arm in STRATEGIES and unlabelled_source(arm) == "pseudo-masks"


_SCHEDULED = ("mcpmix-stepwise", "mcpmix-cosine")


def arm_settings(config: Config, arm: str) -> dict[str, Any]:
    """All settings that an arm's strategy takes, but for the numbers of epochs: a part of its identity.

    The features of RLA are given by their digest: a file may change under its name.
    """
    rla = config.rla
    if arm == "mcpmix-rla":
        settings = rla.model_dump(mode="json", exclude={"fixed_rho"})
        return {"rla": {**settings, "features": features_digest(rla.features)}}
    if arm in ("mcpmix", "pseudo-label-mcpmix"):
        return {"rla": {"s_max": rla.s_max, "fixed_rho": rla.fixed_rho}}
    if arm in _SCHEDULED:
        return {"rla": {"fixed_rho": rla.fixed_rho}}
    return {"strategy": config.train.strategies.get(arm, {})}


def arm_strategy(config: Config, arm: str) -> Strategy:
    """The strategy of an arm; it takes what `arm_settings` says."""
    ((section, settings),) = arm_settings(config, arm).items()
    if section == "strategy":
        settings = typed_settings(arm, settings)
    if "fixed_rho" in settings:
        settings["rho"] = settings.pop("fixed_rho")
    if arm in (*_SCHEDULED, "mean-teacher"):
        settings["epochs"] = config.train.epochs
    if arm == "mcpmix-rla":
        settings["epochs"], settings["tail_epochs"] = config.train.epochs, config.train.tail_epochs
        settings["features"] = NormalisedFeatures(load_features(config.rla.features))
        settings["gate_lr"] = settings.pop("gate_learning_rate")
    return build_strategy(arm, **settings)


class NormalisedFeatures(nn.Module):
    """phi on images as the segmenter sees them: brought back to [0, 1] first."""

    def __init__(self, phi: nn.Module) -> None:
        super().__init__()
        self.phi = phi

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W normalised images to B,F."""
        features: Tensor = self.phi(denormalise(images))
        return features


def check_arms(arms: Iterable[str], strategies: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Problems of the configured arms, and of the settings of strategies."""
    unknown = [arm for arm in arms if arm not in STRATEGIES]
    problems = [f"train.arms: no strategy {arm!r}; known: {', '.join(STRATEGIES)}" for arm in unknown]
    for name, settings in strategies.items():
        problems += [f"train.strategies.{problem}" for problem in setting_problems(name, settings)]
    return problems


# --- all arms with all seeds -------------------------------------------------------------------------------


def make_cells(
    config: Config,
    stage: str,
    work: Mapping[Cell, tuple[StageKey, Callable[..., Artifact]]],
    runtime: Runtime,
    progress: Progress,
) -> dict[Cell, Artifact]:
    """A stage of all arms with all seeds: what is finished is reused, the rest is made side by side."""
    made: dict[Cell, Artifact | None] = {}
    todo: dict[str, Callable[..., Artifact]] = {}
    for (arm, seed), (key, task) in work.items():
        name = f"{stage}/{arm}/seed-{seed}"
        made[arm, seed] = reuse(config.folder / name, key, progress, name)
        if made[arm, seed] is None:
            todo[f"{stage} {arm} seed {seed}"] = partial(task, out=config.folder / name)
    settings = config.runtime
    # Counted over all of them, not over those left: a resumed run must round like an uninterrupted one.
    workers, threads = share_machine(config, runtime, len(work))
    open_runtime = partial(setup, settings.device, settings.precision, threads, settings.deterministic)
    if stage == "segmenter" and len(work) > 1 and todo:  # one bar over all, with the time that is left
        with progress.track("trainings", len(work), len(work) - len(todo)) as advance:
            new = iter(side_by_side(todo, workers, open_runtime, progress, advance).values())
    else:
        new = iter(side_by_side(todo, workers, open_runtime, progress).values())
    return {cell: artifact or next(new) for cell, artifact in made.items()}


def share_machine(config: Config, runtime: Runtime, count: int) -> tuple[int, int]:
    """How many of `count` trainings run side by side, and the CPU threads of each."""
    workers = worker_count(config.runtime.jobs, runtime.device, count)
    return workers, max(1, (config.runtime.threads or thread_count()) // workers)
