"""A labelled data set of phantom frames on disk, with patients that pretraining never saw."""

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


def world_seed(seed: int) -> int:
    """Seed in [0, 2**31) of the phantom world that belongs to a run's seed; never that of pretraining."""
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
        frames_per_patient: frames of each training and validation patient.
        seed: of the run.
        size: side in pixels, 16..2048.

    Returns:
        The samples (ids like p003_f02, group p003, source "phantom") and their split.
    """
    patients = (train_patients, validation_patients, test_patients)
    frames = (frames_per_patient, frames_per_patient, test_frames_per_patient)
    # Patients are numbered in turn, so that growing one part moves no patient of another.
    plan = [
        (part, turn * len(PARTS) + offset, frame)
        for offset, part in enumerate(PARTS)
        for turn in range(patients[offset])
        for frame in range(frames[offset])
    ]
    ids: dict[str, list[str]] = {part: [] for part in PARTS}
    samples, missing = [], []
    for part, patient, frame in plan:
        name = f"p{patient:03d}_f{frame:02d}"
        image, mask = (folder / kind / f"{name}.png" for kind in ("images", "masks"))
        samples.append(Sample(name, image, mask, f"p{patient:03d}", "phantom"))
        ids[part].append(name)
        if not (image.exists() and mask.exists()):
            missing.append((patient, frame, image, mask))
    world = world_seed(seed)
    with progress.track("Rendering phantom frames", len(plan), len(plan) - len(missing)) as advance:
        for patient, frame, image, mask in missing:
            picture = render(world, patient, frame, size)
            write_png(image, picture.image)
            write_png(mask, picture.mask * np.uint8(255))
            advance()
    return samples, Split(*(tuple(ids[part]) for part in PARTS))
