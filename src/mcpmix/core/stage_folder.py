"""Stage folders: finished when their manifest exists, reused while its digest matches, resumable until then.

A stage works in `<folder>.partial` under a lock. Its manifest is written last; then the folder gets its final
name. A killed stage leaves the partial folder, which the same command continues. A finished folder made from
other settings is moved to `superseded/`, never overwritten.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mcpmix.core.errors import McpmixError, StorageError
from mcpmix.core.progress import Progress

MANIFEST = "manifest.json"
_KEY = "key.json"
_VERSIONED = ("mcpmix", "torch", "diffusers", "transformers", "numpy")
_ABSENT = "(absent)"


def digest_of(value: object) -> str:
    """SHA-256 of a JSON-like value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    """The finished artefact in a folder, or None if there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not even text
        raise StorageError(f"{path} is damaged ({error}). Delete the folder to redo the stage.") from error
    if not (isinstance(manifest, dict) and {"digest", "key"} <= manifest.keys()):
        raise StorageError(f"{path} is damaged (no digest or key). Delete the folder to redo the stage.")
    return Artifact(folder, manifest)


def reuse(folder: Path, key: StageKey, progress: Progress, name: str = "") -> Artifact | None:
    """The finished artefact in `folder` if it was made from exactly this key; otherwise says what differs."""
    artifact = read_artifact(folder)
    if artifact is None or artifact.digest == key.digest:
        return artifact
    first, *rest = changes(artifact, key) or ["key changed"]
    progress.say(f"{name or folder.name}: recomputed, {first}" + (f" and {len(rest)} more" if rest else ""))
    return None


def changes(artifact: Artifact, key: StageKey) -> list[str]:
    """What differs between a finished artefact's key and another: `settings.train.epochs: 100 -> 50`."""

    def short(value: object) -> str:
        text = str(value)
        return text if len(text) <= 40 else text[:12] + "…"

    def differences(path: str, old: object, new: object) -> Iterator[str]:
        if isinstance(old, dict) and isinstance(new, dict):
            for name in sorted({*old, *new}):
                place = f"{path}.{name}".lstrip(".")
                yield from differences(place, old.get(name, _ABSENT), new.get(name, _ABSENT))
        elif old != new:
            yield f"{path}: {short(old)} -> {short(new)}"

    return list(differences("", artifact.manifest["key"], key.as_json()))


class Workspace:
    """The folder in which a stage works until it is finished."""

    def __init__(self, target: Path, key: StageKey) -> None:
        self.target = target
        self.key = key
        self.folder = target.with_name(target.name + ".partial")

    def finish(self, **counts: object) -> Artifact:
        """Write the manifest, with `counts` as facts about the result, and name the folder."""
        versions = {"python": platform.python_version()}
        for name in _VERSIONED:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "not installed"
        key = {"digest": self.key.digest, "key": self.key.as_json()}
        manifest = {**key, "counts": counts, "versions": versions}
        # The key stays until the folder has its name: without it a partial folder counts as foreign, and a
        # kill or a full disk at this point would cost the whole stage.
        write_json(self.folder / MANIFEST, manifest)
        if self.target.exists():
            _supersede(self.target)
        self.folder.replace(self.target)
        (self.target / _KEY).unlink(missing_ok=True)
        return Artifact(self.target, manifest)


@contextmanager
def workspace(target: Path, key: StageKey) -> Iterator[Workspace]:
    """Lock a stage's folder and yield where to work: the partial folder of the same key, or a new one."""
    with locked(target):
        space = Workspace(target, key)
        marker = space.folder / _KEY
        try:
            same = json.loads(marker.read_text(encoding="utf-8"))["digest"] == key.digest
        except (FileNotFoundError, ValueError, TypeError, KeyError):
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
        _make_folder(target.parent)
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
    """Turn errors of the disk into messages a user can act on; all others pass."""
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
        raise


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
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def new_folder(path: Path) -> Path:
    """Make the output folder of a command, with those around it."""
    if path.is_dir() and any(path.iterdir()):
        raise StorageError(f"{path} is not empty. Choose another folder.")
    with storage_errors(path):
        _make_folder(path)
    return path


def _make_folder(folder: Path) -> None:
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
