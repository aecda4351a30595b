"""How mixed images move towards real ones while RLA trains: features at nine epochs, on one map."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.errors import DependencyError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.cache import cache_of, load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.generator.adapt import features_of
from mcpmix.generator.ledger import admitted_replicas, read_rows
from mcpmix.generator.pair_source import REAL, read_bank
from mcpmix.generator.workers import Request
from mcpmix.mixing.mcpmix import mix
from mcpmix.networks.features import load_features

_POINTS = 9
_NEIGHBOURS = 15  # of UMAP; its own default, less where there are fewer images


@dataclass(frozen=True)
class Point:
    """Mixed images at one epoch."""

    epoch: int
    s: float  # share of the synthetic image, mean of the epoch
    distance: float  # between the centroids of mixed and real images in the features
    mixed: np.ndarray  # (N, 2) on the map


@dataclass(frozen=True)
class Features:
    """Real images on the map, and mixed ones at each epoch."""

    real: np.ndarray  # (N, 2)
    points: list[Point]

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest coordinates, with a margin."""
        all_ = np.concatenate([self.real, *(point.mixed for point in self.points)])
        low, high = all_.min(0), all_.max(0)
        return low - 0.05 * (high - low), high + 0.05 * (high - low)


def require_umap() -> Any:  # noqa: ANN401 (it has no types)
    """The package of the map; a DependencyError names the extra that brings it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # about a part of it that nobody asks for
            import umap
    except ImportError as error:
        raise DependencyError(
            "The figure `distribution` needs the package umap-learn: pip install 'mcpmix[analysis]', or "
            "leave the figure out."
        ) from error
    return umap


def measure_distribution(
    config: Config, dataset: Artifact, pairs: Artifact, log: Sequence[Mapping[str, Any]]
) -> Features:
    """Mix each training image with a counterpart at the shares of nine epochs of a log, and map all of them.

    The shares are those that training has logged, so no training is repeated. Images without a counterpart in
    the bank stay as they are, as in training.
    """
    umap = require_umap()
    index = DatasetIndex.read(dataset)
    train = load_arrays(index.part("train"), config.data.size, cache_of(dataset.folder))
    numbers = [found or (REAL,) for found in admitted_replicas(read_rows(pairs.folder), train.ids)]
    bank = read_bank(pairs.folder, numbers, train)
    phi = load_features(config.rla.features)
    rows = {int(row["epoch"]): float(row["s"]) for row in log if "s" in row}
    order = sorted(rows)
    chosen = sorted({order[round(place)] for place in np.linspace(0, len(order) - 1, _POINTS)})
    real_images = torch.from_numpy(train.images).float()
    with torch.inference_mode():
        real = features_of(phi, train.images)
        mixed = []
        for turn, epoch in enumerate(chosen):
            drawn = [Request(place, found[turn % len(found)]) for place, found in enumerate(numbers)]
            synthetic = torch.from_numpy(np.stack([bank[request] for request in drawn])).float()
            images = mix(real_images, synthetic, rows[epoch]).round().to(torch.uint8).numpy()
            mixed.append(features_of(phi, images))
    everything = np.concatenate([real, *mixed])
    neighbours = min(_NEIGHBOURS, len(everything) - 1)
    reducer = umap.UMAP(n_neighbors=neighbours, init="pca", random_state=0, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few images make a rough map is plain to see
        flat = np.split(np.asarray(reducer.fit_transform(everything)), 1 + len(mixed))
    points = [
        Point(epoch, rows[epoch], float(np.linalg.norm(found.mean(0) - real.mean(0))), place)
        for epoch, found, place in zip(chosen, mixed, flat[1:], strict=True)
    ]
    return Features(flat[0], points)


def trend(epochs: Sequence[int], distances: Sequence[float]) -> float:
    """Rank correlation of distance and epoch: -1 for a distance that always falls; NaN for fewer than two."""
    from scipy import stats

    if len(epochs) < 2 or len(set(distances)) < 2:
        return float("nan")
    return float(stats.spearmanr(epochs, distances).statistic)
