"""Stage 0: the data set, checked, split and indexed; the phantom is drawn first if it is asked for."""

from collections.abc import Sequence
from pathlib import Path

from mcpmix.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, digest_of, file_digest, reuse, workspace
from mcpmix.data.archives import MARK
from mcpmix.data.index import build_index
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.data.planning import PlannedSplit, load_collection, make_split
from mcpmix.data.sample import Sample
from mcpmix.data.splits import require_same_images, write_split


def key(config: Config) -> StageKey:
    """What the index depends on: for own data, the names, sizes and times of all files."""
    data = config.data
    if data.source == "phantom":
        return StageKey("dataset", {"phantom": data.phantom.model_dump(), "size": data.size}, {}, config.seed)
    places = {"images": data.images, "masks": data.masks, "root": data.root}
    inputs = {name: _listing(place) for name, place in places.items() if place is not None}
    for name, file in (("groups", data.groups), ("split", data.split.file)):
        if file is not None and file.exists():
            inputs[name] = file_digest(file)
    settings = data.model_dump(mode="json", exclude={"phantom", "size"})
    return StageKey("dataset", settings, inputs, config.seed)


def run(config: Config, out: Path, progress: Progress = SILENT) -> Artifact:
    """Draw or scan, check, split and index the samples.

    Args:
        config: section `data`.
        out: folder of the result.
        progress: where to report.
    """
    if (finished := reuse(out, key(config), progress)) is not None:
        return finished
    with workspace(out, key(config)) as space:
        samples, planned = _collect(config, space.folder, progress)
        split = planned.split
        index = build_index(samples, split, progress)
        digests = {record.id: record.image_sha256 for record in index.records}
        if config.data.split.file is not None and config.data.source != "phantom":
            require_same_images(config.data.split.file, digests)
        index.write(space.folder)
        write_split(space.folder / "split.json", split, digests)
        return space.finish(
            train=len(split.train),
            validation=len(split.validation),
            test=len(split.test),
            content=index.digest,
            leaks=planned.leaks,
        )


def _collect(config: Config, folder: Path, progress: Progress) -> tuple[Sequence[Sample], PlannedSplit]:
    data = config.data
    if data.source == "phantom":
        samples, split = write_phantom_set(
            folder, **data.phantom.model_dump(), seed=config.seed, size=data.size, progress=progress
        )
        return samples, PlannedSplit(split)
    collection = load_collection(
        data.source, root=data.root, images=data.images, masks=data.masks, groups=data.groups
    )
    return collection.samples, make_split(collection, data.split, config.seed)


def _listing(place: Path) -> str:
    """A digest of names, sizes and modification times: cheap, and changes when a file does."""
    if place.is_file():
        return file_digest(place)
    # What was unpacked here follows from the archives, which are listed.
    names = (path for path in place.rglob("*") if MARK not in path.relative_to(place).as_posix())
    entries = sorted(path for path in names if path.is_file())
    return digest_of(
        [
            [path.relative_to(place).as_posix(), path.stat().st_size, path.stat().st_mtime_ns]
            for path in entries
        ]
    )
