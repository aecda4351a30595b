"""A mended copy of a data set in a new folder. The source is only read."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mcpmix.config import Config
from mcpmix.core.errors import ConfigError, StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import new_folder, storage_errors, written
from mcpmix.data.audit import Facts, file_oddities, has_metadata, inspect_all, without_metadata
from mcpmix.data.folder import scan_folder
from mcpmix.data.layouts import Collection, write_tables
from mcpmix.data.planning import FOLDER, load_collection
from mcpmix.data.sample import Bytes, Sample, pixel_digest, read_image, read_mask
from mcpmix.data.tables import write_csv

CHANGES = "changes.csv"
_PIXELS = {
    "turned": "the camera's turn is applied",
    "alpha": "transparency is laid over black and dropped",
    "palette": "the palette is replaced by its colours",
}
_ENDING = {"PNG": ".png", "JPEG": ".jpg", "TIFF": ".tif", "BMP": ".bmp", "MPO": ".jpg"}


@dataclass(frozen=True)
class Change:
    """What differs between the copy and its source.

    Attributes:
        id: of the sample; empty for a file that belongs to none.
        file: `image`, `mask` or `sample`, or `file` for one that belongs to no sample.
        what: in words.
    """

    id: str
    file: str
    what: str


def repair(
    facts: Sequence[Facts],
    collection: Collection,
    out: Path,
    *,
    drop_copies: bool = False,
    unpaired: Sequence[str] = (),
    progress: Progress = SILENT,
) -> tuple[Change, ...]:
    """Write `images/` and `masks/` as a tidy data set, with groups and split as they were.

    Images show what `read_image` gives: upright, without palette and transparency. Masks are PNG with the
    levels 0 and 255, by the rule of `read_mask`. Metadata (EXIF, comments, colour profiles) is removed.
    Files that need nothing are copied byte for byte; JPEGs that only carry metadata lose it without being
    encoded again; everything else becomes PNG. What cannot be read, or differs in size, is left out.
    `changes.csv` lists every change.

    Args:
        facts: of all samples, from `inspect_all`.
        collection: the data set.
        out: a folder that does not exist, or is empty; not inside the source.
        drop_copies: whether to keep only the first of images with identical pixels.
        unpaired: why files of the source are in no sample, to be listed with the changes.
        progress: where to report.

    Raises:
        StorageError: the folder holds something or lies in the source, or the disk is full.
    """
    _refuse_inside(out, collection)
    first = _first_of_copies(facts) if drop_copies else {}
    changes = [Change("", "file", f"left out: {reason}") for reason in unpaired]
    kept: set[str] = set()
    with (
        storage_errors(out),
        written(new_folder(out)) as folder,
        progress.track("Writing a mended copy", len(facts)) as advance,
    ):
        for item in facts:
            reason = _reason_to_leave_out(item, first)
            if reason:
                changes.append(Change(item.sample.id, "sample", f"left out: {reason}"))
            else:
                changes += _write_sample(item, folder)
                kept.add(item.sample.id)
            advance()
        if not kept:
            raise StorageError(f"Nothing to write to {out}: no sample can be used.")
        write_tables(_part_of(collection, kept), folder)
        rows = [{"id": change.id, "file": change.file, "change": change.what} for change in changes]
        write_csv(folder / CHANGES, rows or [{"id": "", "file": "", "change": "none"}])
    return tuple(changes)


def _refuse_inside(out: Path, collection: Collection) -> None:
    place = Path(os.path.realpath(out))
    files = {path for item in collection.samples for path in (item.image, item.mask)}
    for folder in {Path(os.path.realpath(path.parent)) for path in files}:
        if place == folder or folder in place.parents:
            raise StorageError(f"{out} lies in the folder {folder} of the source. Choose another place.")


def _first_of_copies(facts: Sequence[Facts]) -> dict[str, Facts]:
    first: dict[str, Facts] = {}
    for item in facts:
        if item.digest and not item.errors:
            first.setdefault(item.digest, item)
    return first


def _reason_to_leave_out(item: Facts, first: dict[str, Facts]) -> str:
    if item.errors:
        return " ".join(item.errors)
    original = first.get(item.digest, item)
    if original is item:
        return ""
    masks = "" if original.mask_digest == item.mask_digest else ", but another mask"
    return f"it has the pixels of {original.sample.id}{masks}"


def _part_of(collection: Collection, kept: set[str]) -> Collection:
    return Collection(
        tuple(sample for sample in collection.samples if sample.id in kept),
        {
            name: {sample: part for sample, part in parts.items() if sample in kept}
            for name, parts in collection.splits.items()
        },
        grouped=collection.grouped,
    )


# --- files -------------------------------------------------------------------------------------------------


def _write_sample(item: Facts, folder: Path) -> list[Change]:
    sample = item.sample
    done: dict[str, list[str]] = defaultdict(list)
    image = _write_image(sample, folder / "images", done["image"])
    mask = _write_mask(sample, folder / "masks", done["mask"], item.levels)
    for path, read, digest in ((image, read_image, item.digest), (mask, read_mask, item.mask_digest)):
        _verify(path, read, digest)
    return [Change(sample.id, file, what) for file, texts in done.items() for what in texts]


def _verify(path: Path, read: Callable[[Path], Bytes], digest: str) -> None:
    if pixel_digest(read(path)) != digest:
        raise StorageError(f"{path} does not show what its source shows. Was the source changed meanwhile?")


def _write_image(sample: Sample, folder: Path, done: list[str]) -> Path:
    source = sample.image
    kind, metadata = _look(source)
    oddities = set(file_oddities(source))
    done += [text for name, text in _PIXELS.items() if name in oddities]
    if metadata:
        done.append("metadata is removed")
    if done:
        same_pixels = kind == "JPEG" and not oddities & set(_PIXELS)
        content = without_metadata(source) if same_pixels else None
        if content is not None:
            return _copy(folder / f"{sample.id}.jpg", content)
        return _save(folder / f"{sample.id}.png", read_image(source), kind, done)
    ending = source.suffix.lower()
    if "ending" in oddities:
        ending = _ENDING[kind]
        done.append(f"the ending is {ending}, as the file is {kind}")
    return _copy(folder / f"{sample.id}{ending}", source.read_bytes())


def _write_mask(sample: Sample, folder: Path, done: list[str], levels: int) -> Path:
    source = sample.mask
    kind, metadata = _look(source)
    oddities = set(file_oddities(source))
    target = folder / f"{sample.id}.png"
    if kind == "PNG" and not metadata and not oddities & set(_PIXELS) and _is_plain(source):
        return _copy(target, source.read_bytes())
    done += [text for name, text in _PIXELS.items() if name in oddities]
    if metadata:
        done.append("metadata is removed")
    if not _is_plain(source):
        done.append(f"{levels} levels become 0 and 255 (lesion is 128 or more; where 1 is the highest, 1)")
    return _save(target, read_mask(source) * np.uint8(255), kind, done)


def _look(path: Path) -> tuple[str, bool]:
    """Format, and whether there is metadata; files that only tifffile reads are taken to have some."""
    try:
        with path.open("rb") as file, Image.open(file) as image:
            return image.format or "", has_metadata(image)
    except Exception:  # a layout that Pillow does not know; its pixels were read
        return "TIFF", True


def _is_plain(path: Path) -> bool:
    """Whether a mask is one channel of 0 and 255."""
    try:
        with path.open("rb") as file, Image.open(file) as image:
            if image.mode not in ("L", "1"):
                return False
            return {level for _, level in image.getcolors() or [(0, -1)]} <= {0, 255}
    except Exception:  # as above
        return False


def _save(path: Path, pixels: Bytes, kind: str, done: list[str]) -> Path:
    if kind != "PNG":
        done.append(f"stored as PNG, was {kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG")
    return path


def _copy(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def as_lines(changes: Sequence[Change]) -> Iterator[str]:
    """The changes as text, all of them, a line each."""
    for change in changes:
        yield ": ".join(text for text in (change.id, change.file, change.what) if text)


def mend(
    config: Config,
    out: Path,
    *,
    facts: Sequence[Facts] | None = None,
    drop_copies: bool = False,
    progress: Progress = SILENT,
) -> tuple[Change, ...]:
    """Write a mended copy of the data set of a configuration; see `mcpmix.data.repair`.

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
        samples = scan_folder(data.images, data.masks, data.groups, left_out=left_out)
        return Collection(tuple(samples), grouped="group" if data.groups else "")
    return load_collection(data.source, root=data.root, progress=progress)
