"""Unpacks published archives safely.

Whatever an archive says, only plain files are written, only below the target, and no more than the limits
allow. An archive that contains anything else is refused as a whole: nothing of it stays. `tarfile`'s data
filter would not do: it lets links pass, knows no limits, and there is none for zip.
"""

import bz2
import errno
import gzip
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from mcpmix.core.errors import DataError, McpmixError, StorageError, bullet_list
from mcpmix.core.files import digest_once, expanded, storage_errors, written
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of

MARK = ".unpacked-"  # in the names of folders that were unpacked here
_CACHE = "MCPMIX_CACHE"
_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")
_FOREIGN = (".rar", ".7z", ".tar.xz")
_PACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # LZMA asks for any amount of memory
_CHUNK = 1 << 20
_MEGABYTE = 10**6
_LARGEST_READ = 64 * _MEGABYTE  # at once: room for more names in a zip than any data set has
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
_LONGEST_PART, _LONGEST_NAME = 255, 1024

_Member = tuple[str, int, IO[bytes] | None]  # name, size, content (None for a folder)


@dataclass(frozen=True)
class Limits:
    """What an archive may unpack to."""

    files: int = 500_000  # members
    size: int = 200_000 * _MEGABYTE  # bytes in all
    ratio: float = 100.0  # unpacked bytes for each packed one: photographs stay near 1, bombs reach 1000
    free: int = 256 * _MEGABYTE  # bytes below which the ratio does not matter


LIMITS = Limits()


def is_archive(path: Path) -> bool:
    """Whether a path names a file that `folder_of` unpacks, or says why it cannot."""
    return path.is_file() and path.name.lower().endswith((*_ENDINGS, *_FOREIGN))


def folder_of(root: Path, progress: Progress = SILENT) -> Path:
    """The folder of a data set: `root` itself, or what the archive `root` unpacks to (see `unpack`).

    An archive that holds nothing but one folder gives that folder.
    """
    if not is_archive(root):
        return root
    folder = unpack([root], progress=progress)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def unpack(archives: Sequence[Path], progress: Progress = SILENT, limits: Limits = LIMITS) -> Path:
    """Unpack zip or tar files once into a folder next to the first of them, named after their digests.

    If that place is read-only, the environment variable MCPMIX_CACHE selects another one. Of an archive that
    is damaged, of a foreign kind, or not safe to unpack, nothing is kept.
    """
    digests = [digest_once(path) for path in archives]
    name, digest = archives[0].name, digests[0]
    if len(archives) > 1:
        name, digest = "archives", digest_of(digests)
    cache = os.environ.get(_CACHE)
    home = expanded(cache) if cache else archives[0].parent
    target = home / f"{name}{MARK}{digest[:12]}"
    if target.is_dir():
        return target
    for archive in archives:
        if archive.name.lower().endswith(_FOREIGN):
            raise DataError(
                f"{archive} is a {archive.suffix[1:].upper()} archive, which cannot be unpacked here. Unpack "
                "it with another program (7-Zip, unar) and give the folder."
            )
    try:
        with storage_errors(home):
            home.mkdir(parents=True, exist_ok=True)
            with FileLock(home / f".{target.name}.lock"):
                if not target.is_dir():  # another process may have been faster
                    with written(target) as folder:
                        folder.mkdir()
                        for archive in archives:
                            _write_members(archive, folder, limits, progress)
    except StorageError as error:
        raise StorageError(
            f"{error} Archives are unpacked next to themselves, or in the folder that the environment "
            f"variable {_CACHE} names."
        ) from error
    return target


def _write_members(archive: Path, folder: Path, limits: Limits, progress: Progress) -> None:
    packed = archive.stat().st_size
    most = min(limits.size, max(limits.free, int(limits.ratio * packed)))
    read = _zip_members if archive.name.lower().endswith(".zip") else _tar_members
    files = size = done = 0
    with (
        _SmallReads(archive.open("rb", buffering=0)) as raw,
        progress.track(f"Unpacking {archive.name} (MB)", packed // _MEGABYTE) as advance,
    ):
        try:
            for name, length, stream in read(archive, raw, folder, most):
                files, size = files + 1, size + length
                if files > limits.files:
                    raise _too_much(archive, f"more than {limits.files} files")
                if size > most:
                    raise _too_much(archive, f"more than {most / _MEGABYTE:.0f} MB")
                if problem := _name_problem(name):
                    raise _refused(archive, [problem])
                parts = _parts(name)
                if stream is not None and parts[0] != "__MACOSX":
                    path = folder.joinpath(*parts)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb") as file:
                        shutil.copyfileobj(stream, file, _CHUNK)  # never more than `length` bytes
                advance(raw.tell() // _MEGABYTE - done)
                done = raw.tell() // _MEGABYTE
        except (McpmixError, MemoryError):
            raise
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise _refused(archive, [f"{name!r} stands for two things"]) from error
        except Exception as error:  # readers of archives fail on damage with errors of many kinds
            if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
                raise
            raise DataError(
                f"{archive} cannot be unpacked: {str(error) or type(error).__name__}. Expected an intact "
                "archive without a password: fetch it again."
            ) from error


def _parts(name: str) -> list[str]:
    plain = name.replace("\\", "/")  # as some packers on Windows write it
    return [part for part in plain.split("/") if part not in ("", ".")]


def _name_problem(name: str) -> str:
    """Why a member's name may lead elsewhere or cannot be that of a file; empty if it is fine."""
    parts = _parts(name)
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in parts:
        return f"{name!r} leads out of the folder"
    if "\0" in name or len(name) > _LONGEST_NAME:
        return f"{name[:60]!r} cannot be the name of a file"
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in parts):
        return f"{name[:60]!r} is too long"
    return ""


def _refused(archive: Path, problems: Sequence[str]) -> DataError:
    shown = [*problems[:20], *([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])]
    headline = (
        f"{archive} is refused, and nothing of it was kept. Expected plain files with relative names; "
        "fetch it from its official place:"
    )
    return DataError(bullet_list(headline, shown))


def _too_much(archive: Path, what: str) -> DataError:
    return DataError(
        f"{archive} unpacks to {what}, which no data set of its size does. It is refused; if you trust it, "
        "unpack it yourself and give the folder."
    )


class _SmallReads(io.BufferedReader):
    """Never reads much at once, whatever an archive claims: its readers keep headers and lists in memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most this many bytes."""
        if (size or 0) > _LARGEST_READ:
            raise ValueError(f"a header or a list of names has {(size or 0) // _MEGABYTE} MB")
        return super().read(size)


def _zip_members(archive: Path, raw: io.BufferedReader, folder: Path, most: int) -> Iterator[_Member]:
    """The members, after the archive was refused by what it says of itself."""
    with zipfile.ZipFile(raw) as file:
        infos = file.infolist()
        problems = []
        for info in infos:
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                problems.append(f"{info.filename!r} is a link or a device")
            elif info.flag_bits & 1:
                problems.append(f"{info.filename!r} needs a password")
            elif info.compress_type not in _METHODS:
                method = info.compress_type
                problems.append(f"{info.filename!r} is packed by method {method}, which is not read here")
            elif problem := _name_problem(info.filename):
                problems.append(problem)
        if problems:
            raise _refused(archive, problems)
        size, free = sum(info.file_size for info in infos), shutil.disk_usage(folder).free
        if size > most:
            raise _too_much(archive, f"{size / _MEGABYTE:.0f} MB")
        if size > free:
            raise StorageError(
                f"{archive} needs {size / _MEGABYTE:.0f} MB when unpacked, and {folder.parent} has "
                f"{free / _MEGABYTE:.0f} MB free. Free some space."
            )
        for info in infos:
            with nullcontext() if info.is_dir() else file.open(info) as stream:
                yield info.filename, info.file_size, stream


def _tar_members(archive: Path, raw: io.BufferedReader, folder: Path, most: int) -> Iterator[_Member]:
    del folder, most  # a tar says nothing of itself in advance
    packer = _PACKERS.get(archive.suffix.lower())
    with _SmallReads(packer(raw, "rb")) if packer else nullcontext(raw) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as file:
            while (member := file.next()) is not None:
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise _refused(archive, [f"{member.name!r} is a link, a device or a sparse file"])
                yield member.name, member.size, file.extractfile(member)
                file.members = []  # type: ignore[attr-defined]  # it keeps all members, which are not needed
        while stream.read(_CHUNK):  # to the end, where compressed files keep their checksum
            pass
