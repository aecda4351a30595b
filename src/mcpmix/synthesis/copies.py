"""Is a synthetic image a copy? Distances in phi to its source, to other training images and to held-out ones.

Distances are in units of the mean distance between real images of different groups: 1 is as far as two
patients are from each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.seeding import torch_rng
from mcpmix.data.arrays import Arrays
from mcpmix.data.transforms import apply_colour, apply_geometry, draw_colour, draw_geometry

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_TWINS = 4  # near-duplicates made of each training image
_TURN, _ZOOM = 2.0, 0.03  # degrees and relative size by which they are moved
_TONE = 0.1  # strength of their colour change: 4 percent of tone, 1 percent of tint
_NOISE = 2 / 255  # their noise, of the order of what JPEG leaves
_BATCH = 16


@dataclass(frozen=True)
class Distances:
    """Distances of one synthetic image, in units of the mean distance between groups.

    Attributes:
        source: to the image under whose mask it was made.
        train: to the nearest other training image.
        nearest: id of that image.
        held_out: to the nearest validation image; NaN if there is none.
    """

    source: float
    train: float
    nearest: str
    held_out: float


class CopyCheck:
    """Features of all real images, and how near a copy is.

    Args:
        phi: B,3,H,W images in [0, 1] to B,F features.
        train: training images, at least two.
        groups: the group of each.
        held_out: validation images; may be empty.
        seed: of the near-duplicates that the limit is taken from.
        device: where phi runs.
    """

    def __init__(
        self,
        phi: nn.Module,
        train: Arrays,
        groups: Sequence[str],
        held_out: Arrays,
        *,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.phi, self.device = phi.to(device), torch.device(device)
        self.ids = train.ids
        self.train = self.features(train.images)
        self.held_out = self.features(held_out.images) if len(held_out) else None
        self.unit = _between_groups(self.train, np.asarray(groups))
        self.twins = self._twin_distances(train, seed)

    def limit(self, quantile: float, strength: float) -> float:
        """The distance below which an image counts as a copy.

        Args:
            quantile: of the distances between real images and near-duplicates of them (turned by up to 2
                degrees, zoomed by 3 percent, colours off by a few percent, noise). 0.5: what is nearer than
                half of the near-duplicates is a copy.
            strength: of synthesis. Images that start from their source are meant to stay near it, so the
                limit shrinks in proportion.
        """
        return float(np.quantile(self.twins, quantile)) * strength

    def features(self, images: Pixels) -> Floats:
        """N,F features of N,S,S,3 uint8 images."""
        return np.concatenate(
            [
                self._run(torch.from_numpy(np.array(part)).permute(0, 3, 1, 2).float() / 255)
                for part in _chunks(images)
            ]
        )

    def measure(self, features: Floats, sources: Sequence[int]) -> list[Distances]:
        """Distances of B synthetic images.

        Args:
            features: B,F, from `features`.
            sources: the place of each image's source in the training images.
        """
        to_train = _distances(features, self.train) / self.unit
        if self.held_out is None:
            to_held_out = np.full(len(features), np.nan)
        else:
            to_held_out = _distances(features, self.held_out).min(axis=1) / self.unit
        results = []
        for row, source, unseen in zip(to_train, sources, to_held_out, strict=True):
            others = row.copy()
            others[source] = np.inf
            nearest = int(others.argmin())
            results.append(
                Distances(float(row[source]), float(others[nearest]), self.ids[nearest], float(unseen))
            )
        return results

    def spread(self, features: Floats) -> float:
        """Mean distance between B images, in units; NaN for fewer than two."""
        if len(features) < 2:
            return float("nan")
        upper = np.triu_indices(len(features), 1)
        return float(_distances(features, features)[upper].mean() / self.unit)

    def _twin_distances(self, train: Arrays, seed: int) -> Floats:
        distances = []
        for twin in range(_TWINS):
            for start in range(0, len(train), _BATCH):
                part = train.images[start : start + _BATCH]
                images = torch.from_numpy(np.array(part)).permute(0, 3, 1, 2).float() / 255
                copies = near_duplicates(images, torch_rng("twins", seed, twin, start))
                gap = self._run(copies) - self.train[start : start + len(part)]
                distances.append(np.linalg.norm(gap, axis=1) / self.unit)
        return np.concatenate(distances)

    @torch.inference_mode()
    def _run(self, images: Tensor) -> Floats:
        features: Floats = self.phi(images.to(self.device)).double().cpu().numpy()
        return features


def near_duplicates(images: Tensor, rng: torch.Generator) -> Tensor:
    """Images that a person would call the same: B,3,H,W in [0, 1], slightly moved, recoloured and noisy."""
    count = len(images)
    geometry = draw_geometry(count, rng, rotate=_TURN, scale=_ZOOM, flip=False)
    moved = apply_colour(draw_colour(count, rng, _TONE), apply_geometry(geometry, images))
    noisy = moved + _NOISE * torch.randn(moved.shape, generator=rng)
    return F.hardtanh(noisy, 0.0, 1.0)


def _chunks(images: Pixels) -> list[Pixels]:
    return [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]


def _distances(one: Floats, two: Floats) -> Floats:
    result: Floats = np.linalg.norm(one[:, None] - two[None], axis=2)
    return result


def _between_groups(features: Floats, groups: npt.NDArray[np.str_]) -> float:
    """Mean distance between images of different groups; of all images if there is one group only."""
    apart = groups[:, None] != groups[None]
    if not apart.any():
        apart = ~np.eye(len(groups), dtype=bool)
    mean = float(_distances(features, features)[apart].mean()) if apart.any() else 0.0
    return mean or 1.0  # identical images: any unit will do
