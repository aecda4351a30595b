"""Files and folders: read although they may be anything, written whole or not at all.

What cannot be read is an OSError or a ValueError, whatever it is (a pipe that never answers, a text without
end, JSON nested too deeply), so that callers need not know more.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcpmix.core.errors import McpmixError, StorageError, TrainingError

_LARGEST_TEXT = 2**30  # bytes; tables of a million images are a tenth of it
_STRAYS = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # of torch, by device


def is_stray(path: Path) -> bool:
    """Whether a relative path names what desktops leave behind in any folder: hidden files, Thumbs.db."""
    return any(part.startswith(".") or part.lower() in _STRAYS for part in path.parts)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a regular file; pipes and devices, which may block for ever, are an OSError."""
    # Without waiting: opening a pipe that nobody writes to would not return.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"{path} is not a regular file")
        if state.st_size > _LARGEST_TEXT:
            raise OSError(f"{path} has {state.st_size} bytes, more than any such file needs")
        return file.read().decode(encoding)


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """The value of a JSON text; a text that is nested too deeply is a ValueError as others are."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:  # noqa: ANN401
    """The value in a JSON file; OSError or ValueError if it cannot be read."""
    return parse_json(read_text(path))


def expanded(name: str) -> Path:
    """A path with ~ replaced by the user's folder; that of an unknown user stays a name."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises for unknown users


def has_file(path: Path) -> bool:
    """Whether a path from a table or a setting names a file; False for texts that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_once(path: Path) -> str:
    """SHA-256 of a file's bytes, computed once per process while its size and times stay the same."""
    state = path.stat()
    return _digest(path.absolute(), (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


@lru_cache(maxsize=2**16)
def _digest(path: Path, state: tuple[int, ...]) -> str:
    del state
    return file_digest(path)


# --- writing -----------------------------------------------------------------------------------------------


def write_json(path: Path, value: object) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with written(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder, which replaces `path` unless an error occurs.

    It never appears half-written, and after an error or a kill `path` is unchanged. The folder around it must
    exist; a folder at `path` must be empty.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path  # a device or pipe, such as /dev/stdout: written to, never replaced
        return
    temporary = path.with_name(path.name + ".tmp")
    if temporary.is_dir():  # a kill has left it; a file is simply overwritten
        shutil.rmtree(temporary)
    try:
        yield temporary
        if temporary.is_file():
            follow_umask(temporary)
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def follow_umask(path: Path) -> None:
    """Give a file the permissions of the user's umask; safetensors lets only the owner read."""
    mask = os.umask(0o077)
    os.umask(mask)
    if path.stat().st_mode & 0o777 == 0o600 != 0o666 & ~mask:
        path.chmod(0o666 & ~mask)


def require_new(path: Path) -> None:
    """Refuse an output folder that holds something."""
    if path.is_dir() and any(path.iterdir()):
        raise StorageError(f"{path} is not empty. Choose another folder.")


def new_folder(path: Path) -> Path:
    """Make the output folder of a command, with those around it."""
    require_new(path)
    with storage_errors(path):
        make_folder(path)
    return path


def make_folder(folder: Path) -> None:
    """Make a folder with those around it; a file in the way is a StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(
            f"Cannot make the folder {folder}: a file is in the way. Choose another name or folder."
        ) from error


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn errors of disk and memory into messages a user can act on; all others pass."""
    try:
        yield
    except McpmixError:
        raise
    except Exception as error:
        # safetensors gives the operating system's number in its text only
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"The disk that holds {folder} is full. Finished stages and the last checkpoint are kept: "
                "free some space and run the same command again."
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            place = getattr(error, "filename", None) or folder
            raise StorageError(
                f"Cannot write to {place}: {os.strerror(number)}. Change its permissions, or choose another "
                "folder."
            ) from error
        if number in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            place = str(getattr(error, "filename", None) or folder)
            raise StorageError(
                f"{place if len(place) < 200 else place[:200] + '...'} cannot be used as a path: "
                f"{os.strerror(number)}. Choose another."
            ) from error
        if number == errno.ENOENT and (gone := _disappeared(folder, getattr(error, "filename", None))):
            raise StorageError(
                f"The folder {gone} has disappeared while it was in use. Bring it back, or run the same "
                "command again to redo what was in it."
            ) from error
        if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
            raise TrainingError(
                f"Memory ran out: {str(error).splitlines()[0] if str(error) else 'no more to have'}. Lower "
                "batch_size of the section at work, data.size or runtime.jobs; what is finished is kept."
            ) from error
        raise


def _disappeared(folder: Path, name: object) -> Path | None:
    """The outermost folder that is missing around a file, or around a stage's folder; None if all exist."""
    inner = Path(os.fsdecode(name)).parent if isinstance(name, str | bytes) else folder.parent
    for place in reversed([inner, *inner.parents]):
        if not place.is_dir():
            return place
    return None
