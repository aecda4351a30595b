"""Is a synthetic image a copy? How near it is to its source, to other training images and to held-out ones.

Two distances are measured. *Features*: in phi, in units of the mean distance between real images of different
groups, so that 1 is as far as two patients are from each other. Features forget where things are, and two
patients under the same light may be as near as two photographs of one scene. *Picture*: between coarse
pictures, 16 x 16 means of each channel, centred and brought to one length, so that it is sqrt(2 - 2 r) for a
correlation of r: 0 for the same picture whatever its brightness, contrast and sharpness, 1.4 for unrelated
ones. A training image may be copied turned or mirrored, as fine-tuning shows it; the nearest view counts.

How near a copy is, is read from the real images, for each distance apart (see `Calibration`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.pixels import as_images
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import apply_colour, apply_geometry, draw_colour, draw_geometry
from mcpmix.data.cache import Arrays

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_TWINS = 4  # near-duplicates made of each training image
_TURN, _ZOOM = 2.0, 0.03  # degrees and relative size by which they are moved
_TONE = 0.1  # strength of their colour change: 4 percent of tone, 1 percent of tint
_NOISE = 2 / 255  # their noise, of the order of what JPEG leaves
_MISTAKEN = 0.01  # share of images of other groups that may pass for copies
_SIDE = 16  # of coarse pictures
_FLAT = 2 / 255  # spread below which a coarse picture counts as flat: noise is not blown up to a picture
_BATCH = 16


@dataclass(frozen=True)
class Distances:
    """Distances of one synthetic image.

    Attributes:
        source: in features, to the image under whose mask it was made.
        train: to the nearest other training image.
        nearest: id of that image.
        held_out: to the nearest validation image; NaN if there is none.
        picture_source: of the pictures, to the image under whose mask it was made, in any of its eight views.
        picture_train: to the most alike other training image.
        alike: id of that image.
    """

    source: float
    train: float
    nearest: str
    held_out: float
    picture_source: float
    picture_train: float
    alike: str


@dataclass(frozen=True)
class Calibration:
    """How near copies are, and how near images are that cannot be any.

    Attributes:
        twins: distances between training images and near-duplicates of them.
        strangers: distances of real images that cannot be copies: of each training image to the nearest one
            of another group, and of each held-out image to the nearest training image. May be empty.
    """

    twins: Floats
    strangers: Floats

    def limit(self, quantile: float, strength: float) -> float:
        """The distance below which an image counts as a copy.

        Never so large that more than one in a hundred real images would pass for copies.

        Args:
            quantile: share of near-duplicates that are to be found; 0: nothing is a copy.
            strength: of synthesis. Images that start from their source are meant to stay near it, so the
                limit shrinks in proportion.
        """
        if quantile == 0:
            return 0.0
        near = float(np.quantile(self.twins, quantile))
        if len(self.strangers):
            near = min(near, float(np.quantile(self.strangers, _MISTAKEN, method="lower")))
        return near * strength

    def as_json(self, limit: float) -> dict[str, float | None]:
        """A limit with what it means: which shares of near-duplicates and of strangers are below it."""
        mistaken = float(np.mean(self.strangers < limit)) if len(self.strangers) else None
        return {"limit": limit, "found": float(np.mean(self.twins < limit)), "mistaken": mistaken}


@dataclass(frozen=True)
class CopyLimits:
    """What is nearer than this, in features or as a picture, is a copy."""

    features: float
    picture: float

    def problems(self, distances: Distances) -> list[str]:
        """Why an image counts as a copy; empty: it is none."""
        compared = (
            ("its source", "features", distances.source, self.features),
            (distances.nearest, "features", distances.train, self.features),
            ("its source", "picture", distances.picture_source, self.picture),
            (distances.alike, "picture", distances.picture_train, self.picture),
        )
        return [
            f"copy: {kind} of {whose} at {distance:.3f} < {limit:.3f}"
            for whose, kind, distance, limit in compared
            if distance < limit
        ]


class CopyCheck:
    """Features and coarse pictures of all real images, and how near a copy is.

    Args:
        phi: B,3,H,W images in [0, 1] to B,F features.
        train: training images, at least two.
        groups: the group of each.
        held_out: validation images; may be empty.
        seed: of the near-duplicates that the limits are taken from.
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
        self.train_pictures = pictures(train.images)
        self.held_out = self.features(held_out.images) if len(held_out) else None
        apart = np.asarray(groups)[:, None] != np.asarray(groups)[None]
        between = _distances(self.train, self.train)
        self.unit = _between_groups(between, apart)
        twins, twin_pictures = self._twin_distances(train, seed)
        unseen = self._unseen(held_out)
        self.calibration = Calibration(
            twins, np.concatenate([_strangers(between / self.unit, apart), unseen[0]])
        )
        others = _strangers(self._picture_distances(self.train_pictures), apart)
        self.picture_calibration = Calibration(twin_pictures, np.concatenate([others, unseen[1]]))

    def limits(self, quantile: float, strength: float) -> CopyLimits:
        """The distances below which an image counts as a copy; arguments as for `Calibration.limit`."""
        return CopyLimits(
            self.calibration.limit(quantile, strength), self.picture_calibration.limit(quantile, strength)
        )

    def as_json(self, limits: CopyLimits) -> dict[str, dict[str, float | None]]:
        """Limits with what they mean, by kind of distance."""
        return {
            "features": self.calibration.as_json(limits.features),
            "picture": self.picture_calibration.as_json(limits.picture),
        }

    def features(self, images: Pixels) -> Floats:
        """N,F features of N,S,S,3 uint8 images."""
        return np.concatenate([self._run(as_images(part)) for part in _chunks(images)])

    def measure(self, features: Floats, images: Pixels, sources: Sequence[int]) -> list[Distances]:
        """Distances of B synthetic images.

        Args:
            features: B,F, from `features`.
            images: B,S,S,3 uint8.
            sources: the place of each image's source in the training images.
        """
        to_train = _distances(features, self.train) / self.unit
        to_pictures = self._picture_distances(pictures(images))
        if self.held_out is None:
            to_held_out = np.full(len(features), np.nan)
        else:
            to_held_out = _distances(features, self.held_out).min(axis=1) / self.unit
        results = []
        for row, picture, source, unseen in zip(to_train, to_pictures, sources, to_held_out, strict=True):
            nearest, alike = _nearest_other(row, source), _nearest_other(picture, source)
            results.append(
                Distances(
                    source=float(row[source]),
                    train=float(row[nearest]),
                    nearest=self.ids[nearest],
                    held_out=float(unseen),
                    picture_source=float(picture[source]),
                    picture_train=float(picture[alike]),
                    alike=self.ids[alike],
                )
            )
        return results

    def spread(self, features: Floats) -> float:
        """Mean distance between B images, in units; NaN for fewer than two."""
        if len(features) < 2:
            return float("nan")
        upper = np.triu_indices(len(features), 1)
        return float(_distances(features, features)[upper].mean() / self.unit)

    def _picture_distances(self, coarse: Floats) -> Floats:
        """B,N distances of B coarse pictures to the training images, each in its nearest view."""
        views = (_distances(view, self.train_pictures) for view in _views(coarse))
        nearest = next(views)
        for distances in views:
            np.minimum(nearest, distances, out=nearest)
        return nearest

    def _unseen(self, held_out: Arrays) -> tuple[Floats, Floats]:
        """Distance of each held-out image to the nearest training image: features, pictures."""
        if self.held_out is None:
            return np.zeros(0), np.zeros(0)
        alike = self._picture_distances(pictures(held_out.images)).min(axis=1)
        return _distances(self.held_out, self.train).min(axis=1) / self.unit, alike

    def _twin_distances(self, train: Arrays, seed: int) -> tuple[Floats, Floats]:
        """Distances between all near-duplicates and their originals: features, pictures."""
        near, alike = [], []
        for twin in range(_TWINS):
            for start in range(0, len(train), _BATCH):
                rows = slice(start, min(start + _BATCH, len(train)))
                rng = torch_rng("twins", seed, twin, start)
                copies = near_duplicates(as_images(train.images[rows]), rng)
                near.append(np.linalg.norm(self._run(copies) - self.train[rows], axis=1) / self.unit)
                alike.append(np.linalg.norm(_coarse(copies) - self.train_pictures[rows], axis=1))
        return np.concatenate(near), np.concatenate(alike)

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


def pictures(images: Pixels) -> Floats:
    """N,P coarse pictures of N,S,S,3 uint8 images, each of length 1, or shorter where it is flat."""
    return np.concatenate([_coarse(as_images(part)) for part in _chunks(images)])


def _coarse(images: Tensor) -> Floats:
    """Means of 16 x 16 blocks without the mean of each channel, B,P, of B,3,H,W images in [0, 1]."""
    blocks = F.adaptive_avg_pool2d(images, _SIDE).double()
    centred = (blocks - blocks.mean((2, 3), keepdim=True)).flatten(1)
    shortest = _FLAT * centred.shape[1] ** 0.5
    coarse: Floats = (centred / centred.norm(dim=1, keepdim=True).clamp(min=shortest)).numpy()
    return coarse


def _views(coarse: Floats) -> list[Floats]:
    """Coarse pictures in the eight symmetries of the square."""
    squares = coarse.reshape(len(coarse), -1, _SIDE, _SIDE)
    turned = [np.rot90(squares, quarter, (2, 3)) for quarter in range(4)]
    return [view.reshape(len(coarse), -1) for square in turned for view in (square, square[..., ::-1])]


def _chunks(images: Pixels) -> list[Pixels]:
    return [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]


def _distances(one: Floats, two: Floats) -> Floats:
    """B,N distances of B,F and N,F, without an array of B,N,F: a few thousand images are no trouble."""
    squares = (one**2).sum(axis=1)[:, None] + (two**2).sum(axis=1)[None] - 2 * one @ two.T
    result: Floats = np.sqrt(np.maximum(squares, 0.0))
    return result


def _nearest_other(row: Floats, source: int) -> int:
    others = row.copy()
    others[source] = np.inf
    return int(others.argmin())


def _strangers(distances: Floats, apart: npt.NDArray[np.bool_]) -> Floats:
    """For each of N images the distance to the nearest of another group, of those that there are."""
    nearest: Floats = np.where(apart, distances, np.inf).min(axis=1)
    return nearest[np.isfinite(nearest)]


def _between_groups(distances: Floats, apart: npt.NDArray[np.bool_]) -> float:
    """Mean distance between images of different groups; of all images if there is one group only."""
    if not apart.any():
        apart = ~np.eye(len(apart), dtype=bool)
    mean = float(distances[apart].mean()) if apart.any() else 0.0
    return mean or 1.0  # identical images: any unit will do
