"""What stage 0 leaves to all others: the index of the data set, and the decoded pixels of its samples.

The index names every sample with its part and the digests of what its files show. Decoded pixels are uint8
files that every process maps, so that an image is decoded once per size. Such a cache belongs to the digests
of its images and masks, in their order, and to their size. Stage 0 writes those of the training and the
validation part, which it decodes anyway. Workers, epochs, arms and stages that ask for the same images share
one copy in memory. A cache can be deleted at any time.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from filelock import FileLock

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.files import read_json, storage_errors, write_json
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, digest_of
from mcpmix.data.sample import Sample, pixel_digest, read_pair, resize_image, resize_mask
from mcpmix.data.splits import ALL_PARTS, KNOWN

INDEX = "index.json"
_LAYOUT = 1  # of the files, and of how images are decoded and resized: count up when either changes
_IMAGES, _MASKS, _CHECKSUMS = "images.npy", "masks.npy", "checksums.json"
_BUFFER = 2**23  # bytes per write: what is written in large pieces lies in large pages, and is read faster


@dataclass(frozen=True)
class Record(Sample):
    """A sample with its part of the data set and its content."""

    split: str  # one of `ALL_PARTS`
    image_sha256: str  # `pixel_digest` of the image as `read_image` gives it
    mask_sha256: str  # `pixel_digest` of the mask as `read_mask` gives it
    width: int  # pixels, upright
    height: int
    look: str  # `look_of` the image, to find near-duplicates of it


@dataclass(frozen=True)
class DatasetIndex:
    """All records of a data set, in the order train, validation, test, known, then by id."""

    records: tuple[Record, ...]

    def part(self, split: str) -> list[Record]:
        """The records of train, validation, test or known, which may be empty."""
        if split not in ALL_PARTS:
            raise ValueError(f"unknown part {split!r}: expected one of {', '.join(ALL_PARTS)}")
        return [record for record in self.records if record.split == split]

    @cached_property
    def digest(self) -> str:
        """Identity of ids, split and content, wherever the files lie; without the part `known`."""
        rows = [row for row in self.records if row.split != KNOWN]
        return digest_of(sorted((row.id, row.split, row.image_sha256, row.mask_sha256) for row in rows))

    @property
    def training_digest(self) -> str:
        """Identity of all that stages before evaluation read: also groups and sources, nothing of `known`."""
        rows = [row for row in self.records if row.split != KNOWN]
        return digest_of([self.digest, sorted((row.id, row.group, row.source) for row in rows)])

    @property
    def whole_digest(self) -> str:
        """Identity of all records, those of `known` too, wherever the files lie."""
        names = ("id", "split", "group", "source", "image_sha256", "mask_sha256")
        return digest_of([[getattr(row, name) for name in names] for row in self.records])

    def write(self, folder: Path) -> None:
        """Write JSON into a folder; files are named relative to it, so that no path of this machine shows."""
        home = folder.resolve()
        rows = []
        for record in self.records:
            row = {field.name: getattr(record, field.name) for field in fields(Record)}
            if row["labels"] == Record.labels:
                del row["labels"]
            for name in ("image", "mask"):
                absolute = row[name].absolute()
                # Only the folder is resolved: a link inside it stays what the user named.
                inside = absolute.parent.resolve() / absolute.name
                row[name] = seen_from(home, inside)
            rows.append(row)
        write_json(folder / INDEX, {"samples": rows})

    @classmethod
    def read(cls, dataset: Artifact | Path) -> Self:
        """Read what `write` wrote, from the data set's artefact or folder."""
        path = dataset / INDEX
        folder, names = str(path.parent.resolve()), [field.name for field in fields(Record)]
        names.remove("labels")
        try:
            rows: list[dict[str, Any]] = read_json(path)["samples"]
            return cls(
                tuple(
                    Record(
                        **{name: row[name] for name in names}
                        # Texts: paths of paths would take most of the time of a large index.
                        | {
                            name: Path(os.path.normpath(os.path.join(folder, row[name])))  # noqa: PTH118
                            for name in ("image", "mask")
                        },
                        labels=row.get("labels", Record.labels),
                    )
                    for row in rows
                )
            )
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist. Run the dataset stage first.") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not an index of a data set ({error!r}). Delete its folder to rebuild it."
            ) from error


def training_digest(dataset: Artifact) -> str:
    """The data set in the keys of stages before evaluation: new images in `known` cost no new training."""
    return str(dataset.manifest.get("counts", {}).get("training", dataset.digest))


def whole_digest(dataset: Artifact) -> str:
    """The data set in the keys of stages that read all of it, wherever its files lie."""
    return str(dataset.manifest.get("counts", {}).get("all", dataset.digest))


def seen_from(home: Path, place: Path) -> str:
    """A place as seen from a folder: it stays the same when both are moved together."""
    try:
        return Path(os.path.relpath(place, home)).as_posix()
    except ValueError:  # on another drive
        return place.absolute().as_posix()


# --- decoded pixels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """Images and masks at training size. Those of a file cannot be written to."""

    ids: tuple[str, ...]
    images: Pixels  # (N, S, S, 3) uint8, RGB
    masks: Pixels  # (N, S, S) uint8 in {0, 1}, or numbers of classes, 0 is background
    # Folder of the files that the arrays map; None if they are in memory. Sent to another process, mapped
    # arrays are opened there again and not copied.
    place: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            return Arrays, (self.ids, self.images, self.masks)
        return _mapped, (self.ids, self.place)

    def take(self, ids: Sequence[str]) -> "Arrays":
        """The rows of some ids, in memory; for all of them, these arrays."""
        if self.ids == tuple(ids):
            return self
        row_of = {name: row for row, name in enumerate(self.ids)}
        rows = [row_of[name] for name in ids]
        return Arrays(tuple(ids), self.images[rows], self.masks[rows])


def cache_of(dataset: Path) -> Path:
    """The folder of decoded pixels that belongs to a data set's artefact: next to it, in the run's folder."""
    return dataset.parent / "cache"


def load_arrays(
    records: Sequence[Record], size: int, cache: Path | None = None, progress: Progress = SILENT
) -> Arrays:
    """Images and masks of records at `size` x `size` pixels.

    A process that asks for what another one is writing waits for it. A cache whose checksums show damage is
    rewritten.

    Args:
        cache: folder of decoded pixels (see `cache_of`), read if they are there and written otherwise; None
            decodes into memory.

    Raises:
        DataError: with every file that cannot be read or has changed since it was indexed.
        StorageError: the cache cannot be written.
    """
    ids = tuple(record.id for record in records)
    if cache is None or not records:
        images = np.empty((len(records), size, size, 3), dtype=np.uint8)
        masks = np.empty((len(records), size, size), dtype=np.uint8)
        for row, (_, image, mask) in enumerate(_decoded(records, progress)):
            images[row], masks[row] = resize_image(image, size), resize_mask(mask, size)
        return Arrays(ids, images, masks)
    place = cache / _name(records, size)
    with storage_errors(place):
        cache.mkdir(parents=True, exist_ok=True)
        # Killed holders lose the lock to the operating system, so that waiting for it always ends.
        with FileLock(cache / f".{place.name}.lock"):
            if place.exists():
                try:
                    return _verified(ids, place)
                except (OSError, ValueError, TypeError) as error:
                    reason = (str(error) or type(error).__name__).split("\n")[0]
                    progress.say(f"{place} is damaged ({reason}); it is rewritten.")
            with new_cache(cache, place.name, len(records), size) as add:
                for record, image, mask in _decoded(records, progress):
                    add(record, image, mask)
    return _mapped(ids, place)


@contextmanager
def new_cache(
    folder: Path, name: str, count: int, size: int
) -> Iterator[Callable[[Record, Pixels, Pixels], None]]:
    """Yield a function that adds a record with its decoded image and mask.

    At the end they are a cache that `load_arrays` finds; after an error there is none.

    Args:
        name: of the temporary folder; must not be in use elsewhere at the same time.
        count: number of records that will be added.
    """
    temporary = folder / f"{name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)  # a kill may have left it
    temporary.mkdir(parents=True)
    records: list[Record] = []
    sums: list[int] = []
    try:
        # Written, not mapped: a full disk is then an error with a message, where a map would end the process.
        with (
            (temporary / _IMAGES).open("wb", buffering=_BUFFER) as images,
            (temporary / _MASKS).open("wb", buffering=_BUFFER) as masks,
        ):
            for file, shape in ((images, (count, size, size, 3)), (masks, (count, size, size))):
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)

            def add(record: Record, image: Pixels, mask: Pixels) -> None:
                image, mask = resize_image(image, size), resize_mask(mask, size)
                images.write(image.data)
                masks.write(mask.data)
                sums.append(_checksum(image, mask))
                records.append(record)

            yield add
        write_json(temporary / _CHECKSUMS, sums)
        place = folder / _name(records, size)
        shutil.rmtree(place, ignore_errors=True)
        temporary.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _name(records: Sequence[Record], size: int) -> str:
    digests = [(record.image_sha256, record.mask_sha256) for record in records]
    return f"{size}px-{digest_of([_LAYOUT, size, digests])[:16]}"


def _mapped(ids: tuple[str, ...], place: Path) -> Arrays:
    # Read-only: of what could be written to, the system maps no more than it has memory.
    maps = (np.lib.format.open_memmap(place / name, mode="r") for name in (_IMAGES, _MASKS))
    images, masks = (np.asarray(array) for array in maps)
    return Arrays(ids, images, masks, place)


def _verified(ids: tuple[str, ...], place: Path) -> Arrays:
    """Map a cache; ValueError if a row is not what was written."""
    arrays = _mapped(ids, place)
    sums: list[int] = read_json(place / _CHECKSUMS)
    if not len(sums) == len(arrays.images) == len(arrays.masks):
        raise ValueError(f"{len(arrays.images)} images, {len(arrays.masks)} masks, {len(sums)} checksums")
    # Read, not mapped: mapped pages count as memory of this process, and it needs them one by one.
    rows = zip(_rows(place / _IMAGES, arrays.images), _rows(place / _MASKS, arrays.masks), sums, strict=True)
    wrong = sum(zlib.crc32(mask, zlib.crc32(image)) != wanted for image, mask, wanted in rows)
    if wrong:
        raise ValueError(f"{wrong} of {len(sums)} images are not what was written")
    return arrays


def _rows(path: Path, array: Pixels) -> Iterator[bytes]:
    """The bytes of each row of an array in a .npy file."""
    with path.open("rb") as file:
        file.seek(path.stat().st_size - array.nbytes)
        for _ in array:
            yield file.read(array[0].nbytes)


def _checksum(image: Pixels, mask: Pixels) -> int:
    return zlib.crc32(mask.data, zlib.crc32(image.data))


def _decoded(records: Sequence[Record], progress: Progress) -> Iterator[tuple[Record, Pixels, Pixels]]:
    """Images and masks in order; at the end, one error with all files that are not what the index says."""
    problems: list[str] = []
    with progress.track("Loading images", len(records)) as advance:
        for record in records:
            pair, found = read_pair(record.image, record.mask, record.labels)
            problems += found
            if pair is not None:
                image, mask, _ = pair
                problems += changed_files(record, image, mask)
                yield record, image, mask
            advance()
    if problems:
        headline = (
            "The data set is no longer what its index says. Restore the files, or delete the run's folder "
            "dataset to rebuild the index:"
        )
        raise DataError(bullet_list(headline, problems))


def changed_files(record: Record, image: Pixels, mask: Pixels) -> list[str]:
    """A message for each of a record's two files that no longer shows what was indexed.

    Args:
        image: (H, W, 3) uint8, as `read_image` gives it now.
        mask: (H, W) uint8, as `read_mask` gives it now.
    """
    found = (
        (record.image, pixel_digest(image) != record.image_sha256),
        (record.mask, pixel_digest(mask) != record.mask_sha256),
    )
    return [f"{path} has changed since it was indexed." for path, differs in found if differs]
