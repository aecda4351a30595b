"""Layouts of own data: `folder`, `manifest`, `nnunet` and `imagefolder`, each read and written."""

from collections.abc import Callable
from pathlib import Path

from mcpmix.data.layouts import folders, imagefolder, manifest, nnunet
from mcpmix.data.layouts.tables import Collection, Step

READERS: dict[str, Callable[[Path], Collection]] = {
    "folder": folders.read,
    "manifest": manifest.read,
    "nnunet": nnunet.read,
    "imagefolder": imagefolder.read,
}
WRITERS: dict[str, Callable[[Collection, Path, Step], None]] = {
    "folder": folders.write,
    "manifest": manifest.write,
    "nnunet": nnunet.write,
    "imagefolder": imagefolder.write,
}
