"""Stage 0: the data set, split and indexed; the phantom is drawn first if it is asked for.

Each file is decoded once: while its digest and look go to the index, the pixels of training and validation
images go to the decoded cache at training size. (`stratified` and `kfold` read the masks once before, because
the split depends on the sizes of lesions.)
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.config_data import SplitConfig
from mcpmix.core.errors import ConfigError, DataError, bullet_list, sorted_list
from mcpmix.core.files import file_digest, is_stray, read_json, write_json
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, digest_of, reuse, workspace
from mcpmix.data import public_sets
from mcpmix.data.archives import MARK, folder_of
from mcpmix.data.index import DatasetIndex, Record, cache_of, new_cache, seen_from
from mcpmix.data.layouts import READERS, Collection, scan_folder
from mcpmix.data.leakage import look_of, refuse_copies
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.data.sample import Sample, likely_mistake, pixel_digest, read_mask, read_pair
from mcpmix.data.splits import (
    ALL_PARTS,
    PARTS,
    Split,
    cut_groups,
    fold_split,
    group_split,
    hold_out,
    keep_labels,
    read_split,
    require_classes,
    require_same_images,
    stratified_split,
    write_split,
)

FOLDER = "folder"


def key(config: Config) -> StageKey:
    """What the index depends on: for own data, the names and contents of all files.

    Places are those seen from the run's folder, for the index names files that way.
    """
    data, home = config.data, config.folder
    if data.source == "phantom":
        drawn = {name: number for name, number in data.phantom.model_dump().items() if number}
        classes = {"classes": list(data.classes)} if data.classes else {}
        return StageKey("dataset", {"phantom": drawn, "size": data.size, **classes}, {}, config.seed)
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
                space.folder,
                **data.phantom.model_dump(),
                seed=config.seed,
                size=data.size,
                labels=data.labels,
                progress=progress,
            )
        else:
            places = data.model_dump(include={"root", "images", "masks", "groups"})
            collection = load_collection(data.source, **places, classes=data.classes, progress=progress)
            samples, split = collection.samples, make_split(collection, data.split, config.seed)
            guessed = collection.guessed
            if data.labelled is not None:
                split = keep_labels(split, samples, data.labelled, config.seed)
        index = build_index(
            samples, split, progress, cache=cache_of(out), size=data.size, classes=data.classes
        )
        digests = {record.id: record.image_sha256 for record in index.records}
        if data.split.file is not None and data.source != "phantom":
            require_same_images(data.split.file, digests)
        index.write(space.folder)
        write_split(space.folder / "split.json", split, digests)
        counts = {part: len(ids) for part, ids in split.parts().items()}
        digests = {"content": index.digest, "training": index.training_digest, "all": index.whole_digest}
        return space.finish(**counts, **digests, leaks=split.leaks, groups_guessed=guessed)


def load_collection(
    source: str,
    *,
    root: Path | None = None,
    images: Path | None = None,
    masks: Path | None = None,
    groups: Path | None = None,
    classes: tuple[str, ...] = (),
    progress: Progress = SILENT,
) -> Collection:
    """The samples of a source, by the names of their files; nothing is decoded.

    Args:
        source: folder, manifest, nnunet, imagefolder, or a name of the catalogue.
        root: a folder, file or archive; for `folder`, `images` and `masks` may be given instead.
        groups: CSV with the columns id and group.
        classes: names of the labels 1, 2, ... in the masks; none if they are lesion or background.

    Raises:
        ConfigError: there is no such source.
        DataError: with every problem of the files; if there is one, they are decoded to find all others.
    """
    labels = 1 + max(1, len(classes))

    def with_classes(found: Collection) -> Collection:
        samples = tuple(replace(sample, labels=labels) for sample in found.samples)
        return replace(found, samples=samples, classes=classes)

    if source == FOLDER and images is not None and masks is not None:
        return with_classes(scan_folder(images, masks, groups, labels=labels))
    read = READERS.get(source)
    if read is None and source not in public_sets.entries():
        known = ", ".join((*READERS, "phantom", *public_sets.entries()))
        raise ConfigError(f"data.source: no source {source!r}. Known: {known}.")
    if root is None:
        raise ConfigError(f"data.root: missing; the source {source} needs the folder where its files are.")
    found = read(folder_of(root, progress)) if read else public_sets.load(source, root, progress)
    return with_classes(found)


def make_split(
    collection: Collection,
    settings: SplitConfig,
    seed: int,
    area_of: Callable[[Sample], float] = lambda sample: float(
        (read_mask(sample.mask, sample.labels) > 0).mean()
    ),
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
    classes: Sequence[str] = (),
) -> DatasetIndex:
    """Decode the samples that a split names, each once, and record what they show.

    Args:
        cache: folder of decoded pixels, which gets those of training and validation images at `size`.
        classes: names of the labels 1, 2, ... in the masks; each must be in the training part.

    Raises:
        DataError: with every file that cannot be read, every image that is in two parts, or every class that
            cannot be learnt.
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
    labels = range(1, len(classes) + 1)
    learnt: set[int] = set()  # labels in the training part
    with progress.track("Indexing images", sum(map(len, wanted.values()))) as advance, ExitStack() as caches:
        for part, ids in wanted.items():
            add = None
            if cache is not None and part in ("train", "validation"):  # others are scored at their own size
                add = caches.enter_context(new_cache(cache, part, len(ids), size))
            for sample in (by_id[name] for name in ids if name in by_id):
                pair, found = read_pair(sample.image, sample.mask, sample.labels)
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
                    if part == "train":
                        learnt.update(label for label in labels if (mask == label).any())
                    if add is not None:
                        add(record, image, mask)
                advance()
        if problems:
            guess = likely_mistake([(sample.image, sample.mask) for sample in samples])
            raise DataError(guess + sorted_list("The data set cannot be indexed:", problems))
        refuse_copies(records)
        require_classes(classes, learnt)
    return DatasetIndex(tuple(records))
