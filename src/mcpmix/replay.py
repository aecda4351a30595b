"""Regenerates one counterpart from its identity, alone, to the bits it had in its batch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcpmix.config import Config
from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.index import INDEX, DatasetIndex, load_arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.counterparts import build_maker, make_filled
from mcpmix.generator.depth import read_depths
from mcpmix.generator.ledger import place_of, read_rows
from mcpmix.generator.workers import Request
from mcpmix.run import run


@dataclass(frozen=True)
class Remade:
    """A regenerated counterpart."""

    image: Pixels  # S,S,3
    seed: int  # of its noise
    prompt: str
    stored: Path | None  # the file of the bank that it belongs to; None if the bank has none
    difference: int | None  # largest difference from that file in grey levels, 0 if not a bit differs


def remake(config: Config, name: str, replica: int, progress: Progress = SILENT) -> Remade:
    """Regenerate one counterpart, whatever batch it came from; stages up to the generator run if needed.

    Noise and prompt come from run, sample and replica; the batch is padded to its usual size, at which the
    networks round as they did. Only this sample is read.

    Args:
        name: id of a training image.
        replica: number in the bank (`pairs/images/ID/REPLICA.png`). One that the bank does not hold is the
            draw of that number: pairs made in training take draw `epoch - 1`.
    """
    made = run(config, progress, until="generator")
    config = made.on_base(config)
    assert made.dataset is not None and made.depth is not None and made.generator is not None  # noqa: PT018
    records = DatasetIndex.read(made.dataset).part("train")
    chosen = [record for record in records if record.id == name]
    if not chosen:
        raise DataError(
            f"No training image has the id {name!r}. Ids look like {records[0].id!r}; all of them are in "
            f"{made.dataset / INDEX}."
        )
    arrays = load_arrays(chosen, config.data.size)
    depths = read_depths(made.depth.folder, arrays.ids)
    maker = build_maker(config, made.generator.folder, arrays, depths, made.runtime.device)
    pairs = config.folder / "pairs"
    attempts = [
        int(row["try"])
        for row in read_rows(pairs)
        if (row["parent"], row["replica"], row["admitted"]) == (name, replica, True)
    ]
    attempt = attempts[0] if attempts else 0
    request = Request(0, replica + attempt * config.synthesis.replicas)
    image = make_filled(maker, [request], config.synthesis.batch_size)[0]
    stored, difference = None, None
    if attempts:
        stored = pairs / place_of(name, replica, attempt, admitted=True)
        difference = int(np.abs(read_image(stored).astype(int) - image.astype(int)).max())
    return Remade(image, maker.seed(request), maker.text(request), stored, difference)
