"""Stage folders: finished when their manifest exists, reused while its digest matches, resumable until then.

A stage works in `<folder>.partial` under a lock. Its manifest is written last; then the folder gets its final
name. A killed stage leaves the partial folder, which the same command continues. A finished folder made from
other settings is moved to `superseded/`, never overwritten.

A manifest lists every file with its size and digest and is itself sealed, so that a finished stage cannot be
changed unseen (docs/integrity.md).
"""

import hashlib
import json
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mcpmix.core.errors import StorageError, bullet_list
from mcpmix.core.files import (
    digest_once,
    file_digest,
    follow_umask,
    is_stray,
    make_folder,
    read_json,
    storage_errors,
    write_json,
)
from mcpmix.core.progress import Progress

MANIFEST = "manifest.json"
_KEY = "key.json"
_PARTIAL = ".partial"
_VERSIONED = ("mcpmix", "torch", "diffusers", "transformers", "numpy")
_FILES, _SCRATCH, _SEAL = "files", "scratch", "seal"  # in a manifest
_MOST_NAMED = 10  # changed files in a message
_ABSENT = "absent"
_DIGEST = re.compile("[0-9a-f]{64}")
_before_redo: ContextVar[Callable[[str, float, str], None] | None] = ContextVar("before_redo", default=None)


def digest_of(value: object) -> str:
    """SHA-256 of a JSON-like value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


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
            follow_umask(path)
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
