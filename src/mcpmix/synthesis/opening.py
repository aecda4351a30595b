"""The pair source that a configuration asks for."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcpmix.core.config import Config
from mcpmix.core.errors import DataError
from mcpmix.core.runtime import setup
from mcpmix.core.seeding import seed_for
from mcpmix.data.arrays import Arrays
from mcpmix.data.conditions import read_depths
from mcpmix.synthesis.counterparts import CounterpartMaker, build_maker
from mcpmix.synthesis.ledger import admitted_replicas, read_rows
from mcpmix.synthesis.plans import BankPlan, FreshPlan, Plan
from mcpmix.synthesis.sources import REAL, OnTheFly, Order, PairBank, PairSource
from mcpmix.synthesis.workers import WorkerPool


@dataclass(frozen=True)
class PairFolders:
    """Folders of the stages before; those a source does not need may be None."""

    pairs: Path | None = None
    control: Path | None = None
    depth: Path | None = None


def open_pairs(config: Config, train: Arrays, folders: PairFolders, seed: int, order: Order) -> PairSource:
    """A bank, a bank that is renewed in part, or new counterparts each epoch.

    Args:
        config: sections `synthesis`, `generator`, `finetune.condition`, `train` and `runtime`.
        train: the training images, in the order that `order` counts.
        folders: where pairs, ControlNet and depth maps are.
        seed: number of the training's repetition; the draws belong to it.
        order: sample numbers in the order in which an epoch takes them.

    Raises:
        DataError: a folder that the source needs is not there yet.
    """
    synthesis = config.synthesis
    drawn_by = seed_for(config.seed, seed)
    if synthesis.source == "on-the-fly":
        plan: Plan = FreshPlan(len(train), drawn_by, budget=synthesis.budget)
        return _making(config, train, folders, plan, order, None)
    if folders.pairs is None:
        raise DataError("Training with a bank of pairs needs the pairs: run `mcpmix synthesize` first.")
    kept = admitted_replicas(read_rows(folders.pairs), train.ids)
    stored = [numbers or (REAL,) for numbers in kept]  # no counterpart admitted: the real image stands in
    bank = PairBank(folders.pairs, train.ids, stored, drawn_by, real=train.images)
    if synthesis.refresh == 0:
        return bank
    plan = BankPlan(
        stored,
        drawn_by,
        refresh=synthesis.refresh,
        budget=synthesis.budget,
        first_new=synthesis.replicas * synthesis.admission.tries,  # later tries have taken these numbers
    )
    return _making(config, train, folders, plan, order, bank)


def _making(
    config: Config, train: Arrays, folders: PairFolders, plan: Plan, order: Order, bank: PairBank | None
) -> OnTheFly:
    if folders.control is None or folders.depth is None:
        raise DataError(
            "Pairs made in training need the generator and the depth maps: run `mcpmix finetune` first."
        )
    synthesis = config.synthesis
    pool = WorkerPool(
        partial(make_maker, config, folders.control, train, folders.depth),
        workers=synthesis.workers,
        slots=synthesis.ahead,
        batch_size=synthesis.batch_size,
        size=config.data.size,
    )
    return OnTheFly(
        pool,
        plan,
        order,
        epochs=config.train.epochs + config.train.tail_epochs,
        batch_size=synthesis.batch_size,
        ahead=max(synthesis.ahead, synthesis.workers) * synthesis.batch_size,
        stored=bank.images if bank is not None else None,
    )


def make_maker(config: Config, control: Path, train: Arrays, depth: Path) -> CounterpartMaker:
    """Build the generator inside a worker; one thread, so that no result depends on how many share a CPU."""
    settings = config.runtime
    runtime = setup(settings.device, settings.precision, 1, settings.deterministic)
    return build_maker(config, control, train, read_depths(depth, train.ids), runtime.device)
