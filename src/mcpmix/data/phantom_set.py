"""A labelled data set of phantom frames on disk, with patients that pretraining never saw."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS, Split
from mcpmix.phantom import render

PRETRAINING_SEED = 1_000_003
"""Seed of the phantom world on which the embedded weights are trained; no data set may use it."""


@dataclass(frozen=True)
class _Frame:
    part: str
    patient: int
    frame: int

    @property
    def group(self) -> str:
        return f"p{self.patient:03d}"

    @property
    def id(self) -> str:
        return f"{self.group}_f{self.frame:02d}"


def world_seed(seed: int) -> int:
    """Seed of the phantom world that belongs to a run's seed; never that of pretraining.

    Args:
        seed: seed of the run.

    Returns:
        A seed in [0, 2**31).
    """
    world = seed_for("phantom", seed) % 2**31
    return world + 1 if world == PRETRAINING_SEED else world


def write_phantom_set(
    folder: Path,
    *,
    train_patients: int,
    validation_patients: int,
    test_patients: int,
    frames_per_patient: int,
    test_frames_per_patient: int,
    seed: int,
    size: int,
    progress: Progress = SILENT,
) -> tuple[list[Sample], Split]:
    """Render phantom frames to `folder/images` and `folder/masks` (PNG; masks 0 and 255).

    The parts share no patient, and a part keeps its patients when the others grow. Files that are there
    already are kept, so a killed call can be repeated; the folder must belong to these arguments alone.

    Args:
        folder: where to write.
        train_patients: number of patients for training.
        validation_patients: number of patients for choosing the checkpoint.
        test_patients: number of patients for the final figures.
        frames_per_patient: frames of each training and validation patient.
        test_frames_per_patient: frames of each test patient.
        seed: seed of the run.
        size: side in pixels, 16..2048.
        progress: where rendering reports to.

    Returns:
        The samples (ids like p003_f02, group p003, source "phantom") and their split.

    Raises:
        DataError: the size is out of range.
    """
    patients = dict(zip(PARTS, (train_patients, validation_patients, test_patients), strict=True))
    frames = dict(zip(PARTS, (frames_per_patient, frames_per_patient, test_frames_per_patient), strict=True))
    plan = list(_plan(patients, frames))
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    samples = [
        Sample(
            item.id,
            folder / "images" / f"{item.id}.png",
            folder / "masks" / f"{item.id}.png",
            item.group,
            "phantom",
        )
        for item in plan
    ]
    missing = [
        (item, sample)
        for item, sample in zip(plan, samples, strict=True)
        if not (sample.image.exists() and sample.mask.exists())
    ]
    world = world_seed(seed)
    with progress.track("Rendering phantom frames", len(plan), len(plan) - len(missing)) as advance:
        for item, sample in missing:
            picture = render(world, item.patient, item.frame, size)
            write_png(sample.image, picture.image)
            write_png(sample.mask, picture.mask * np.uint8(255))
            advance()
    ids = {part: tuple(item.id for item in plan if item.part == part) for part in PARTS}
    return samples, Split(**ids)


def _plan(patients: dict[str, int], frames: dict[str, int]) -> Iterator[_Frame]:
    """All frames. Patients are numbered in turn, so that growing one part moves no patient of another."""
    for offset, part in enumerate(PARTS):
        for turn in range(patients[part]):
            for frame in range(frames[part]):
                yield _Frame(part, turn * len(PARTS) + offset, frame)
