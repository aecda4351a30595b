"""Stage folders: finished when their manifest exists, reused while its digest matches, resumable until then.

A stage works in `<folder>.partial` under a lock. Its manifest is written last; then the folder gets its final
name. A killed stage leaves the partial folder, which the same command continues. A finished folder made from
other settings is moved to `superseded/`, never overwritten.

A manifest lists every file with its size and digest and is itself sealed, so that a finished stage cannot be
changed unseen (docs/integrity.md).
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mcpmix.core.errors import McpmixError, StorageError, TrainingError, bullet_list
from mcpmix.core.progress import Progress
from mcpmix.core.reading import is_stray, read_json

MANIFEST = "manifest.json"
_KEY = "key.json"
_PARTIAL = ".partial"
_VERSIONED = ("mcpmix", "torch", "diffusers", "transformers", "numpy")
_FILES, _SCRATCH, _SEAL = "files", "scratch", "seal"  # in a manifest
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # of torch, by device
_MOST_NAMED = 10  # changed files in a message
_ABSENT = "absent"
_DIGEST = re.compile("[0-9a-f]{64}")
_before_redo: ContextVar[Callable[[str, float, str], None] | None] = ContextVar("before_redo", default=None)


def digest_of(value: object) -> str:
    """SHA-256 of a JSON-like value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


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


@dataclass(frozen=True)
class StageKey:
    """All that a stage's result depends on."""

    stage: str
    settings: Mapping[str, Any]  # the part of the configuration that it reads, as JSON values
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of the artefacts it reads, by name
    seed: int = 0  # root of its random streams

    def as_json(self) -> dict[str, Any]:
        """A plain dictionary that survives JSON unchanged."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain

    @property
    def digest(self) -> str:
        """Identity of the result."""
        return digest_of(self.as_json())


@dataclass(frozen=True)
class Artifact:
    """A finished stage folder."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Identity of the result, for the keys of later stages."""
        return str(self.manifest["digest"])

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def read_artifact(folder: Path) -> Artifact | None:
    """The finished artefact in a folder, or None if there is none; only its manifest is read."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = read_json(path)
    except (OSError, ValueError) as error:  # not JSON, not even text, or not a file
        raise StorageError(f"{path} is damaged ({error}). {_remedy(folder)}") from error
    if not (isinstance(manifest, dict) and {"digest", "key", _FILES, _SEAL} <= manifest.keys()):
        raise StorageError(f"{path} is damaged (no digest, key, list of files or seal). {_remedy(folder)}")
    if manifest[_SEAL] != _seal(manifest):
        raise StorageError(f"{path} was changed after it was written. {_remedy(folder)}")
    return Artifact(folder, manifest)


def reuse(
    folder: Path, key: StageKey, progress: Progress, name: str = "", *, verified: bool = True
) -> Artifact | None:
    """The finished artefact in `folder` if it was made from exactly this key; otherwise says what differs.

    Args:
        verified: whether its files must be what its manifest says; False for a caller that repairs them.
    """
    artifact, name = read_artifact(folder), name or folder.name
    if artifact is None:
        return None
    if artifact.digest == key.digest:
        if verified:
            verify(artifact)
        return artifact
    first, *rest = changes(artifact, key) or ["it was made by another version"]
    reason = first + (f", and {len(rest)} more changed" if rest else "")
    if (ask := _before_redo.get()) is not None:
        ask(name, float(artifact.manifest.get("seconds", 0)), reason)
    progress.say(f"{name}: recomputed, because {reason}")
    return None


def verify(artifact: Artifact, names: Iterable[str] | None = None) -> None:
    """Compare a finished stage's files with its manifest: sizes always, contents once per process.

    Args:
        names: compare these files only; None: all, and none may have been added.

    Raises:
        StorageError: with every file that was changed, is missing or was added.
    """
    listed, problems = artifact.manifest[_FILES], []
    for name in listed if names is None else [name for name in names if name in listed]:
        path, (size, digest) = artifact.folder / name, str(listed[name]).split()
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif str(path.stat().st_size) != size or digest_once(path) != digest:
            problems.append(f"{name} was changed")
    if names is None:
        found = _files_in(artifact.folder, artifact.manifest.get(_SCRATCH, ()))
        problems += [f"{name} was added" for name in found if name not in listed]
    if problems:
        more = [f"and {len(problems) - _MOST_NAMED} more"] if len(problems) > _MOST_NAMED else []
        headline = f"{artifact.folder} is not what the stage left there. {_remedy(artifact.folder)}"
        raise StorageError(bullet_list(headline, [*problems[:_MOST_NAMED], *more]))


def _files_in(folder: Path, scratch: Iterable[str] = ()) -> list[str]:
    """All files of a stage's result by name, without its own records and what desktops leave behind."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    without = {Path(name) for name in (MANIFEST, _KEY, *scratch)}
    return sorted(
        path.as_posix() for path in found if not (without & {path, *path.parents} or is_stray(path))
    )


def _seal(manifest: Mapping[str, Any]) -> str:
    return digest_of({name: value for name, value in manifest.items() if name != _SEAL})


def _remedy(folder: Path) -> str:
    return f"Restore the file from a copy, or delete the folder {folder} to redo the stage."


@contextmanager
def asked_before_redoing(ask: Callable[[str, float, str], None]) -> Iterator[None]:
    """Call `ask` before a finished stage is made again: its name, the seconds that it took, the reason."""
    token = _before_redo.set(ask)
    try:
        yield
    finally:
        _before_redo.reset(token)


def changes(artifact: Artifact, key: StageKey) -> list[str]:
    """What differs between a finished artefact's key and another: `train.epochs is 50, was 100`."""

    def short(value: object) -> str:
        text = str(value)
        return text if len(text) <= 40 else text[:12] + "…"

    def differences(path: str, old: object, new: object) -> Iterator[str]:
        if isinstance(old, dict) and isinstance(new, dict):
            for name in sorted({*old, *new}):
                place = f"{path}.{name}".lstrip(".")
                yield from differences(place, old.get(name, _ABSENT), new.get(name, _ABSENT))
        elif old != new:
            kind, _, what = path.partition(".")
            if kind == "inputs" or any(_DIGEST.fullmatch(str(value)) for value in (old, new)):
                yield f"its {what.replace('_', ' ')} changed"
            else:
                yield f"{what or path} is {short(new)}, was {short(old)}"

    return list(differences("", artifact.manifest["key"], key.as_json()))


def place_in_stage(path: Path) -> str:
    """Name of a file within an unfinished stage, and the digest of its key; empty outside such folders."""
    for folder in path.absolute().parents:
        if folder.name.endswith(_PARTIAL) and (folder / _KEY).is_file():
            return f"{path.absolute().relative_to(folder).as_posix()} of {read_json(folder / _KEY)['digest']}"
    return ""


class Workspace:
    """The folder in which a stage works until it is finished."""

    def __init__(self, target: Path, key: StageKey) -> None:
        self.target = target
        self.key = key
        self.folder = target.with_name(target.name + _PARTIAL)

    def finish(self, *scratch: str, **counts: object) -> Artifact:
        """Write the manifest, with `counts` as facts about the result, and name the folder.

        Args:
            scratch: patterns of files and folders that served their purpose: they are not listed, and
                deleted last, so that a kill at any time costs nothing.
        """
        versions = {"python": platform.python_version()}
        for name in _VERSIONED:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "not installed"
        spent = sorted({path for pattern in scratch for path in self.folder.glob(pattern)})
        without = [path.relative_to(self.folder).as_posix() for path in spent]
        paths = {name: self.folder / name for name in _files_in(self.folder, without)}
        for path in paths.values():
            _grant(path)
        started = (self.folder / _KEY).stat().st_mtime  # from the first start, pauses included
        manifest: dict[str, Any] = {
            "digest": self.key.digest,
            "key": self.key.as_json(),
            "counts": json.loads(json.dumps(counts, default=str)),
            "versions": versions,
            "seconds": round(max(0.0, time.time() - started), 1),
            _FILES: {name: f"{path.stat().st_size} {file_digest(path)}" for name, path in paths.items()},
            **({_SCRATCH: without} if without else {}),
        }
        manifest[_SEAL] = _seal(manifest)
        # The key stays until the folder has its name: without it a partial folder counts as foreign, and a
        # kill or a full disk at this point would cost the whole stage.
        write_json(self.folder / MANIFEST, manifest)
        if self.target.exists():
            _supersede(self.target)
        self.folder.replace(self.target)
        for path in (self.target / name for name in (_KEY, *without)):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        return Artifact(self.target, manifest)


@contextmanager
def workspace(target: Path, key: StageKey) -> Iterator[Workspace]:
    """Lock a stage's folder and yield where to work: the partial folder of the same key, or a new one."""
    with locked(target):
        space = Workspace(target, key)
        marker = space.folder / _KEY
        try:
            same = read_json(marker)["digest"] == key.digest
        except (OSError, ValueError, TypeError, KeyError):
            same = False
        if not same:
            if space.folder.exists():
                shutil.rmtree(space.folder)
            space.folder.mkdir(parents=True)
            write_json(marker, {"digest": key.digest, **key.as_json()})
        yield space


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock a stage's folder, to work on it or to repair it."""
    with storage_errors(target):
        make_folder(target.parent)
        lock = FileLock(target.with_name(f".{target.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StorageError(
                f"{target} is in use by another run. Wait for it, or choose another name or output folder."
            ) from error
        try:
            yield
        finally:
            lock.release()


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
        if number in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR):
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
            _grant(temporary)
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def _grant(path: Path) -> None:
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


def _supersede(folder: Path) -> None:
    """Move a finished folder out of the way, keeping it."""
    old = read_artifact(folder)
    shelf = folder.parent / "superseded"
    shelf.mkdir(exist_ok=True)
    if old is None:  # not made by a stage: each gets a place of its own
        place = next(spot for n in count(1) if not (spot := shelf / f"{folder.name}-unfinished-{n}").exists())
    else:
        place = shelf / f"{folder.name}-{old.digest[:8]}"
        if place.exists():  # the same result, shelved before
            shutil.rmtree(place)
    folder.replace(place)
