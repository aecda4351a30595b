"""Is a synthetic image a copy? How near it is to its source, to other training images and to held-out ones.

Two distances are measured. *Features*: in phi, in units of the mean distance between real images of different
groups, so that 1 is as far as two patients are from each other. Features do not encode position, and two
patients under the same light may be as near as two photographs of one scene. *Picture*: between coarse
pictures, 16 x 16 means of each channel, centred and brought to one length, so that it is sqrt(2 - 2 r) for a
correlation of r: 0 for the same picture whatever its brightness, contrast and sharpness, 1.4 for unrelated
ones. A training image may be copied turned or mirrored, as fine-tuning shows it; the nearest view counts.

How near a copy is, is read from the real images, for each distance apart (see `Calibration`). The hashes of
data/leakage would not do: they find the same photograph in another file, which a generator never draws.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.pixels import Pixels, as_images
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import apply_colour, apply_geometry, draw_colour, draw_geometry
from mcpmix.data.index import Arrays

Floats = npt.NDArray[np.float64]

_TWINS = 4  # near-duplicates made of each training image
_TURN, _ZOOM = 2.0, 0.03  # degrees and relative size by which they are moved
_TONE = 0.1  # strength of their colour change: 4 percent of tone, 1 percent of tint
_NOISE = 2 / 255  # their noise, of the order of what JPEG leaves
_MISTAKEN = 0.01  # share of images of other groups that may pass for copies
_SIDE = 16  # of coarse pictures
_FLAT = 2 / 255  # spread below which a coarse picture counts as flat: noise is not blown up to a picture
_BATCH = 16
_MOST_COMPARED = 4096  # images from which distances are read; of more, some are taken, evenly spread
_BLOCK = _MOST_COMPARED**2  # distances in memory at once


@dataclass(frozen=True)
class Calibration:
    """How near copies are, and how near images that cannot be copies are.

    Attributes:
        twins: distances between training images and near-duplicates of them; of more than 4096, of so many.
        strangers: distances of real images that cannot be copies: of each training image to the nearest one
            of another group, and of each held-out image to the nearest training image; where there are more
            than 4096 of them, of so many. May be empty.
    """

    twins: Floats
    strangers: Floats

    def limit(self, quantile: float) -> float:
        """The distance below which this share of near-duplicates lies, but hardly any stranger."""
        if quantile == 0:
            return 0.0
        near = float(np.quantile(self.twins, quantile))
        if len(self.strangers):
            near = min(near, float(np.quantile(self.strangers, _MISTAKEN, method="lower")))
        return near

    def as_json(self, limit: float) -> dict[str, float | None]:
        """A limit, and the shares of near-duplicates and of strangers below it."""
        mistaken = float(np.mean(self.strangers < limit)) if len(self.strangers) else None
        return {"limit": limit, "found": float(np.mean(self.twins < limit)), "mistaken": mistaken}


def copy_problems(distances: Mapping[str, float | str], limits: Mapping[str, float]) -> list[str]:
    """Why an image counts as a copy, from what `CopyCheck` gives; empty: it does not."""
    compared = (
        ("features", "its source", "distance_source"),
        ("features", distances["nearest_train"], "distance_train"),
        ("picture", "its source", "picture_source"),
        ("picture", distances["alike_train"], "picture_train"),
    )
    return [
        f"copy: {kind} of {whose} at {distances[name]:.3f} < {limits[kind]:.3f}"
        for kind, whose, name in compared
        if float(distances[name]) < limits[kind]
    ]


class CopyCheck:
    """Features and coarse pictures of all real images, and how near a copy is.

    Args:
        phi: B,3,H,W images in [0, 1] to B,F features.
        train: training images, at least two.
        held_out: validation images; may be empty.
        seed: of the near-duplicates that the limits are taken from.
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
        self.train, self.train_pictures = self.features(train.images), pictures(train.images)
        self.held_out = self.features(held_out.images) if len(held_out) else None
        self._held_out_squares = _squares(self.held_out) if self.held_out is not None else np.empty(0)
        self._squares, self._picture_squares = _squares(self.train), _squares(self.train_pictures)
        _, group = np.unique(np.asarray(groups), return_inverse=True)
        some = _spread(len(train))
        places = np.arange(len(train))[some]
        apart = group[some, None] != group[None, some]
        between = _distances(self.train[some], self.train[some], self._squares[some])
        # One group only: the mean over all images. Identical images: any unit will do.
        counted = apart if apart.any() else ~np.eye(len(apart), dtype=bool)
        self.unit = (float(between[counted].mean()) if counted.any() else 0.0) or 1.0
        near, alike = [], []  # distances between all near-duplicates and their originals
        for twin in range(_TWINS):
            for start in range(0, len(places), _BATCH):
                rows = places[start : start + _BATCH]
                copies = near_duplicates(as_images(train.images[rows]), torch_rng("twins", seed, twin, start))
                near.append(np.linalg.norm(self._run(copies) - self.train[rows], axis=1) / self.unit)
                alike.append(np.linalg.norm(_coarse(copies) - self.train_pictures[rows], axis=1))
        far = [_to_another_group(self._feature_distances, self.train, group, group)]
        unlike = [_to_another_group(self._picture_distances, self.train_pictures, group, group)]
        if self.held_out is not None:
            none = np.full(len(held_out), -1)
            far.append(_to_another_group(self._feature_distances, self.held_out, none, group))
            unseen = pictures(held_out.images)
            unlike.append(_to_another_group(self._picture_distances, unseen, none, group))
        self.calibrations = {
            "features": Calibration(np.concatenate(near), np.concatenate(far)),
            "picture": Calibration(np.concatenate(alike), np.concatenate(unlike)),
        }

    def limits(self, quantile: float, strength: float) -> dict[str, float]:
        """By kind, `features` and `picture`: the distance below which an image counts as a copy.

        Never so large that more than one in a hundred real images would pass for copies.

        Args:
            quantile: share of near-duplicates that are to be found; 0: nothing is a copy.
            strength: of synthesis. Images that start from their source are meant to stay near it, so the
                limit shrinks in proportion.
        """
        return {kind: each.limit(quantile) * strength for kind, each in self.calibrations.items()}

    def as_json(self, limits: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
        """Limits with what they mean: which shares of near-duplicates and of strangers are below them."""
        return {kind: each.as_json(limits[kind]) for kind, each in self.calibrations.items()}

    def features(self, images: Pixels) -> Floats:
        """N,F features of N,S,S,3 uint8 images."""
        return np.concatenate([self._run(part) for part in _tensors(images)])

    def measure(
        self, features: Floats, images: Pixels, sources: Sequence[int | None]
    ) -> list[dict[str, float | str]]:
        """Distances of B synthetic images, with the names that they have in the ledger.

        Args:
            features: B,F, from `features`.
            images: B,S,S,3 uint8.
            sources: the place of each image's source in the training images; None: it has none, and is NaN
                away from it.

        Returns:
            For each image: in features `distance_source`, `distance_train` to the nearest other training
            image, which is `nearest_train`, and `distance_held_out` to the nearest validation image (NaN if
            there is none); of pictures `picture_source` and `picture_train`, whose image is `alike_train`.
        """
        to_train = self._feature_distances(features)
        to_pictures = self._picture_distances(pictures(images))
        to_held_out = np.full(len(features), np.nan)
        if self.held_out is not None:
            distances = _distances(features, self.held_out, self._held_out_squares)
            to_held_out = distances.min(axis=1) / self.unit
        results: list[dict[str, float | str]] = []
        for row, picture, source, unseen in zip(to_train, to_pictures, sources, to_held_out, strict=True):
            other = np.arange(len(row)) == source
            nearest = int(np.where(other, np.inf, row).argmin())
            alike = int(np.where(other, np.inf, picture).argmin())
            results.append(
                {
                    "distance_source": np.nan if source is None else float(row[source]),
                    "distance_train": float(row[nearest]),
                    "nearest_train": self.ids[nearest],
                    "distance_held_out": float(unseen),
                    "picture_source": np.nan if source is None else float(picture[source]),
                    "picture_train": float(picture[alike]),
                    "alike_train": self.ids[alike],
                }
            )
        return results

    def spread(self, features: Floats) -> float:
        """Mean distance between B images, in units; NaN for fewer than two."""
        if len(features) < 2:
            return float("nan")
        upper = np.triu_indices(len(features), 1)
        return float(_distances(features, features, _squares(features))[upper].mean() / self.unit)

    def _feature_distances(self, features: Floats) -> Floats:
        """B,N distances of B,F features to the training images."""
        return _distances(features, self.train, self._squares) / self.unit

    def _picture_distances(self, coarse: Floats) -> Floats:
        """B,N distances of B coarse pictures to the training images, each in its nearest of eight views."""
        squares = coarse.reshape(len(coarse), -1, _SIDE, _SIDE)
        nearest = np.full((len(coarse), len(self.train_pictures)), np.inf)
        for quarter in range(4):
            turned = np.rot90(squares, quarter, (2, 3))
            for view in (turned, turned[..., ::-1]):
                turned_rows = view.reshape(len(coarse), -1)
                distances = _distances(turned_rows, self.train_pictures, self._picture_squares)
                np.minimum(nearest, distances, out=nearest)
        return nearest

    @torch.inference_mode()
    def _run(self, images: Tensor) -> Floats:
        features: Floats = self.phi(images.to(self.device)).double().cpu().numpy()
        return features


def near_duplicates(images: Tensor, rng: torch.Generator) -> Tensor:
    """Near-duplicates of B,3,H,W images in [0, 1]: slightly moved, recoloured and noisy."""
    count = len(images)
    geometry = draw_geometry(count, rng, rotate=_TURN, scale=_ZOOM, flip=False)
    moved = apply_colour(draw_colour(count, rng, _TONE), apply_geometry(geometry, images))
    noisy = moved + _NOISE * torch.randn(moved.shape, generator=rng)
    return F.hardtanh(noisy, 0.0, 1.0)


def pictures(images: Pixels) -> Floats:
    """N,P coarse pictures of N,S,S,3 uint8 images, each of length 1, or shorter where it is flat."""
    return np.concatenate([_coarse(part) for part in _tensors(images)])


def _coarse(images: Tensor) -> Floats:
    """Means of 16 x 16 blocks without the mean of each channel, B,P, of B,3,H,W images in [0, 1]."""
    blocks = F.adaptive_avg_pool2d(images, _SIDE).double()
    centred = (blocks - blocks.mean((2, 3), keepdim=True)).flatten(1)
    shortest = _FLAT * centred.shape[1] ** 0.5
    coarse: Floats = (centred / centred.norm(dim=1, keepdim=True).clamp(min=shortest)).numpy()
    return coarse


def _tensors(images: Pixels) -> Iterator[Tensor]:
    """B,3,S,S in [0, 1], a few images at a time."""
    return (as_images(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH))


def _squares(vectors: Floats) -> Floats:
    """Squared lengths of N,F."""
    lengths: Floats = (vectors**2).sum(axis=1)
    return lengths


def _distances(one: Floats, two: Floats, squares: Floats) -> Floats:
    """B,N distances of B,F and N,F, without the large array B,N,F; `squares` are those of the second."""
    result: Floats = np.sqrt(np.maximum(_squares(one)[:, None] + squares[None] - 2 * one @ two.T, 0.0))
    return result


def _spread(count: int) -> slice | npt.NDArray[np.int64]:
    """Places of all of some images, or of 4096 of them."""
    return slice(None) if count <= _MOST_COMPARED else np.linspace(0, count - 1, _MOST_COMPARED).astype(int)


def _to_another_group(
    distances: Callable[[Floats], Floats],
    vectors: Floats,
    own: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> Floats:
    """For each of some images the distance to the nearest training image of another group, if there is one.

    Args:
        distances: of B,F vectors to N training images, B,N.
        own: the group of each vector; `groups` has those of the training images.
    """
    some, rows = _spread(len(vectors)), max(1, _BLOCK // len(groups))
    vectors, own, nearest = vectors[some], own[some], []
    for start in range(0, len(vectors), rows):
        part = slice(start, start + rows)
        nearest.append(np.where(own[part, None] != groups, distances(vectors[part]), np.inf).min(axis=1))
    found: Floats = np.concatenate(nearest)
    return found[np.isfinite(found)]
