"""From one layout of a data set to another, without loss."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpmix.core.errors import StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import storage_errors
from mcpmix.data.layouts import WRITERS, nnunet
from mcpmix.data.layouts.tables import Collection


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
    with new_folder(out) as folder, progress.track("Writing files", len(collection.samples)) as advance:
        WRITERS[layout](collection, folder, advance)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that is written whole or not at all: a partial one, which gets its name at the end.

    Raises:
        StorageError: `out` holds something, or the disk is full.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise StorageError(f"{out} is not an empty folder. Choose another one.")
    partial = out.with_name(out.name + ".partial")
    with storage_errors(out):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            if out.exists():
                out.rmdir()
            partial.replace(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
