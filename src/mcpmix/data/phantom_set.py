"""The procedural data set on disk: which frames of which patients, rendered once."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np

from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.data.leakage import look_of, matches
from mcpmix.data.sample import Sample
from mcpmix.data.splits import ALL_PARTS, KNOWN, PARTS, Split

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
    known_frames_per_patient: int = 0,
    seed: int,
    size: int,
    labels: int = 2,
    progress: Progress = SILENT,
) -> tuple[list[Sample], Split]:
    """Render phantom frames to `folder/images` and `folder/masks` (PNG; masks 0 and 255, or labels).

    Only train and known share patients, and a part keeps its patients when others grow. Files that are there
    already are kept, so a killed call can be repeated; the folder must belong to these arguments alone.

    Args:
        frames_per_patient: of each training and validation patient; known frames are the next ones.
        seed: of the run.
        size: side in pixels, 16..2048.
        labels: 2, or 3 for two kinds of lesion, whose masks have the labels 1 and 2.

    Returns:
        The samples (ids like p003_f02, group p003, source "phantom") and their split.
    """
    from mcpmix.phantom import render

    patients = (train_patients, validation_patients, test_patients)
    frames = (frames_per_patient, frames_per_patient, test_frames_per_patient)
    # Patients are numbered in turn, so that growing one part moves no patient of another.
    plan = [
        (part, turn * len(PARTS) + offset, frame)
        for offset, part in enumerate(PARTS)
        for turn in range(patients[offset])
        for frame in range(frames[offset])
    ]
    world = world_seed(seed)
    for patient in range(0, train_patients * len(PARTS), len(PARTS)):
        new = islice(_new_frames(world, patient, frames_per_patient, size, labels), known_frames_per_patient)
        plan += [(KNOWN, patient, frame) for frame in new]
    ids: dict[str, list[str]] = {part: [] for part in ALL_PARTS}
    samples, missing = [], []
    for part, patient, frame in plan:
        name = f"p{patient:03d}_f{frame:02d}"
        image, mask = (folder / kind / f"{name}.png" for kind in ("images", "masks"))
        samples.append(Sample(name, image, mask, f"p{patient:03d}", "phantom", labels=labels))
        ids[part].append(name)
        if not (image.exists() and mask.exists()):
            missing.append((patient, frame, image, mask))
    with progress.track("Rendering phantom frames", len(plan), len(plan) - len(missing)) as advance:
        for patient, frame, image, mask in missing:
            picture = render(world, patient, frame, size, kinds=labels - 1)
            write_png(image, picture.image)
            write_png(mask, picture.mask if labels > 2 else picture.mask * np.uint8(255))
            advance()
    return samples, Split(*(tuple(ids[part]) for part in ALL_PARTS))


def _new_frames(world: int, patient: int, trained: int, size: int, labels: int) -> Iterator[int]:
    """Numbers of a patient's frames after the first `trained` ones, without near-duplicates of these."""
    from mcpmix.phantom import render

    def look(frame: int) -> str:
        return look_of(render(world, patient, frame, size, kinds=labels - 1).image)

    # One in 200 has nearly the same view of another lesion, and evaluation would refuse it.
    looks = [look(frame) for frame in range(trained)]
    for frame in count(trained):
        if not any(matches([look(frame)], looks)):
            yield frame
