"""A mended copy of a run's data set.

Layer 4, beside the pipeline.
"""

from collections.abc import Sequence
from pathlib import Path

from mcpmix.core.config import Config
from mcpmix.core.errors import ConfigError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.audit import inspect_all
from mcpmix.data.audit.inspection import Facts
from mcpmix.data.audit.repair import Change, repair
from mcpmix.data.collection import Collection
from mcpmix.data.folder import scan_folder
from mcpmix.data.planning import FOLDER, load_collection


def mend(
    config: Config,
    out: Path,
    *,
    facts: Sequence[Facts] | None = None,
    drop_copies: bool = False,
    progress: Progress = SILENT,
) -> tuple[Change, ...]:
    """Write a mended copy of the data set of a configuration; see `mcpmix.data.audit.repair`.

    In folders of own images, files without a partner are left out.

    Args:
        config: section `data`.
        out: a folder that does not exist, or is empty.
        facts: of all samples, if they were inspected already.
        drop_copies: whether to keep only the first of images with identical pixels.
        progress: where to report.

    Returns:
        Every change.

    Raises:
        ConfigError: the data set is the phantom, which has nothing to mend.
        DataError: the files are not found.
        StorageError: the folder holds something, or the disk is full.
    """
    if config.data.source == "phantom":
        raise ConfigError("--fix: the phantom is drawn by code and has nothing to mend.")
    left_out: list[str] = []
    collection = _load(config, left_out, progress)
    known = facts if facts is not None else inspect_all(collection.samples, progress)
    return repair(known, collection, out, drop_copies=drop_copies, unpaired=left_out, progress=progress)


def _load(config: Config, left_out: list[str], progress: Progress) -> Collection:
    data = config.data
    if data.source == FOLDER and data.images is not None and data.masks is not None:
        samples = scan_folder(data.images, data.masks, data.groups, decode=False, left_out=left_out)
        return Collection(tuple(samples), grouped="group" if data.groups else "")
    return load_collection(data.source, root=data.root, progress=progress)
