"""Stage 0: the data set, split and indexed; the phantom is drawn first if it is asked for.

Each file is decoded once: while its digest and look go to the index, the pixels of training and validation
images go to the decoded cache at training size. (`stratified` and `kfold` read the masks once before, because
the split depends on the sizes of lesions.)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.config import Config, SplitConfig
from mcpmix.core.errors import ConfigError, DataError, bullet_list, sorted_list
from mcpmix.core.files import file_digest, is_stray, read_json, write_json
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, digest_of, reuse, workspace
from mcpmix.data import public_sets
from mcpmix.data.archives import MARK, folder_of
from mcpmix.data.index import DatasetIndex, Record, cache_of, new_cache, seen_from
from mcpmix.data.layouts import READERS, Collection, scan_folder
from mcpmix.data.leakage import look_of, matches, refuse_copies
from mcpmix.data.sample import Sample, likely_mistake, pixel_digest, read_mask, read_pair
from mcpmix.data.splits import (
    ALL_PARTS,
    KNOWN,
    PARTS,
    Split,
    cut_groups,
    fold_split,
    group_split,
    hold_out,
    keep_labels,
    read_split,
    require_same_images,
    stratified_split,
    write_split,
)

FOLDER = "folder"
PRETRAINING_SEED = 1_000_003
"""Seed of the phantom world on which the embedded weights are trained; no data set may use it."""


def key(config: Config) -> StageKey:
    """What the index depends on: for own data, the names and contents of all files.

    Places are those seen from the run's folder, for the index names files that way.
    """
    data, home = config.data, config.folder
    if data.source == "phantom":
        drawn = {name: number for name, number in data.phantom.model_dump().items() if number}
        return StageKey("dataset", {"phantom": drawn, "size": data.size}, {}, config.seed)
    places = {"images": data.images, "masks": data.masks, "root": data.root}
    named = {name: place for name, place in places.items() if place is not None}
    inputs = {name: listing(place, notes_of(config)) for name, place in named.items()}
    for name, file in (("groups", data.groups), ("split", data.split.file)):
        if file is not None and file.is_file():
            inputs[name] = file_digest(file)
    settings = data.model_dump(mode="json", exclude={"phantom", "size", "unlabelled", "groups", *places})
    settings["split"].pop("file")
    settings["places"] = {name: seen_from(home, place) for name, place in named.items()}
    return StageKey("dataset", settings, inputs, config.seed)


def notes_of(config: Config) -> Path:
    """Where a run remembers the digests of its source files."""
    return cache_of(config.folder / "dataset") / "files.json"


def listing(place: Path, notes: Path | None = None) -> str:
    """A digest of the names and contents of all files of a place, a file or a folder.

    What desktops leave behind, such as .DS_Store, and what was unpacked from archives here does not count.

    Args:
        notes: file that remembers digests between two commands, so that only files whose size or times have
            changed are read again. It can be deleted at any time.
    """
    known: dict[str, Any] = {}
    if notes is not None:
        with suppress(OSError, ValueError):
            known = dict(read_json(notes))
    found: dict[str, list[Any]] = {}
    inside = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
    names = sorted(path.as_posix() for path in inside if MARK not in path.as_posix() and not is_stray(path))
    for name in [""] if place.is_file() else names:
        path = place.absolute() / name
        state = path.stat()
        mark = [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        before = known.get(str(path))
        same = isinstance(before, list) and before[:-1] == mark
        found[name] = [*mark, before[-1] if same and before else file_digest(path)]
    fresh = {str(place.absolute() / name): row for name, row in found.items()}
    if notes is not None and any(known.get(name) != row for name, row in fresh.items()):
        with suppress(OSError):  # on read-only storage all is read again the next time
            notes.parent.mkdir(parents=True, exist_ok=True)
            write_json(notes, {**known, **fresh})
    return digest_of([[name, row[-1]] for name, row in found.items()])


def run(config: Config, out: Path, progress: Progress = SILENT) -> Artifact:
    """Draw or find, split and index the samples."""
    stage_key = key(config)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    data = config.data
    with workspace(out, stage_key) as space:
        guessed = False
        if data.source == "phantom":
            samples: Sequence[Sample]
            samples, split = write_phantom_set(
                space.folder, **data.phantom.model_dump(), seed=config.seed, size=data.size, progress=progress
            )
        else:
            places = data.model_dump(include={"root", "images", "masks", "groups"})
            collection = load_collection(data.source, **places, progress=progress)
            samples, split = collection.samples, make_split(collection, data.split, config.seed)
            guessed = collection.guessed
            if data.labelled is not None:
                split = keep_labels(split, samples, data.labelled, config.seed)
        index = build_index(samples, split, progress, cache=cache_of(out), size=data.size)
        digests = {record.id: record.image_sha256 for record in index.records}
        if data.split.file is not None and data.source != "phantom":
            require_same_images(data.split.file, digests)
        index.write(space.folder)
        write_split(space.folder / "split.json", split, digests)
        counts = {part: len(ids) for part, ids in split.parts().items()}
        digests = {"content": index.digest, "training": index.training_digest, "all": index.whole_digest}
        return space.finish(**counts, **digests, leaks=split.leaks, groups_guessed=guessed)


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
    progress: Progress = SILENT,
) -> tuple[list[Sample], Split]:
    """Render phantom frames to `folder/images` and `folder/masks` (PNG; masks 0 and 255).

    Only train and known share patients, and a part keeps its patients when others grow. Files that are there
    already are kept, so a killed call can be repeated; the folder must belong to these arguments alone.

    Args:
        frames_per_patient: of each training and validation patient; known frames are the next ones.
        seed: of the run.
        size: side in pixels, 16..2048.

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
        new = islice(_new_frames(world, patient, frames_per_patient, size), known_frames_per_patient)
        plan += [(KNOWN, patient, frame) for frame in new]
    ids: dict[str, list[str]] = {part: [] for part in ALL_PARTS}
    samples, missing = [], []
    for part, patient, frame in plan:
        name = f"p{patient:03d}_f{frame:02d}"
        image, mask = (folder / kind / f"{name}.png" for kind in ("images", "masks"))
        samples.append(Sample(name, image, mask, f"p{patient:03d}", "phantom"))
        ids[part].append(name)
        if not (image.exists() and mask.exists()):
            missing.append((patient, frame, image, mask))
    with progress.track("Rendering phantom frames", len(plan), len(plan) - len(missing)) as advance:
        for patient, frame, image, mask in missing:
            picture = render(world, patient, frame, size)
            write_png(image, picture.image)
            write_png(mask, picture.mask * np.uint8(255))
            advance()
    return samples, Split(*(tuple(ids[part]) for part in ALL_PARTS))


def _new_frames(world: int, patient: int, trained: int, size: int) -> Iterator[int]:
    """Numbers of a patient's frames after the first `trained` ones, without near-duplicates of these."""
    from mcpmix.phantom import render

    # One in 200 has nearly the same view of another lesion, and evaluation would refuse it.
    looks = [look_of(render(world, patient, frame, size).image) for frame in range(trained)]
    for frame in count(trained):
        if not any(matches([look_of(render(world, patient, frame, size).image)], looks)):
            yield frame


def load_collection(
    source: str,
    *,
    root: Path | None = None,
    images: Path | None = None,
    masks: Path | None = None,
    groups: Path | None = None,
    progress: Progress = SILENT,
) -> Collection:
    """The samples of a source, by the names of their files; nothing is decoded.

    Args:
        source: folder, manifest, nnunet, imagefolder, or a name of the catalogue.
        root: a folder, file or archive; for `folder`, `images` and `masks` may be given instead.
        groups: CSV with the columns id and group.

    Raises:
        ConfigError: there is no such source.
        DataError: with every problem of the files; if there is one, they are decoded to find all others.
    """
    if source == FOLDER and images is not None and masks is not None:
        return scan_folder(images, masks, groups)
    read = READERS.get(source)
    if read is None and source not in public_sets.entries():
        known = ", ".join((*READERS, "phantom", *public_sets.entries()))
        raise ConfigError(f"data.source: no source {source!r}. Known: {known}.")
    if root is None:
        raise ConfigError(f"data.root: missing; the source {source} needs the folder where its files are.")
    return read(folder_of(root, progress)) if read else public_sets.load(source, root, progress)


def make_split(
    collection: Collection,
    settings: SplitConfig,
    seed: int,
    area_of: Callable[[Sample], float] = lambda sample: float(read_mask(sample.mask).mean()),
) -> Split:
    """Split a data set as its configuration says.

    Args:
        area_of: share of an image that is lesion, 0..1; asked for by stratified and kfold.

    Raises:
        ConfigError: the data has no split of this name.
        DataError: the split does not fit the data, or separates a group and is not a split known to do so.
    """
    samples, name = collection.samples, settings.method
    if settings.file is not None:
        return read_split(settings.file, samples)
    if name == "random":
        return group_split(samples, settings.validation, settings.test, seed)
    if name in ("stratified", "kfold"):
        areas = {sample.id: area_of(sample) for sample in samples}
        if name == "stratified":
            return stratified_split(samples, areas, settings.validation, settings.test, seed)
        return fold_split(samples, areas, settings.folds, settings.fold, settings.validation, seed)
    if name not in collection.splits:
        known = ", ".join(("random", "stratified", "kfold", *collection.splits))
        raise ConfigError(f"data.split.method: the data comes with no split {name!r}. Known for it: {known}.")
    given = dict(collection.splits[name])
    named = [sample for sample in samples if sample.id in given]
    if "validation" not in given.values():
        training = [sample for sample in named if given[sample.id] == "train"]
        given |= dict.fromkeys(hold_out(training, settings.validation, seed), "validation")
    parts = {part: tuple(item.id for item in named if given[item.id] == part) for part in ALL_PARTS}
    leaks = collection.leaks.get(name, "")
    problems = [f"{part} is empty." for part in PARTS if not parts[part]]
    if not leaks:
        problems += cut_groups(parts, {sample.id: sample.group for sample in named})
    if problems:
        raise DataError(bullet_list(f"The split {name!r} cannot be used:", problems))
    return Split(**parts, leaks=leaks)


def build_index(
    samples: Sequence[Sample],
    split: Split,
    progress: Progress = SILENT,
    *,
    cache: Path | None = None,
    size: int = 0,
) -> DatasetIndex:
    """Decode the samples that a split names, each once, and record what they show.

    Args:
        cache: folder of decoded pixels, which gets those of training and validation images at `size`.

    Raises:
        DataError: with every file that cannot be read, or with every image that is in two parts.
    """
    by_id = {sample.id: sample for sample in samples}
    wanted = {part: sorted(ids) for part, ids in split.parts().items() if ids}
    problems = [
        f"{name} ({part}) is not in the data set. Correct the split."
        for part, ids in wanted.items()
        for name in ids
        if name not in by_id
    ]
    records: list[Record] = []
    with progress.track("Indexing images", sum(map(len, wanted.values()))) as advance, ExitStack() as caches:
        for part, ids in wanted.items():
            add = None
            if cache is not None and part in ("train", "validation"):  # others are scored at their own size
                add = caches.enter_context(new_cache(cache, part, len(ids), size))
            for sample in (by_id[name] for name in ids if name in by_id):
                pair, found = read_pair(sample.image, sample.mask)
                problems += found
                if pair is not None and not found:
                    image, mask, _ = pair
                    record = Record(
                        **asdict(sample),
                        split=part,
                        image_sha256=pixel_digest(image),
                        mask_sha256=pixel_digest(mask),
                        width=image.shape[1],
                        height=image.shape[0],
                        look=look_of(image),
                    )
                    records.append(record)
                    if add is not None:
                        add(record, image, mask)
                advance()
        if problems:
            guess = likely_mistake([(sample.image, sample.mask) for sample in samples])
            raise DataError(guess + sorted_list("The data set cannot be indexed:", problems))
        refuse_copies(records)
    return DatasetIndex(tuple(records))
