"""Where training gets the counterpart of a sample in an epoch."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.synthesis.counterparts import Request
from mcpmix.synthesis.plans import BankPlan, Plan, Replicas
from mcpmix.synthesis.single import Pixels
from mcpmix.synthesis.workers import Pool

REAL = -1
"""Replica number of the real image itself, where no counterpart was admitted: mixing then does nothing."""

Order = Callable[[int], np.ndarray]
"""Sample numbers in the order in which an epoch trains on them."""


class PairSource(ABC):
    """Gives I_s for samples and an epoch."""

    @abstractmethod
    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:
        """Start an epoch, counted from 1.

        Args:
            epoch: the one that `take` will be called for next.
            gates: `s * rho` after each epoch before it.
        """

    @abstractmethod
    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """B,S,S,3 uint8: the counterparts of the samples at these B places of the arrays."""

    @abstractmethod
    def note(self) -> str:
        """A few words for the progress line; may be empty."""

    @abstractmethod
    def close(self) -> None:
        """Let go of processes and memory."""


@final
class PairBank(PairSource):
    """Stored counterparts; each epoch draws one replica per sample.

    Args:
        folder: the pairs artefact.
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
        self.images: dict[tuple[int, int], Pixels] = {
            (place, replica): real[place]
            if real is not None and replica == REAL
            else _read(folder / "images" / name / f"{replica}.png")
            for place, (name, numbers) in enumerate(zip(ids, stored, strict=True))
            for replica in numbers
        }
        self.plan = BankPlan(stored, seed)

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:
        """Nothing to start."""

    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """One replica per sample, drawn by (seed, epoch)."""
        used = self.plan.used(epoch)
        return np.stack([self.images[int(place), int(used[place])] for place in chosen])

    def note(self) -> str:
        """Nothing worth saying."""
        return ""

    def close(self) -> None:
        """Nothing to let go of."""


@final
class OnTheFly(PairSource):
    """Counterparts made while the segmenter trains, a bounded number of them ahead of it.

    What is made is up to the plan and to nothing else, and a batch of the generator always has its full size:
    number of workers, lookahead and the point where a killed run went on do not change a bit of any image.

    Args:
        pool: makes images.
        plan: which counterpart a sample uses in an epoch.
        order: the order in which an epoch takes samples.
        epochs: the last epoch; nothing is made beyond it.
        batch_size: images per call of the generator.
        ahead: images that may be ready or under way before they are taken; at least a batch.
        stored: counterparts that need not be made, by sample and replica.
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
        stored: dict[tuple[int, int], Pixels] | None = None,
    ) -> None:
        self.pool, self.plan, self.order = pool, plan, order
        self.epochs, self.batch_size, self.ahead = epochs, batch_size, ahead
        self.made = 0
        self._stored = stored or {}
        self._images: dict[Request, Pixels] = {}  # made and still of use
        self._pending: dict[Request, None] = {}  # to be made, in the order of need
        self._under_way: set[Request] = set()
        self._early: set[Request] = set()  # asked for, not taken yet
        self._gates: tuple[float, ...] = ()
        self._used: dict[int, Replicas] = {}  # of the epochs in sight
        self._began = time.monotonic()
        self._waited = 0.0

    def begin(self, epoch: int, gates: Sequence[float] = ()) -> None:
        """Forget what no epoch will use again, and start making what this one and the next will take."""
        self._gates = tuple(gates)
        self._used.clear()
        in_sight = range(epoch, min(epoch + 1, self.epochs) + 1)
        wanted = dict.fromkeys(need for each in in_sight for need in self._needs(each, self.order(each)))
        kept = set(wanted)
        for each in in_sight:
            kept |= _requests_of(self.plan.current(each, self._gates))
        self._images = {request: image for request, image in self._images.items() if request in kept}
        self._early &= wanted.keys()
        self._pending = {need: None for need in wanted if not self._is_there(need)}
        self._make_ahead()

    def take(self, epoch: int, chosen: np.ndarray) -> Pixels:
        """The counterparts of these samples; waits for those that are not ready."""
        needs = self._needs(epoch, chosen)
        start = time.monotonic()
        self._require(need for need in dict.fromkeys(needs) if need not in self._images)
        self._waited += time.monotonic() - start
        images = np.stack([self._image(need) for need in needs])
        self._early.difference_update(needs)
        self._make_ahead()
        return images

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

    def _is_there(self, need: Request) -> bool:
        """Whether nobody has to be asked for it."""
        is_stored = (need.index, need.replica) in self._stored
        return is_stored or need in self._images or need in self._under_way

    def _image(self, need: Request) -> Pixels:
        return self._images[need] if need in self._images else self._stored[need.index, need.replica]

    def _require(self, needs: Iterable[Request]) -> None:
        """Wait until these are made; those nobody was asked for yet come first now."""
        missing = [need for need in needs if (need.index, need.replica) not in self._stored]
        urgent = [need for need in missing if need not in self._under_way]
        if urgent:
            self._pending = dict.fromkeys([*urgent, *self._pending])
        while any(need in self._pending for need in urgent):
            while not self.pool.has_room:
                self._absorb()
            self._submit()
        while any(need not in self._images for need in missing):
            self._absorb()

    def _make_ahead(self) -> None:
        """Fill the room that is left; an incomplete batch goes only if there is nothing else to do."""
        while (
            self._pending
            and self.pool.has_room
            and len(self._early) + self.batch_size <= self.ahead
            and (len(self._pending) >= self.batch_size or not self._under_way)
        ):
            self._submit()

    def _submit(self) -> None:
        batch = list(islice(self._pending, self.batch_size))
        for need in batch:
            del self._pending[need]
        self._under_way.update(batch)
        self._early.update(batch)
        self.pool.submit(batch)

    def _absorb(self) -> None:
        requests, images = self.pool.collect()
        for request, image in zip(requests, images, strict=True):
            self._images[request] = image
        self._under_way.difference_update(requests)
        self.made += len(requests)


def _requests_of(replicas: Replicas) -> set[Request]:
    return {Request(place, int(number)) for place, row in enumerate(replicas) for number in row}


def _read(path: Path) -> Pixels:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(
            f"Cannot read the synthetic image {path}: {error}. Delete the pairs folder to redo it."
        ) from error
