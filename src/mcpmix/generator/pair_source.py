"""Gives each sample its counterpart in each epoch: from a bank, or made while the segmenter trains.

Which counterpart it is, is up to a plan: a function of seed, epoch and the gates logged so far, never of what
happened to be made. So a training that was killed and resumed meets the same counterparts.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.config import Config
from mcpmix.core.device import setup
from mcpmix.core.errors import DataError
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.cache import Arrays
from mcpmix.generator.conditions import read_depths
from mcpmix.generator.counterparts import CounterpartMaker, build_maker
from mcpmix.generator.ledger import admitted_replicas, read_rows
from mcpmix.generator.workers import Pixels, Request, WorkerPool

Replicas = npt.NDArray[np.int64]

EFFORT_LAG = 2
"""Epochs between a gate and the effort that follows it: the images of the next epoch are made during this
one, whose gates are not known yet."""

_AHEAD = 8  # batches that may be made before training needs them; results do not depend on it

REAL = -1
"""Replica number of the real image itself, where no counterpart was admitted: mixing then does nothing."""

Order = Callable[[int], np.ndarray]
"""Sample numbers in the order in which an epoch trains on them."""


def effort(epoch: int, gates: Sequence[float]) -> float:
    """How much of the full effort an epoch deserves, in [0, 1]: the budget rule.

    A counterpart enters the objective through `rho * L((1 - s) I_r + s I_s)`: where s or rho is near zero, a
    new image changes next to nothing. So the share of samples that get a new one is `s * rho` relative to the
    first epoch, as it was two epochs before; 1 in the first two.

    Args:
        epoch: from 1.
        gates: `s * rho` after epochs 1, 2, ... as far as known.
    """
    known = min(epoch - EFFORT_LAG, len(gates))
    if known < 1 or gates[0] <= 0:
        return 1.0
    return min(1.0, max(0.0, gates[known - 1] / gates[0]))


class Plan(Protocol):
    """Replica numbers of N samples."""

    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, K): the counterparts that each sample has in this epoch, of which it uses one."""
        ...

    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): the counterpart that each sample uses in this epoch."""
        ...


@final
class FreshPlan:
    """New counterparts each epoch: replica `epoch - 1`, the numbers a bank with enough replicas would hold.

    Args:
        count: N.
        seed: of the draws.
        budget: give new ones to a share of the samples only (see `effort`); the others keep their last.
    """

    def __init__(self, count: int, seed: int, *, budget: bool = False) -> None:
        self.count, self.seed, self.budget = count, seed, budget

    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, 1): the one counterpart of each sample."""
        return self.used(epoch, gates)[:, None]

    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): number of the last epoch up to this one that gave the sample a new counterpart, from 0."""
        last = np.zeros(self.count, np.int64)
        if not self.budget:
            return last + epoch - 1
        for past in range(2, epoch + 1):
            drawn = numpy_rng("renewed", self.seed, past).random(self.count) < effort(past, gates)
            last[drawn] = past - 1
        return last


@final
class BankPlan:
    """Stored counterparts, each epoch one drawn per sample; some may be replaced by new ones as it goes.

    In each epoch a mask is renewed with probability `refresh`: one of its counterparts, drawn at random,
    gives way to replica `first_new + epoch - 1`, which this epoch uses and which stays until it is replaced
    itself.

    Args:
        stored: for each of N samples the replica numbers in the bank, one at least.
        seed: of the draws.
        refresh: share of the masks renewed each epoch.
        budget: scale that share with `effort`.
        first_new: first replica number that the bank's maker did not use.
    """

    def __init__(
        self,
        stored: Sequence[Sequence[int]],
        seed: int,
        *,
        refresh: float = 0.0,
        budget: bool = False,
        first_new: int = 0,
    ) -> None:
        self.counts = np.array([len(numbers) for numbers in stored])
        width = int(self.counts.max())
        # A sample with fewer repeats its own in the places that are never drawn.
        self.stored: Replicas = np.array([np.resize(numbers, width) for numbers in stored], np.int64)
        self.seed, self.refresh, self.budget, self.first_new = seed, refresh, budget, first_new

    def current(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N, K): what the bank holds after the renewals up to this epoch."""
        result = self.stored.copy()
        for past in range(1, epoch + 1 if self.refresh > 0 else 1):
            chosen, places = self._renewed(past, gates)
            result[chosen, places[chosen]] = self.first_new + past - 1
        return result

    def used(self, epoch: int, gates: Sequence[float] = ()) -> Replicas:
        """(N,): the renewed counterpart if there is one, otherwise one of the current ones at random."""
        places = numpy_rng("replica", self.seed, epoch).integers(self.counts)
        if self.refresh > 0:
            chosen, renewed = self._renewed(epoch, gates)
            places = np.where(chosen, renewed, places)
        drawn: Replicas = self.current(epoch, gates)[np.arange(len(places)), places]
        return drawn

    def _renewed(self, epoch: int, gates: Sequence[float]) -> tuple[npt.NDArray[np.bool_], Replicas]:
        """Which masks an epoch renews, and in which of their places."""
        rng = numpy_rng("renewed", self.seed, epoch)
        share = self.refresh * (effort(epoch, gates) if self.budget else 1.0)
        return rng.random(len(self.counts)) < share, rng.integers(self.counts)


class PairSource(ABC):
    """Gives I_s for samples and an epoch."""

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:  # noqa: B027 (a bank has nothing to do)
        """Start an epoch, counted from 1; `gates` are `s * rho` after each epoch before it."""

    @abstractmethod
    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """B,S,S,3 uint8: the counterparts of the samples at these B places of the arrays."""

    def note(self) -> str:
        """A few words for the progress line; may be empty."""
        return ""

    def close(self) -> None:  # noqa: B027 (a bank has nothing to do)
        """Let go of processes and memory."""


@final
class PairBank(PairSource):
    """Stored counterparts; each epoch draws one replica per sample.

    Args:
        folder: of the pairs.
        ids: training samples in order.
        stored: the replica numbers of each sample, one at least; REAL for its real image.
        seed: of the draws.
        real: N,S,S,3 real images, for samples whose counterparts were all rejected.
    """

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str],
        stored: Sequence[Sequence[int]],
        seed: int,
        real: Pixels | None = None,
    ) -> None:
        self.plan = BankPlan(stored, seed)
        self.images: dict[Request, Pixels] = {}
        for place, (name, numbers) in enumerate(zip(ids, stored, strict=True)):
            for replica in numbers:
                path = folder / "images" / name / f"{replica}.png"
                if real is not None and replica == REAL:
                    self.images[Request(place, replica)] = real[place]
                    continue
                try:
                    with Image.open(path) as image:
                        self.images[Request(place, replica)] = np.asarray(image.convert("RGB"))
                except OSError as error:
                    raise DataError(
                        f"Cannot read the synthetic image {path}: {error}. Delete the pairs folder to redo "
                        "it."
                    ) from error

    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """One replica per sample, drawn by (seed, epoch)."""
        used = self.plan.used(epoch)
        return np.stack([self.images[Request(int(place), int(used[place]))] for place in chosen])


class Pool(Protocol):
    """Makes batches of counterparts somewhere else; `WorkerPool` is one."""

    def submit(self, requests: Sequence[Request]) -> "Future[list[Pixels]]":
        """Ask for 1 to a batch of counterparts, S,S,3 each."""
        ...

    def close(self) -> None:
        """End it; what is under way is dropped."""
        ...


@final
class OnTheFly(PairSource):
    """Counterparts made while the segmenter trains, a bounded number of them ahead of it.

    What is made is up to the plan and to nothing else, and a batch of the generator always has its full size:
    number of workers, lookahead and the point where a killed run resumed do not change a bit of any image.

    Args:
        pool: makes images.
        plan: which counterpart a sample uses in an epoch.
        order: the order in which an epoch takes samples.
        epochs: the last epoch; nothing is made beyond it.
        batch_size: images per call of the generator.
        ahead: images that may be ready or under way before they are taken; at least a batch.
        stored: counterparts that need not be made.
    """

    def __init__(
        self,
        pool: Pool,
        plan: Plan,
        order: Order,
        *,
        epochs: int,
        batch_size: int,
        ahead: int,
        stored: dict[Request, Pixels] | None = None,
    ) -> None:
        self.pool, self.plan, self.order = pool, plan, order
        self.epochs, self.batch_size, self.ahead = epochs, batch_size, ahead
        self.made = 0
        self._stored = stored or {}
        self._images: dict[Request, Pixels] = {}  # made and still of use
        self._pending: dict[Request, None] = {}  # to be made, in the order of need
        self._under_way: dict[Request, tuple[list[Request], Future[list[Pixels]]]] = {}  # with their batches
        self._early: set[Request] = set()  # asked for, not taken yet
        self._gates: tuple[float, ...] = ()
        self._used: dict[int, Replicas] = {}  # of the epochs in sight
        self._began, self._waited = time.monotonic(), 0.0

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:
        """Forget what no epoch will use again, and start making what this one and the next will take."""
        self._gates = tuple(gates)
        self._used.clear()
        in_sight = range(epoch, min(epoch + 1, self.epochs) + 1)
        wanted = dict.fromkeys(need for each in in_sight for need in self._needs(each, self.order(each)))
        kept = set(wanted)
        for each in in_sight:
            current = self.plan.current(each, self._gates)
            kept |= {Request(place, int(number)) for place, row in enumerate(current) for number in row}
        self._images = {request: image for request, image in self._images.items() if request in kept}
        self._early &= wanted.keys()
        missing = (need for need in wanted if not self._is_made(need) and need not in self._under_way)
        self._pending = dict.fromkeys(missing)
        self._make_ahead()

    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """The counterparts of these samples; waits for those that are not ready."""
        needs = self._needs(epoch, chosen)
        start = time.monotonic()
        missing = [need for need in dict.fromkeys(needs) if not self._is_made(need)]
        urgent = [need for need in missing if need not in self._under_way]
        self._pending = dict.fromkeys([*urgent, *self._pending])
        while any(need in self._pending for need in urgent):
            self._submit()
        for need in missing:
            if need not in self._images:  # else it came with another one of its batch
                batch, future = self._under_way[need]
                for request, image in zip(batch, future.result(), strict=True):
                    self._images[request] = image
                    del self._under_way[request]
                self.made += len(batch)
        self._waited += time.monotonic() - start
        self._early.difference_update(needs)
        images = [self._images[need] if need in self._images else self._stored[need] for need in needs]
        self._make_ahead()
        return np.stack(images)

    def note(self) -> str:
        """Images made per second, and the share of the time for which training waited for them."""
        gone = max(time.monotonic() - self._began, 1e-9)
        return f"{self.made / gone:.1f} pairs/s, waited for them {100 * self._waited / gone:.0f} %"

    def close(self) -> None:
        """End the workers; images under way are dropped."""
        self.pool.close()

    def _needs(self, epoch: int, chosen: np.ndarray) -> list[Request]:
        if epoch not in self._used:
            self._used[epoch] = self.plan.used(epoch, self._gates)
        used = self._used[epoch]
        return [Request(int(place), int(used[place])) for place in chosen]

    def _is_made(self, need: Request) -> bool:
        return need in self._images or need in self._stored

    def _make_ahead(self) -> None:
        """Fill the room that is left; an incomplete batch goes only if there is nothing else to do."""
        while (
            self._pending
            and len(self._early) + self.batch_size <= self.ahead
            and (len(self._pending) >= self.batch_size or not self._under_way)
        ):
            self._submit()

    def _submit(self) -> None:
        batch = list(islice(self._pending, self.batch_size))
        future = self.pool.submit(batch)
        for need in batch:
            del self._pending[need]
            self._under_way[need] = batch, future
        self._early.update(batch)


def open_pairs(
    config: Config,
    train: Arrays,
    seed: int,
    order: Order,
    *,
    pairs: Artifact | None = None,
    generator: Artifact | None = None,
    depth: Artifact | None = None,
) -> PairSource:
    """Open a bank, a bank that is renewed in part, or a source of new counterparts in each epoch.

    Args:
        train: the training images, in the order that `order` counts.
        seed: number of the training's repetition; the draws belong to it.
        order: sample numbers in the order in which an epoch takes them.
        pairs: the bank; needed unless all counterparts are new.
        generator: needed for new counterparts, with the depth maps.

    Raises:
        DataError: a stage that the source needs is missing.
    """
    synthesis, drawn_by = config.synthesis, seed_for(config.seed, seed)
    bank: PairBank | None = None
    if synthesis.source == "on-the-fly":
        plan: Plan = FreshPlan(len(train), drawn_by, budget=synthesis.budget)
    elif pairs is None:
        raise DataError("Training with a bank of pairs needs the pairs: run `mcpmix synthesize` first.")
    else:
        kept = admitted_replicas(read_rows(pairs.folder), train.ids)
        stored = [numbers or (REAL,) for numbers in kept]  # no counterpart admitted: the real image stands in
        bank = PairBank(pairs.folder, train.ids, stored, drawn_by, real=train.images)
        if synthesis.refresh == 0:
            return bank
        plan = BankPlan(
            stored,
            drawn_by,
            refresh=synthesis.refresh,
            budget=synthesis.budget,
            first_new=synthesis.replicas * synthesis.admission.tries,  # later tries have taken these numbers
        )
    if generator is None or depth is None:
        raise DataError(
            "Pairs made in training need the generator and the depth maps: run `mcpmix finetune` first."
        )
    make = partial(make_maker, config, generator.folder, train, depth.folder)
    return OnTheFly(
        WorkerPool(make, workers=synthesis.workers, batch_size=synthesis.batch_size),
        plan,
        order,
        epochs=config.train.epochs + config.train.tail_epochs,
        batch_size=synthesis.batch_size,
        ahead=max(_AHEAD, synthesis.workers) * synthesis.batch_size,
        stored=bank.images if bank is not None else None,
    )


def make_maker(config: Config, generator: Path, train: Arrays, depth: Path) -> CounterpartMaker:
    """Build the generator inside a worker; one thread, so that no result depends on how many share a CPU."""
    settings = config.runtime
    runtime = setup(settings.device, settings.precision, 1, settings.deterministic)
    return build_maker(config, generator, train, read_depths(depth, train.ids), runtime.device)
