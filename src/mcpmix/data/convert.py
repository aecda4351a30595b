"""A data set written again, in a new folder: in another layout, or repaired. The source is only read."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from mcpmix.config import Config
from mcpmix.core.errors import ConfigError, DataError, StorageError
from mcpmix.core.files import new_folder, storage_errors, write_json, write_text, written
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.audit import ENDINGS, Facts, file_oddities, inspect_all
from mcpmix.data.dataset import FOLDER, load_collection
from mcpmix.data.layouts import (
    CHANNEL,
    GIVEN,
    GROUPS,
    HUB_IMAGE,
    HUB_MASK,
    MANIFESTS,
    METADATA,
    NNUNET,
    NNUNET_FOLDERS,
    NNUNET_TABLE,
    SPLIT,
    Collection,
    scan_folder,
)
from mcpmix.data.sample import Sample, pixel_digest, read_image, read_mask
from mcpmix.data.splits import ALL_PARTS, KNOWN, PARTS, Split, write_split
from mcpmix.data.tables import GUESSED, write_csv

CHANGES = "changes.csv"
_PIXELS = {
    "turned": "the EXIF orientation is applied",
    "alpha": "transparency is composited over black",
    "palette": "the palette is replaced by its colours",
}
# Descriptions, makers, times and people, and the folders of EXIF, GPS, XMP, IPTC and Photoshop.
_TIFF_TAGS = frozenset({269, 270, 271, 272, 285, 305, 306, 315, 316, 700, 33432, 33723, 34377, 34665, 34853})
_INFO = frozenset({"exif", "icc_profile", "comment", "xmp", "photoshop", "XML:com.adobe.xmp", "mp"})

_Step = Callable[[], object]


# --- in another layout -------------------------------------------------------------------------------------


def convert(collection: Collection, layout: str, out: Path, progress: Progress = SILENT) -> None:
    """Write a data set in another layout, whole or not at all.

    Ids, groups, the split that comes with the data, pixels and masks are kept. Files are copied byte for
    byte; for nnU-Net, which reads no JPEG and wants labels 0 and 1, pixels are stored as PNG.

    Args:
        layout: one of `WRITERS`.
        out: a folder that does not exist, or is empty; for nnU-Net, with a name that it finds.
    """
    if layout == "nnunet" and not re.fullmatch(r"Dataset\d{3}_\w+", out.name):
        raise DataError(
            f"nnU-Net would not find a data set in {out.name}. Expected a name like Dataset501_Polyps: three "
            "digits, an underscore, letters."
        )
    with storage_errors(out), written(new_folder(out)) as folder:
        folder.mkdir()
        with progress.track("Writing files", len(collection.samples)) as advance:
            WRITERS[layout](collection, folder, advance)


def write_tables(collection: Collection, folder: Path) -> None:
    """Write `groups.csv` and `split.json` where the data has groups and a split."""
    if collection.grouped:
        group_of = {item.id: item.group for item in collection.samples}
        write_groups(folder / GROUPS, group_of, guessed=collection.guessed)
    if given := collection.splits.get(GIVEN):
        parts = (tuple(sorted(name for name in given if given[name] == part)) for part in ALL_PARTS)
        write_split(folder / SPLIT, Split(*parts))


def write_groups(path: Path, group_of: Mapping[str, str], *, guessed: bool) -> None:
    """Write the group of each id as a CSV, which says in a column of its own if groups were guessed."""
    more = {GUESSED: "yes"} if guessed else {}
    write_csv(path, [{"id": name, "group": group, **more} for name, group in group_of.items()])


def _copy_files(sample: Sample, folder: Path) -> tuple[str, str]:
    """Copy image and mask, byte for byte, to `images/` and `masks/`; their paths relative to the folder."""
    paths = []
    for kind, source in (("images", sample.image), ("masks", sample.mask)):
        path = f"{kind}/{sample.id}{source.suffix.lower()}"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
        paths.append(path)
    return paths[0], paths[1]


def _write_folder(collection: Collection, folder: Path, step: _Step) -> None:
    for sample in collection.samples:
        _copy_files(sample, folder)
        step()
    write_tables(collection, folder)


def _write_manifest(collection: Collection, folder: Path, step: _Step) -> None:
    rows = []
    for sample in collection.samples:
        image, mask = _copy_files(sample, folder)
        rows.append({"id": sample.id, "image": image, "mask": mask, **collection.row(sample)})
        step()
    write_csv(folder / MANIFESTS[0], rows)


def _write_imagefolder(collection: Collection, folder: Path, step: _Step) -> None:
    """A folder per part. Samples without a part go to train/, as readers look there; `split` stays empty."""
    rows: dict[str, list[dict[str, str]]] = {}
    for sample in collection.samples:
        row = collection.row(sample)
        place = row["split"] or PARTS[0]
        image, mask = _copy_files(sample, folder / place)
        files = {"id": sample.id, HUB_IMAGE[0]: image, HUB_MASK[0]: mask}
        rows.setdefault(place, []).append({**files, **row})
        step()
    for place, lines in rows.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(folder / place / METADATA[0], text)


def _write_nnunet(collection: Collection, folder: Path, step: _Step) -> None:
    for name in NNUNET_FOLDERS["train"]:  # a reader expects them, also where all samples are for test
        (folder / name).mkdir()
    rows = [collection.row(sample) for sample in collection.samples]
    for sample, row in zip(collection.samples, rows, strict=True):
        images, labels = NNUNET_FOLDERS["test" if row["split"] in ("test", KNOWN) else "train"]
        write_png(folder / images / f"{sample.id}{CHANNEL}.png", read_image(sample.image))
        write_png(folder / labels / f"{sample.id}.png", read_mask(sample.mask, sample.labels))
        step()
    description = {
        "channel_names": {"0": "R", "1": "G", "2": "B"},
        "labels": {
            name: label for label, name in enumerate(("background", *(collection.classes or ("lesion",))))
        },
        "numTraining": sum(row["split"] not in ("test", KNOWN) for row in rows),
        "file_ending": ".png",
        "overwrite_image_reader_writer": "NaturalImage2DIO",
    }
    write_json(folder / NNUNET, description)
    write_csv(folder / NNUNET_TABLE, rows)


WRITERS: dict[str, Callable[[Collection, Path, _Step], None]] = {
    "folder": _write_folder,
    "manifest": _write_manifest,
    "nnunet": _write_nnunet,
    "imagefolder": _write_imagefolder,
}


# --- repaired ----------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """What differs between the copy and its source."""

    id: str  # of the sample; empty for a file that belongs to none
    file: str  # `image`, `mask` or `sample`, or `file` for one that belongs to no sample
    change: str  # in words

    def __str__(self) -> str:
        return ": ".join(text for text in self if text)


def repair_configured(
    config: Config,
    out: Path,
    *,
    facts: Sequence[Facts] | None = None,
    drop_copies: bool = False,
    progress: Progress = SILENT,
) -> tuple[Change, ...]:
    """Write a repaired copy of the data set of a configuration; see `repair`.

    In folders of own images, files without a partner are left out. `facts` are those of all samples, if they
    were inspected already.
    """
    data = config.data
    if data.source == "phantom":
        raise ConfigError("--fix: the phantom is drawn by code and has nothing to repair.")
    left_out: list[str] = []
    mended: list[str] = []
    if data.source == FOLDER and data.images is not None and data.masks is not None:
        collection = scan_folder(
            data.images, data.masks, data.groups, labels=data.labels, left_out=left_out, mended=mended
        )
        if not collection.samples and data.groups is not None:
            raise DataError(
                f"--fix: no image has a group in {data.groups}, so the copy would be empty. Mend the table, "
                "or give data.groups=null to write the copy without groups."
            )
    else:
        collection = load_collection(data.source, root=data.root, classes=data.classes, progress=progress)
    known = facts if facts is not None else inspect_all(collection.samples, progress)
    done = [*mended, *(f"left out: {reason}" for reason in left_out)]
    return repair(known, collection, out, drop_copies=drop_copies, done=done, progress=progress)


def repair(
    facts: Sequence[Facts],
    collection: Collection,
    out: Path,
    *,
    drop_copies: bool = False,
    done: Sequence[str] = (),
    progress: Progress = SILENT,
) -> tuple[Change, ...]:
    """Write `images/` and `masks/` as a repaired data set, with groups and split as they were.

    Images show what `read_image` gives: upright, without palette and transparency. Masks are PNG with the
    levels 0 and 255, or the labels of several classes, by the rule of `read_mask`. Metadata (EXIF, comments,
    colour profiles) is removed.
    Files that need no repair are copied byte for byte; JPEGs that only carry metadata lose it without being
    re-encoded; everything else becomes PNG. What cannot be read, or differs in size, is left out.
    `changes.csv` lists every change.

    Args:
        facts: of all samples, from `inspect_all`.
        out: a folder that does not exist, or is empty; not inside the source.
        drop_copies: whether to keep only the first of images with identical pixels.
        done: what was changed or left out when the source was read, to be listed with the changes.
    """
    place = Path(os.path.realpath(out))
    for source in {path.parent for item in collection.samples for path in (item.image, item.mask)}:
        folder = Path(os.path.realpath(source))
        if place == folder or folder in place.parents:
            raise StorageError(f"{out} lies in the folder {folder} of the source. Choose another place.")
    changes = [Change("", "file", what) for what in done]
    first: dict[str, Facts] = {}  # of copies, by their digest
    kept: set[str] = set()
    with (
        storage_errors(out),
        written(new_folder(out)) as copy,
        progress.track("Writing a repaired copy", len(facts)) as advance,
    ):
        for item in facts:
            name = item.sample.id
            original = item if item.errors else first.setdefault(item.digest, item)
            if item.errors:
                changes.append(Change(name, "sample", f"left out: {' '.join(item.errors)}"))
            elif drop_copies and original is not item:
                other = "" if original.mask_digest == item.mask_digest else ", but another mask"
                reason = f"it has the pixels of {original.sample.id}{other}"
                changes.append(Change(name, "sample", f"left out: {reason}"))
            else:
                image, edits = _write(item.sample.image, copy / "images" / name)
                changes += [Change(name, "image", what) for what in edits]
                labels = item.sample.labels
                mask, edits = _write(item.sample.mask, copy / "masks" / name, item.levels, labels)
                changes += [Change(name, "mask", what) for what in edits]
                shown = (pixel_digest(read_image(image)), pixel_digest(read_mask(mask, labels)))
                if shown != (item.digest, item.mask_digest):
                    raise StorageError(
                        f"{image} or {mask} does not show what its source shows. Was the source changed "
                        "meanwhile?"
                    )
                kept.add(name)
            advance()
        if not kept:
            raise StorageError(f"Nothing to write to {out}: no sample can be used.")
        splits = {
            split: {name: part for name, part in parts.items() if name in kept}
            for split, parts in collection.splits.items()
        }
        samples = tuple(sample for sample in collection.samples if sample.id in kept)
        write_tables(replace(collection, samples=samples, splits=splits), copy)
        write_csv(copy / CHANGES, [change._asdict() for change in changes or [Change("", "", "none")]])
    return tuple(changes)


def _write(source: Path, target: Path, levels: int | None = None, labels: int = 2) -> tuple[Path, list[str]]:
    """Write what a file has to become.

    Args:
        target: without an ending.
        levels: number of grey levels of a mask, which becomes PNG; None for an image.
        labels: how many a pixel of the mask can have.

    Returns:
        The file, and what was done to it.
    """
    kind, metadata, plain = _header(source)
    oddities = set(file_oddities(source))
    done = [text for oddity, text in _PIXELS.items() if oddity in oddities]
    pixels_stay = not done and levels is None
    if metadata:
        done.append("metadata is removed")
    if levels is not None and labels == 2 and not plain:
        done.append(f"{levels} levels become 0 and 255 (lesion is 128 or more; where 1 is the highest, 1)")
    content, ending = None, ".png"
    if pixels_stay and metadata and kind == "JPEG":
        content, ending = without_metadata(source.read_bytes()), ".jpg"
    elif not done and (pixels_stay or kind == "PNG"):
        content = source.read_bytes()
        if pixels_stay and "ending" not in oddities:
            ending = source.suffix.lower()
        elif pixels_stay:
            ending = ENDINGS[kind][0]
            done.append(f"the ending is {ending}, as the file is {kind}")
    if content is None:
        if kind != "PNG":
            done.append(f"stored as PNG, was {kind}")
        path = target.with_name(target.name + ".png")
        scale = np.uint8(255 if labels == 2 else 1)
        write_png(path, read_image(source) if levels is None else read_mask(source, labels) * scale)
        return path, done
    path = target.with_name(target.name + ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path, done


def _header(path: Path) -> tuple[str, bool, bool]:
    """Format, whether there is metadata, and whether there is one channel of the levels 0 and 255 only."""
    try:
        with path.open("rb") as file, Image.open(file) as image:
            kind, metadata = image.format or "", has_metadata(image)
            levels = image.getcolors() if image.mode in ("L", "1") else None
            return kind, metadata, levels is not None and {level for _, level in levels} <= {0, 255}
    except Exception:  # a layout that only tifffile reads; its pixels were read, and metadata is likely
        return "TIFF", True, False


def has_metadata(image: Image.Image) -> bool:
    """Whether an open file carries more than pixels."""
    if image.format == "TIFF":
        return any(tag in _TIFF_TAGS for tag in image.getexif())
    texts = getattr(image, "text", {})  # of PNG
    return bool(texts or _INFO & set(image.info) or len(image.getexif()))


def without_metadata(jpeg: bytes) -> bytes | None:
    """A JPEG file without its metadata, its pixels not re-encoded; None if it has another structure."""
    if not jpeg.startswith(b"\xff\xd8"):
        return None
    kept, place = [jpeg[:2]], 2
    while place + 4 <= len(jpeg) and jpeg[place] == 0xFF:
        kind = jpeg[place + 1]
        end = place + 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
        if kind == 0xDA:  # the pixels begin
            return b"".join([*kept, jpeg[place:]])
        # Comments and application segments go, but for the two that say how to decode: JFIF and Adobe's.
        if not (0xE0 <= kind <= 0xEF or kind == 0xFE) or kind in (0xE0, 0xEE):
            kept.append(jpeg[place:end])
        place = end
    return None
