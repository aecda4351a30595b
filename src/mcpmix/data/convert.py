"""From one layout of a data set to another, without loss."""

import shutil
from pathlib import Path

from mcpmix.core.artifacts import storage_errors
from mcpmix.core.errors import StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.collection import Collection
from mcpmix.data.formats import WRITERS, nnunet


def convert(collection: Collection, layout: str, out: Path, progress: Progress = SILENT) -> None:
    """Write a data set in another layout, whole or not at all.

    Ids, groups, the split that comes with the data, pixels and masks are kept. Files are copied byte for
    byte; for nnU-Net, which reads no JPEG and wants labels 0 and 1, pixels are stored as PNG.

    Args:
        collection: the data set.
        layout: one of `WRITERS`: folder, manifest, nnunet or imagefolder.
        out: a folder that does not exist, or is empty.
        progress: where to report.

    Raises:
        StorageError: the folder holds something, or the disk is full.
        DataError: the name of the folder does not suit nnU-Net, or a file cannot be read.
    """
    if layout == "nnunet":
        nnunet.check_name(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise StorageError(f"{out} is not an empty folder. Choose another one.")
    partial = out.with_name(out.name + ".partial")
    with storage_errors(out):
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        with progress.track("Writing files", len(collection.samples)) as advance:
            WRITERS[layout](collection, partial, advance)
        if out.exists():
            out.rmdir()
        partial.replace(out)
