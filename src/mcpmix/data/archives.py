"""Archives as they are published, unpacked where they can do no harm.

Whatever an archive says, only plain files are written, only below the target, and no more than the limits
allow. An archive that asks for anything else is refused as a whole: nothing of it stays.
"""

import bz2
import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock

from mcpmix.core.errors import DataError, McpmixError, StorageError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, file_digest, storage_errors

MARK = ".unpacked-"  # in the names of folders that were unpacked here
CACHE_VARIABLE = "MCPMIX_CACHE"
_ZIP, _TAR = (".zip",), (".tar", ".tar.gz", ".tgz", ".tar.bz2")
_FOREIGN = (".rar", ".7z", ".tar.xz")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # LZMA asks for any amount of memory
_CHUNK = 1 << 20
_MEGABYTE = 10**6
_LARGEST_READ = 16 * _MEGABYTE  # headers of a tar are read at once
_LARGEST_DIRECTORY = 64 * _MEGABYTE  # of a zip, read at once: room for more names than any data set has
_LONGEST_PART, _LONGEST_NAME = 255, 1024


@dataclass(frozen=True)
class Limits:
    """What an archive may unpack to.

    Attributes:
        files: number of members.
        size: bytes in all.
        ratio: unpacked bytes for each packed one. Photographs stay near 1; bombs reach 1000 and more.
        free: bytes up to which the ratio is not looked at.
    """

    files: int = 500_000
    size: int = 200_000 * _MEGABYTE
    ratio: float = 100.0
    free: int = 256 * _MEGABYTE

    def most(self, packed: int) -> int:
        """Bytes that an archive of this size may unpack to."""
        return min(self.size, max(self.free, int(self.ratio * packed)))


LIMITS = Limits()


def is_archive(path: Path) -> bool:
    """Whether a path names a file that `folder_of` unpacks, or says why it cannot."""
    return path.is_file() and path.name.lower().endswith((*_ZIP, *_TAR, *_FOREIGN))


def folder_of(root: Path, progress: Progress = SILENT) -> Path:
    """The folder of a data set: `root` itself, or what the archive `root` unpacks to.

    An archive that holds nothing but one folder gives that folder.

    Raises:
        DataError: it is no archive that can be read here, is damaged, or would write what it may not.
        StorageError: there is no room, or the place is read-only.
    """
    if not is_archive(root):
        return root
    folder = unpack([root], progress=progress)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def unpack(archives: Sequence[Path], progress: Progress = SILENT, limits: Limits = LIMITS) -> Path:
    """Unpack archives into one folder beside the first of them, once: it is named by their digests.

    Args:
        archives: zip or tar files. Where their folder is read-only, the environment's MCPMIX_CACHE names
            another place.
        progress: where to report.
        limits: what is refused.

    Returns:
        The folder.

    Raises:
        DataError: an archive is damaged, of a foreign kind, or would write what it may not; all is refused.
        StorageError: there is no room, or the place is read-only.
    """
    target = _place(archives)
    if target.is_dir():
        return target
    for archive in archives:
        _refuse_foreign(archive)
    with _read_only_hint(), storage_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not target.is_dir():  # another process may have been faster
                _unpack_whole(archives, target, progress, limits)
    return target


def _unpack_whole(archives: Sequence[Path], target: Path, progress: Progress, limits: Limits) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for archive in archives:
            packed = archive.stat().st_size
            writer = _Writer(archive, partial, limits.files, limits.most(packed))
            with progress.track(f"Unpacking {archive.name} (MB)", packed // _MEGABYTE) as advance:
                done = 0
                for position in _written(archive, writer):
                    advance(position // _MEGABYTE - done)
                    done = position // _MEGABYTE
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _place(archives: Sequence[Path]) -> Path:
    digests = [_digest(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns) for path in archives]
    digest = digests[0] if len(digests) == 1 else digest_of(digests)
    name = archives[0].name if len(archives) == 1 else "archives"
    cache = os.environ.get(CACHE_VARIABLE)
    return (Path(cache).expanduser() if cache else archives[0].parent) / f"{name}{MARK}{digest[:12]}"


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, changed: int) -> str:
    """Once per process and state of the file: archives are large."""
    del size, changed
    return file_digest(path)


def _refuse_foreign(archive: Path) -> None:
    if archive.name.lower().endswith(_FOREIGN):
        kind = archive.suffix.lstrip(".").upper()
        raise DataError(
            f"{archive} is a {kind} archive, which cannot be unpacked here. Unpack it with another program "
            "(7-Zip, unar) and give the folder."
        )


@contextmanager
def _read_only_hint() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise StorageError(
            f"{error} Archives are unpacked beside themselves, or in the folder that the environment "
            f"variable {CACHE_VARIABLE} names."
        ) from error


# --- members -----------------------------------------------------------------------------------------------


class _Writer:
    """Writes members below a folder, and counts."""

    def __init__(self, archive: Path, folder: Path, files: int, size: int) -> None:
        self.archive = archive
        self.folder = folder
        self.files = files
        self.size = size
        self._files = 0
        self._size = 0

    def write(self, name: str, stream: IO[bytes] | None) -> None:
        """Write a plain file; without a stream, only count."""
        self._files += 1
        if self._files > self.files:
            raise _too_much(self.archive, f"more than {self.files} files")
        parts = _safe_parts(name)
        if isinstance(parts, str):
            raise _refused(self.archive, [parts])
        if stream is None or parts[:1] == ("__MACOSX",):
            return
        path = self.folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := stream.read(_CHUNK):
                    self._count(len(chunk))
                    file.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise _refused(self.archive, [f"{name!r} stands for two things"]) from error

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self.size:
            raise _too_much(self.archive, f"more than {self.size / _MEGABYTE:.0f} MB")


def _written(archive: Path, writer: _Writer) -> Iterator[int]:
    """Write all members; gives the position in the archive, in bytes."""
    members = _zip_members if archive.name.lower().endswith(_ZIP) else _tar_members
    try:
        yield from members(archive, writer)
    except (McpmixError, MemoryError):
        raise
    except Exception as error:  # readers of archives fail on damage with errors of many kinds
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk
        raise DataError(
            f"{archive} cannot be unpacked: {str(error) or type(error).__name__}. Expected an intact archive "
            "without a password: fetch it again."
        ) from error


def _safe_parts(name: str) -> tuple[str, ...] | str:
    """The parts of a member's path; a text if it may lead elsewhere or is no path."""
    plain = name.replace("\\", "/")  # as some packers on Windows write it
    parts = tuple(part for part in plain.split("/") if part not in ("", "."))
    if plain.startswith("/") or re.match(r"[A-Za-z]:", plain) or ".." in parts:
        return f"{name!r} leads out of the folder"
    if "\0" in name or len(plain) > _LONGEST_NAME:
        return f"{name[:60]!r} is no name of a file"
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in parts):
        return f"{name[:60]!r} is too long"
    return parts


def _refused(archive: Path, problems: Sequence[str]) -> DataError:
    shown = [*problems[:20], *([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])]
    return DataError(
        bullet_list(
            f"{archive} is refused, and nothing of it was kept. Expected plain files with relative names; "
            "fetch it from its official place:",
            shown,
        )
    )


def _too_much(archive: Path, what: str) -> DataError:
    return DataError(
        f"{archive} unpacks to {what}, which no data set of its size does. It is refused; if you trust it, "
        "unpack it yourself and give the folder."
    )


# --- zip ---------------------------------------------------------------------------------------------------


def _zip_members(archive: Path, writer: _Writer) -> Iterator[int]:
    if _directory_size(archive) > _LARGEST_DIRECTORY:
        raise _too_much(archive, "a list of names of more than 64 MB")
    with zipfile.ZipFile(archive) as file:
        infos = file.infolist()
        problems = [problem for info in infos if (problem := _zip_problem(info))]
        if problems:
            raise _refused(archive, problems)
        _check_room(archive, writer, sum(info.file_size for info in infos))
        position = 0
        for info in infos:
            if info.is_dir():
                writer.write(info.filename, None)
            else:
                with file.open(info) as stream:
                    writer.write(info.filename, stream)
            position += info.compress_size
            yield position


def _zip_problem(info: zipfile.ZipInfo) -> str:
    parts = _safe_parts(info.filename)
    if isinstance(parts, str):
        return parts
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return f"{info.filename!r} is a link or a device"
    if info.flag_bits & 1:
        return f"{info.filename!r} needs a password"
    if info.compress_type not in _METHODS:
        return f"{info.filename!r} is packed by method {info.compress_type}, which is not read here"
    return ""


def _check_room(archive: Path, writer: _Writer, size: int) -> None:
    """Refuse by what a zip says of itself, before anything is written."""
    if size > writer.size:
        raise _too_much(archive, f"{size / _MEGABYTE:.0f} MB")
    free = shutil.disk_usage(writer.folder).free
    if size > free:
        raise StorageError(
            f"{archive} needs {size / _MEGABYTE:.0f} MB when unpacked, and {writer.folder.parent} has "
            f"{free / _MEGABYTE:.0f} MB free. Free some space."
        )


def _directory_size(archive: Path) -> int:
    """Bytes of a zip's list of names, which `zipfile` reads at once; 0 if there is none to be found."""
    size = archive.stat().st_size
    with archive.open("rb") as file:
        file.seek(max(0, size - 65_600))  # the last record: 22 bytes and a comment of at most 65,535
        tail = file.read()
    place = tail.rfind(b"PK\5\6")
    if place < 0 or len(tail) < place + 22:
        return 0
    short = int(struct.unpack_from("<L", tail, place + 12)[0])
    long = tail.rfind(b"PK\6\6", 0, place)  # the record of archives with more than 4 GB or 65,535 files
    if long >= 0 and len(tail) >= long + 48:
        return max(short if short != 0xFFFFFFFF else 0, int(struct.unpack_from("<Q", tail, long + 40)[0]))
    return short


# --- tar ---------------------------------------------------------------------------------------------------


class _Seekable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, position: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...


class _Bounded:
    """A stream that refuses to be read at once in large pieces, or further than allowed.

    A tar says in its headers how much is to be read: that is not to be believed.
    """

    def __init__(self, stream: _Seekable, archive: Path, most: int) -> None:
        self._stream = stream
        self._archive = archive
        self._most = most

    def read(self, size: int = -1) -> bytes:
        """As of a file."""
        if not 0 <= size <= _LARGEST_READ:
            raise _refused(self._archive, ["a header of more than 16 MB"])
        self._allow(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file."""
        self._allow(position)
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        """As of a file."""
        return self._stream.tell()

    def _allow(self, position: int) -> None:
        if position > self._most:
            raise _too_much(self._archive, f"more than {self._most / _MEGABYTE:.0f} MB")


def _tar_members(archive: Path, writer: _Writer) -> Iterator[int]:
    with archive.open("rb") as raw, _decompressed(archive, raw) as stream:
        padding = 4096 * writer.files  # headers and the ends of blocks
        bounded: Any = _Bounded(stream, archive, writer.size + padding)
        with tarfile.open(fileobj=bounded, mode="r:") as file:
            while (member := file.next()) is not None:
                _write_tar_member(file, member, writer)
                file.members = []  # type: ignore[attr-defined]  # it remembers all, and nobody needs them
                yield raw.tell()
        while bounded.read(_CHUNK):  # to the end, where compressed files keep their checksum
            pass


def _write_tar_member(file: tarfile.TarFile, member: tarfile.TarInfo, writer: _Writer) -> None:
    if member.isdir():
        writer.write(member.name, None)
        return
    if not member.isreg() or member.issparse():
        raise _refused(writer.archive, [f"{member.name!r} is a link, a device or a sparse file"])
    stream = file.extractfile(member)
    if stream is None:
        raise _refused(writer.archive, [f"{member.name!r} has no content"])
    writer.write(member.name, stream)


@contextmanager
def _decompressed(archive: Path, raw: IO[bytes]) -> Iterator[_Seekable]:
    name = archive.name.lower()
    if name.endswith((".gz", ".tgz")):
        with gzip.GzipFile(fileobj=raw, mode="rb") as plain:
            yield plain
    elif name.endswith(".bz2"):
        with bz2.BZ2File(raw, "rb") as plain_bz2:
            yield plain_bz2
    else:
        yield raw
