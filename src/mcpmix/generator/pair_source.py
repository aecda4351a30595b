"""Gives each sample its counterpart in each epoch: from a bank, or generated while the segmenter trains.

A plan decides which counterpart it is: a function of seed, epoch and the gates logged so far, never of what
happened to be generated. A training that was killed and resumed therefore sees the same counterparts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcpmix.config import Config
from mcpmix.core.device import setup
from mcpmix.core.errors import DataError
from mcpmix.core.on_demand import OnDemand
from mcpmix.core.pixels import Pixels
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import Arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.conditions import DepthMaps
from mcpmix.generator.counterparts import build_maker, make_filled
from mcpmix.generator.ledger import Review, admitted_replicas, read_rows
from mcpmix.generator.workers import Make, Request, WorkerPool

Replicas = npt.NDArray[np.int64]

_AHEAD = 8  # batches that may be made before training needs them; results do not depend on it

# Epochs between a gate and the effort that follows it: the images of the next epoch are made during this one,
# whose gates are not known yet.
_EFFORT_LAG = 2

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
    known = min(epoch - _EFFORT_LAG, len(gates))
    if known < 1 or gates[0] <= 0:
        return 1.0
    return min(1.0, max(0.0, gates[known - 1] / gates[0]))


class Plan:
    """Which counterparts samples have in each epoch, and which one they use.

    In each epoch a sample is renewed with probability `refresh`: one of its counterparts, drawn at random,
    gives way to replica `first_new + epoch - 1`, which this epoch uses and which stays until it is replaced
    itself. With one counterpart and a refresh of 1, all are new in each epoch.

    Args:
        stored: for each of N samples the replica numbers that it starts with, one at least.
        refresh: share of the samples renewed each epoch; 0: none, ever.
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
        """(N, K): the counterparts that each sample has after the renewals up to this epoch."""
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
        """Which samples an epoch renews, and in which of their places."""
        rng = numpy_rng("renewed", self.seed, epoch)
        share = self.refresh * (effort(epoch, gates) if self.budget else 1.0)
        return rng.random(len(self.counts)) < share, rng.integers(self.counts)


class PairSource:
    """Gives I_s for samples and an epoch: of stored counterparts the one that the plan says."""

    def __init__(self, plan: Plan, stored: Mapping[Request, Pixels]) -> None:
        self.plan, self.stored = plan, stored
        self._gates: tuple[float, ...] = ()
        self._used: dict[int, Replicas] = {}  # of the epochs in sight

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:  # noqa: ARG002
        """Start an epoch, counted from 1; `gates` are `s * rho` after each epoch before it."""
        self._gates = tuple(gates)
        self._used.clear()

    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """B,S,S,3 uint8: the counterparts of the samples at these B places of the arrays."""
        return np.stack([self.stored[need] for need in self._needs(epoch, chosen)])

    def note(self) -> str:
        """A few words for the progress line; may be empty."""
        return ""

    def close(self) -> None:
        """Release processes; there are none."""

    def _needs(self, epoch: int, chosen: np.ndarray) -> list[Request]:
        if epoch not in self._used:
            self._used[epoch] = self.plan.used(epoch, self._gates)
        used = self._used[epoch]
        return [Request(int(place), int(used[place])) for place in chosen]


class OnTheFly(PairSource):
    """Makes what is not stored while the segmenter trains, a bounded number of images ahead of it.

    What is made is up to the plan and to nothing else, and a batch of the generator always has its full size:
    number of workers, lookahead and the point where a killed run resumed do not change a bit of any image.

    Args:
        epochs: the last epoch; nothing is made beyond it.
        ahead: images that may be ready or under way before they are taken; at least a batch.
    """

    def __init__(
        self,
        plan: Plan,
        stored: Mapping[Request, Pixels],
        pool: WorkerPool,
        order: Order,
        *,
        epochs: int,
        batch_size: int,
        ahead: int,
    ) -> None:
        super().__init__(plan, stored)
        self.pool, self.order = pool, order
        self.epochs, self.batch_size, self.ahead = epochs, batch_size, ahead
        self._images: dict[Request, Pixels] = {}  # made and still of use
        self._pending: dict[Request, None] = {}  # to be made, in the order of need
        self._under_way: dict[Request, tuple[list[Request], Future[list[Pixels]]]] = {}  # with their batches
        self._early: set[Request] = set()  # asked for, not taken yet
        self._made, self._began, self._waited = 0, time.monotonic(), 0.0

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:
        """Drop what no epoch will use again, and start generating what this one and the next will use."""
        super().begin(epoch, gates)
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
        """Like that of a bank; waits for what is not ready. Images not yet requested now come first."""
        needs, start = self._needs(epoch, chosen), time.monotonic()
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
                self._made += len(batch)
        self._waited += time.monotonic() - start
        self._early.difference_update(needs)
        images = [self._images[need] if need in self._images else self.stored[need] for need in needs]
        self._make_ahead()
        return np.stack(images)

    def note(self) -> str:
        """Images made per second, and the share of the time for which training waited for them."""
        gone = max(time.monotonic() - self._began, 1e-9)
        return f"{self._made / gone:.1f} pairs/s, waited for them {100 * self._waited / gone:.0f} %"

    def close(self) -> None:
        """End the workers; images under way are dropped."""
        self.pool.close()

    def _is_made(self, need: Request) -> bool:
        return need in self._images or need in self.stored

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


def open_source(
    config: Config,
    train: Arrays,
    seed: int,
    order: Order,
    *,
    edits: Artifact | None = None,
    pairs: Artifact | None = None,
    review: Review | None = None,
    generator: Artifact | None = None,
    depth: Artifact | None = None,
) -> PairSource:
    """Open a bank, a bank that is renewed in part, or a source of new counterparts in each epoch.

    Args:
        seed: number of the training's repetition; the draws belong to it.
        edits: take the place of counterparts.
        pairs: the bank; needed unless all counterparts are new.
        review: what people have changed about the bank.
        generator: needed for new counterparts, with the depth maps.
    """
    synthesis, drawn_by = config.synthesis, seed_for(config.seed, seed)
    numbers: list[Sequence[int]]
    images: Mapping[Request, Pixels] = {}
    if edits is not None:
        numbers = [range(len(config.editor.instructions))] * len(train)
        return PairSource(Plan(numbers, drawn_by), read_bank(edits.folder, numbers, train))
    if synthesis.source == "on-the-fly":
        plan = Plan([[0]] * len(train), drawn_by, refresh=1.0, budget=synthesis.budget)
    elif pairs is None:
        raise DataError("Training with a bank of pairs needs the pairs: run `mcpmix synthesize` first.")
    else:
        rows = read_rows(pairs.folder) if review is None else review.apply(read_rows(pairs.folder))
        kept = admitted_replicas(rows, train.ids)
        numbers = [found or (REAL,) for found in kept]  # no counterpart admitted: the real image stands in
        files = {(row["parent"], int(row["replica"])): row["file"] for row in rows if row["admitted"]}
        images = read_bank(pairs.folder, numbers, train, files)
        first_new = synthesis.replicas * synthesis.admission.tries  # later tries have taken these numbers
        plan = Plan(
            numbers, drawn_by, refresh=synthesis.refresh, budget=synthesis.budget, first_new=first_new
        )
        if synthesis.refresh == 0:
            return PairSource(plan, images)
    if generator is None or depth is None:
        raise DataError(
            "Pairs made in training need the generator and the depth maps: run `mcpmix finetune` first."
        )
    prepare = partial(_prepare, config, generator.folder, train, depth.folder)
    return OnTheFly(
        plan,
        images,
        WorkerPool(prepare, workers=synthesis.workers),
        order,
        epochs=config.train.epochs + config.train.tail_epochs,
        batch_size=synthesis.batch_size,
        ahead=max(_AHEAD, synthesis.workers) * synthesis.batch_size,
    )


def read_bank(
    folder: Path,
    stored: Sequence[Sequence[int]],
    train: Arrays,
    files: Mapping[tuple[str, int], str] | None = None,
) -> OnDemand[Request, Pixels]:
    """The images of a bank, given the replica numbers of each training sample; REAL is its real image.

    Args:
        files: by id and replica number; those that are not named lie at `images/<id>/<replica>.png`.
    """
    places = files or {}

    def read(request: Request) -> Pixels:
        if request.replica == REAL:
            return train.images[request.index]
        name = train.ids[request.index]
        file = places.get((name, request.replica), f"images/{name}/{request.replica}.png")
        return read_image(folder / file)

    keys = {Request(place, number) for place, numbers in enumerate(stored) for number in numbers}
    return OnDemand(keys, read)


def _prepare(config: Config, generator: Path, train: Arrays, depth: Path) -> Make:
    """Build the generator inside a worker; one thread, so that no result depends on how many share a CPU."""
    settings = config.runtime
    runtime = setup(settings.device, settings.precision, 1, settings.deterministic)
    maker = build_maker(config, generator, train, DepthMaps(depth, train.ids), runtime.device)
    return partial(make_filled, maker, batch_size=config.synthesis.batch_size)
