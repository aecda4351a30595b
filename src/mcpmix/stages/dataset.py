"""Stage 0: the data set, checked, split and indexed; the phantom is drawn first if it is asked for."""

from pathlib import Path

from mcpmix.core.artifacts import Artifact, StageKey, digest_of, file_digest, workspace
from mcpmix.core.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.folder import scan_folder
from mcpmix.data.index import build_index
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.data.sample import Sample
from mcpmix.data.splits import Split, group_split, read_split


def key(config: Config) -> StageKey:
    """What the index depends on: for own data, the names, sizes and times of all files."""
    data = config.data
    if data.source == "phantom":
        return StageKey("dataset", {"phantom": data.phantom.model_dump(), "size": data.size}, {}, config.seed)
    assert data.images is not None
    assert data.masks is not None
    inputs = {"images": _listing(data.images), "masks": _listing(data.masks)}
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
    with workspace(out, key(config)) as space:
        samples, split = _collect(config, space.folder, progress)
        index = build_index(samples, split, progress)
        index.write(space.folder / "index.json")
        return space.finish(
            train=len(split.train),
            validation=len(split.validation),
            test=len(split.test),
            content=index.digest,
        )


def _collect(config: Config, folder: Path, progress: Progress) -> tuple[list[Sample], Split]:
    data = config.data
    if data.source == "phantom":
        return write_phantom_set(
            folder, **data.phantom.model_dump(), seed=config.seed, size=data.size, progress=progress
        )
    assert data.images is not None
    assert data.masks is not None
    samples = scan_folder(data.images, data.masks, data.groups)
    if data.split.file is not None:
        return samples, read_split(data.split.file, samples)
    return samples, group_split(samples, data.split.validation, data.split.test, config.seed)


def _listing(folder: Path) -> str:
    """A digest of names, sizes and modification times: cheap, and changes when a file does."""
    entries = sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    return digest_of([[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in entries])
