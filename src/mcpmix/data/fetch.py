"""Fetches a file over HTTP: resumed where it stopped, checked before it gets its name.

Nothing of the package opens a connection but `fetch`, `remote_size` and `remote_text`.
"""

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from mcpmix import __version__
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.files import storage_errors
from mcpmix.core.progress import SILENT, Progress

_CHUNK = 1 << 20
_MEGABYTE = 10**6
_RESUMED, _BEYOND = 206, 416
_md5 = partial(hashlib.md5, usedforsecurity=False)
_MAY_PASS = (408, 425, 429, 500, 502, 503, 504)  # answers after which another attempt is worth it


def refuse_offline(environment: Mapping[str, str] = os.environ) -> None:
    """Raise a DataError if MCPMIX_OFFLINE, or, where that is not set, HF_HUB_OFFLINE, is on."""
    for name in ("MCPMIX_OFFLINE", "HF_HUB_OFFLINE"):
        value = environment.get(name, "").strip().lower()
        if value in ("1", "true", "yes", "on"):
            raise DataError(
                f"{name}={environment[name]} forbids connections. Unset it to download, or fetch the file on "
                "another machine and copy it here."
            )
        if value:
            return


def remote_size(url: str, timeout: float = 30.0) -> int | None:
    """Bytes of a file on a server; None if the server does not say."""
    refuse_offline()
    try:
        with _open(url, {}, timeout, method="HEAD") as response:
            return _length(response)
    except (OSError, http.client.HTTPException):
        return None  # some servers answer to GET only; that will tell what is wrong


def remote_text(url: str, timeout: float = 30.0) -> bytes | None:
    """The first megabyte of a text on a server, such as the metadata of a package; None if there is none."""
    refuse_offline()
    try:
        with _open(url, {}, timeout) as response:
            return bytes(response.read(_CHUNK))
    except (OSError, http.client.HTTPException):
        return None


def fetch(
    url: str,
    folder: Path,
    *,
    sha256: str = "",
    md5: str = "",
    attempts: int = 3,
    timeout: float = 60.0,
    progress: Progress = SILENT,
) -> Path:
    """Fetch a file, or check the one that is already there.

    What has arrived lies in `NAME.part` until it is complete and has its digest; a later call resumes there
    if the server can. Halves of two versions never pass: they have another digest.

    Args:
        sha256: what the file must have; hexadecimal.
        md5: the same, where the publisher gives no better one; one of the two must be given.
        attempts: how often to try before giving up; each resumes the last one.
        timeout: seconds of silence that count as an interruption.
    """
    refuse_offline()
    kind, expected = ("sha256", sha256.lower()) if sha256 else ("md5", md5.lower())
    target = folder / urllib.parse.unquote(urllib.parse.urlsplit(url).path).rpartition("/")[2]
    if target == folder:
        raise DataError(f"{url} names no file. Expected an address that ends in one.")
    part = target.with_name(target.name + ".part")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{target.name}.lock"):
            present = target.is_file()
            if not present:
                _transfer_patiently(url, part, attempts, timeout, progress)
            with (target if present else part).open("rb") as stream:
                found = hashlib.file_digest(stream, hashlib.sha256 if sha256 else _md5).hexdigest()
            if found == expected:
                if not present:
                    part.replace(target)
                return target
            if present:
                raise DataError(
                    f"{target} is there, but is incomplete or another file: {found}, expected {expected} "
                    f"({kind}). Move it away, and run the same command again."
                )
            part.unlink()
            raise DataError(
                f"{url} has the {kind} {found}. Expected {expected}. It was removed: try again. If its "
                "publisher has replaced the file, give --sha256 with what the publisher states."
            )


class _InterruptedTransferError(Exception):
    """Another attempt may succeed."""


def _transfer_patiently(url: str, part: Path, attempts: int, timeout: float, progress: Progress) -> None:
    for attempt in range(1, attempts + 1):
        try:
            return _transfer(url, part, timeout, progress)
        except _InterruptedTransferError as error:
            if attempt == attempts:
                kept = part.stat().st_size / _MEGABYTE if part.exists() else 0
                raise DataError(
                    f"{url}: {error}. {kept:.1f} MB are kept in {part.name}: check the connection, and run "
                    "the same command again to resume."
                ) from error
            progress.say(f"{url}: {error}; resuming")


def _transfer(url: str, part: Path, timeout: float, progress: Progress) -> None:
    """One attempt, from where the last one stopped."""
    offset = part.stat().st_size if part.is_file() else 0
    try:
        response = _open(url, {"Range": f"bytes={offset}-"} if offset else {}, timeout)
    except urllib.error.HTTPError as error:
        if error.code == _BEYOND:
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(offset):
                return  # complete; it was stopped before it got its name
            part.unlink()
            raise _InterruptedTransferError("the file on the server is shorter than what is here") from error
        answer = f"the server answered {error.code} {error.reason}"
        if error.code in _MAY_PASS:
            raise _InterruptedTransferError(answer) from error
        raise DataError(
            f"{url}: {answer}. The address may have changed: look at the page of the data set, and give the "
            "new place with --mirror."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedTransferError(_reason(error)) from error
    with response:
        if response.status != _RESUMED:
            offset = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            part.unlink()
            raise _InterruptedTransferError("the server resumed at another place")
        length = _length(response)
        free = shutil.disk_usage(part.parent).free
        if (length or 0) > free:
            raise StorageError(
                f"{part.parent} has {free / _MEGABYTE:.0f} MB free, and {(length or 0) / _MEGABYTE:.0f} MB "
                "are still to come. Free some space, and run the same command again."
            )
        with part.open("ab" if offset else "wb") as file:
            _save(response, file, offset, length, progress)
    size = part.stat().st_size
    if length is not None and size != offset + length:
        raise _InterruptedTransferError(f"the connection ended after {size} of {offset + length} bytes")


def _save(
    response: Any,  # noqa: ANN401 (of http.client, or of another handler of urllib)
    file: IO[bytes],
    offset: int,
    length: int | None,
    progress: Progress,
) -> None:
    name, total = Path(file.name).stem, (offset + length) // _MEGABYTE if length is not None else 0
    with progress.track(f"Fetching {name} (MB)", total, offset // _MEGABYTE) as advance:
        while True:
            try:  # errors of the connection are kept apart from those of the disk
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _InterruptedTransferError(_reason(error)) from error
            if not chunk:
                return
            file.write(chunk)
            advance((offset + len(chunk)) // _MEGABYTE - offset // _MEGABYTE)
            offset += len(chunk)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to other addresses, but never from https to something less."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        *rest: Any,  # noqa: ANN401 (urllib gives them in order)
    ) -> urllib.request.Request | None:
        """The request to make instead."""
        old, new = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, rest[-1]))
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise DataError(
                f"{req.full_url} sends to {rest[-1]}, which is not safe to follow. Expected https: look at "
                "the page of the data set, and give the new place with --mirror."
            )
        return super().redirect_request(req, *rest)


def _open(url: str, headers: Mapping[str, str], timeout: float, method: str = "GET") -> Any:  # noqa: ANN401
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} cannot be downloaded. Expected an address with https or http.")
    given = {"User-Agent": f"mcpmix/{__version__}", "Accept-Encoding": "identity", **headers}
    request = urllib.request.Request(url, headers=given, method=method)
    return urllib.request.build_opener(_Redirects).open(request, timeout=timeout)


def _length(response: Any) -> int | None:  # noqa: ANN401
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"the connection failed ({reason or type(reason).__name__})"
