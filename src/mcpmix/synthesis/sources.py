"""Where training gets the counterpart of a sample in an epoch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.seeding import numpy_rng
from mcpmix.synthesis.counterparts import CounterpartMaker, Request


class PairSource(ABC):
    """Gives I_s for samples and an epoch."""

    @abstractmethod
    def epoch(self, epoch: int) -> np.ndarray:
        """N,S,S,3 uint8: one counterpart for each training sample, in the order of the arrays."""

    @abstractmethod
    def close(self) -> None:
        """Let go of processes and memory."""


@final
class PairBank(PairSource):
    """Stored counterparts; each epoch draws one replica per sample.

    Args:
        folder: the pairs artefact.
        ids: training samples in order.
        replicas: stored counterparts per sample.
        seed: of the draws.
    """

    def __init__(self, folder: Path, ids: Sequence[str], replicas: int, seed: int) -> None:
        self.images = np.stack(
            [[_read(folder / "images" / name / f"{k}.png") for k in range(replicas)] for name in ids]
        )
        self.seed = seed

    def epoch(self, epoch: int) -> np.ndarray:
        """One replica per sample, drawn by (seed, epoch)."""
        count, replicas = self.images.shape[:2]
        chosen = numpy_rng("replica", self.seed, epoch).integers(replicas, size=count)
        return self.images[np.arange(count), chosen]

    def close(self) -> None:
        """Nothing to let go of."""


MakeMaker = Callable[[], CounterpartMaker]


@final
class OnTheFly(PairSource):
    """New counterparts each epoch, made by a worker process while the epoch before is trained.

    Replica `epoch - 1` of the same seeds that a bank would use, so a bank with enough replicas holds the very
    same images.

    Args:
        make_maker: builds the generator inside the worker; must be picklable.
        count: number of training samples.
        batch_size: images per generator call.
        epochs: the last epoch; nothing is made beyond it.
    """

    def __init__(self, make_maker: MakeMaker, count: int, batch_size: int, epochs: int) -> None:
        self.count, self.batch_size, self.epochs = count, batch_size, epochs
        self._pool = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_start_worker, initargs=(make_maker,)
        )
        self._pending: dict[int, Future[np.ndarray]] = {}

    def epoch(self, epoch: int) -> np.ndarray:
        """The images of this epoch; starts making those of the next one."""
        for wanted in (epoch, epoch + 1):
            if wanted <= self.epochs and wanted not in self._pending:
                self._pending[wanted] = self._pool.submit(
                    _make_epoch, self.count, wanted - 1, self.batch_size
                )
        for past in [number for number in self._pending if number < epoch]:
            del self._pending[past]
        return self._pending[epoch].result()

    def close(self) -> None:
        """End the worker; images under way are dropped."""
        self._pool.shutdown(cancel_futures=True)


_worker_maker: CounterpartMaker | None = None  # one per worker process, set by its initialiser


def _start_worker(make_maker: MakeMaker) -> None:
    global _worker_maker
    _worker_maker = make_maker()


def _make_epoch(count: int, replica: int, batch_size: int) -> np.ndarray:
    assert _worker_maker is not None
    requests = [Request(index, replica) for index in range(count)]
    chunks = [requests[start : start + batch_size] for start in range(0, count, batch_size)]
    return np.concatenate([_worker_maker.make(chunk) for chunk in chunks])


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(
            f"Cannot read the synthetic image {path}: {error}. Delete the pairs folder to redo it."
        ) from error
