"""Fetches a file over HTTP: resumed where it stopped, checked before it gets its name.

Nothing of the package opens a connection but `fetch` and `remote_size`.
"""

import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from mcpmix import __version__
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import file_digest, storage_errors, write_json

_CHUNK = 1 << 20
_MEGABYTE = 10**6
_YES = ("1", "true", "yes", "on")
_RESUMED, _BEYOND = 206, 416
_MAY_PASS = (408, 425, 429, 500, 502, 503, 504)  # answers after which another attempt is worth it


@dataclass(frozen=True)
class Download:
    """A file that is here, and what is known about its content.

    Attributes:
        file: where it is.
        sha256: digest of its bytes.
        checked: against what: `sha256` or `md5` of the publisher, `record` (of an earlier download), or
            `nothing`: no digest is known, and this one was recorded.
    """

    file: Path
    sha256: str
    checked: str


def refuse_offline(environment: Mapping[str, str] = os.environ) -> None:
    """Respect a wish to stay offline.

    MCPMIX_OFFLINE decides; where it is not set, HF_HUB_OFFLINE does.

    Raises:
        DataError: one of them is on.
    """
    for name in ("MCPMIX_OFFLINE", "HF_HUB_OFFLINE"):
        value = environment.get(name, "").strip().lower()
        if value in _YES:
            raise DataError(
                f"{name}={environment[name]} forbids connections. Unset it to download, or fetch the file on "
                "another machine and copy it here."
            )
        if value:
            return


def name_of(url: str) -> str:
    """The name of the file that an address ends in."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path).rpartition("/")[2]


def remote_size(url: str, timeout: float = 30.0) -> int | None:
    """Bytes of a file on a server; None if the server does not say.

    Raises:
        DataError: connections are forbidden, or the address is of another kind.
    """
    refuse_offline()
    try:
        with _open(url, {}, timeout, method="HEAD") as response:
            return _length(response)
    except (OSError, http.client.HTTPException):
        return None  # some servers answer to GET only; that will tell what is wrong


def fetch(
    url: str,
    folder: Path,
    *,
    sha256: str = "",
    md5: str = "",
    attempts: int = 3,
    timeout: float = 60.0,
    progress: Progress = SILENT,
) -> Download:
    """Fetch a file, or check the one that is there.

    What has arrived lies in `NAME.part` until it is complete and checked; a later call goes on from there if
    the server can and still has the same file. `NAME.json` records address and digest.

    Args:
        url: http or https.
        folder: where to put it; made if needed.
        sha256: what the file must have; hexadecimal.
        md5: the same, where the publisher gives no better one.
        attempts: how often to go on after an interruption before giving up.
        timeout: seconds of silence that count as an interruption.
        progress: where to report.

    Raises:
        DataError: connections are forbidden; the server refuses or breaks off; or the content is another.
        StorageError: the disk is full or read-only.
    """
    refuse_offline()
    target = folder / name_of(url)
    if target == folder:
        raise DataError(f"{url} names no file. Expected an address that ends in one.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{target.name}.lock"):
            if target.is_file():
                return _check_present(target, sha256, md5)
            part = target.with_name(target.name + ".part")
            _transfer_patiently(url, part, attempts, timeout, progress)
            checked = _check(part, url, sha256, md5)
            digest = file_digest(part)
            write_json(_record(target), {"url": url, "sha256": digest, "checked": checked})
            part.replace(target)
            _state(part).unlink(missing_ok=True)
    return Download(target, digest, checked)


# --- content -----------------------------------------------------------------------------------------------


def _record(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _check(file: Path, url: str, sha256: str, md5: str) -> str:
    """Compare with the digest that is known; a file with another one is removed."""
    for kind, expected in (("sha256", sha256), ("md5", md5)):
        if expected:
            found = _digest(file, kind)
            if found != expected.lower():
                file.unlink()
                _state(file).unlink(missing_ok=True)
                raise DataError(
                    f"{url} has the {kind} {found}. Expected {expected.lower()}. It was removed: try again. "
                    "If its publisher has replaced the file, give --sha256 with what the publisher states."
                )
            return kind
    return "nothing"


def _check_present(target: Path, sha256: str, md5: str) -> Download:
    digest = file_digest(target)
    recorded = "" if sha256 or md5 else str(_read_json(_record(target)).get("sha256", ""))
    for kind, expected in (("sha256", sha256), ("md5", md5), ("record", recorded)):
        if expected:
            found = _digest(target, "md5") if kind == "md5" else digest
            if found != expected.lower():
                raise DataError(
                    f"{target} is there, but is not complete or another file: {found}, expected "
                    f"{expected.lower()} ({kind}). Move it away, and run the same command again."
                )
            return Download(target, digest, kind)
    return Download(target, digest, "nothing")


def _digest(file: Path, kind: str) -> str:
    if kind == "sha256":
        return file_digest(file)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


# --- transfer ----------------------------------------------------------------------------------------------


class _InterruptedTransferError(Exception):
    """It may go on if tried again."""


def _transfer_patiently(url: str, part: Path, attempts: int, timeout: float, progress: Progress) -> None:
    for attempt in range(1, attempts + 1):
        try:
            _transfer(url, part, timeout, progress)
            return
        except _InterruptedTransferError as error:
            if attempt == attempts:
                kept = part.stat().st_size / _MEGABYTE if part.exists() else 0
                raise DataError(
                    f"{url}: {error}. {kept:.1f} MB are kept in {part.name}: check the connection, and run "
                    "the same command again to go on."
                ) from error
            progress.say(f"{url}: {error}; going on")


def _transfer(url: str, part: Path, timeout: float, progress: Progress) -> None:
    """One attempt, from where the last one stopped."""
    offset, validator = _resumable(url, part)
    headers = {"Range": f"bytes={offset}-", "If-Range": validator} if offset else {}
    try:
        response = _open(url, headers, timeout)
    except urllib.error.HTTPError as error:
        if error.code == _BEYOND and _total(error.headers) == offset:
            return  # complete; it was stopped before it got its name
        raise _refusal(url, part, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedTransferError(_reason(error)) from error
    with response:
        if response.status != _RESUMED:
            offset = 0
        elif _start(response.headers) != offset:
            part.unlink()
            raise _InterruptedTransferError("the server went on at another place")
        length = _length(response)
        total = None if length is None else offset + length
        _refuse_without_room(part, length or 0)
        write_json(_state(part), {"url": url, "validator": _validator(response.headers)})
        with part.open("ab" if offset else "wb") as file:
            _save(response, file, part.name.removesuffix(".part"), offset, total, progress)
    size = part.stat().st_size
    if total is not None and size != total:
        raise _InterruptedTransferError(f"the connection ended after {size} of {total} bytes")


def _save(
    response: Any,  # noqa: ANN401 (of http.client, or of another handler of urllib)
    file: IO[bytes],
    name: str,
    offset: int,
    total: int | None,
    progress: Progress,
) -> None:
    megabytes = (total or 0) // _MEGABYTE
    done = offset
    with progress.track(f"Fetching {name} (MB)", megabytes, offset // _MEGABYTE) as advance:
        for chunk in _chunks(response):
            file.write(chunk)
            before, done = done, done + len(chunk)
            advance(done // _MEGABYTE - before // _MEGABYTE)


def _chunks(response: Any) -> Iterator[bytes]:  # noqa: ANN401
    """The body; errors of the connection are kept apart from those of the disk."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedTransferError(_reason(error)) from error
        if not chunk:
            return
        yield chunk


def _resumable(url: str, part: Path) -> tuple[int, str]:
    """Bytes that are here, and what tells whether the server still has the same file."""
    state = _read_json(_state(part))
    validator = str(state.get("validator", ""))
    if not (part.is_file() and validator and state.get("url") == url):
        return 0, ""  # without a validator, the halves of two files might be joined
    return part.stat().st_size, validator


def _state(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _refusal(url: str, part: Path, error: urllib.error.HTTPError) -> Exception:
    if error.code in _MAY_PASS:
        return _InterruptedTransferError(f"the server answered {error.code} {error.reason}")
    if error.code == _BEYOND:
        part.unlink()
        return _InterruptedTransferError("the file on the server is shorter than what is here")
    return DataError(
        f"{url}: the server answered {error.code} {error.reason}. The address may have changed: look at the "
        "page of the data set, and give the new place with --mirror."
    )


def _refuse_without_room(part: Path, need: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if need > free:
        raise StorageError(
            f"{part.parent} has {free / _MEGABYTE:.0f} MB free, and {need / _MEGABYTE:.0f} MB are still to "
            "come. Free some space, and run the same command again."
        )


# --- HTTP --------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to other addresses, but never from https to something less."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request to make instead."""
        old, new = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise DataError(
                f"{req.full_url} sends to {newurl}, which is not safe to follow. Expected https: look at the "
                "page of the data set, and give the new place with --mirror."
            )
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None and req.get_method() == "HEAD":
            followed.method = "HEAD"
        return followed


def _open(url: str, headers: Mapping[str, str], timeout: float, method: str = "GET") -> Any:  # noqa: ANN401
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is no address to download from. Expected one with https or http.")
    given = {"User-Agent": f"mcpmix/{__version__}", "Accept-Encoding": "identity", **headers}
    request = urllib.request.Request(url, headers=given, method=method)
    return urllib.request.build_opener(_Redirects).open(request, timeout=timeout)


def _length(response: Any) -> int | None:  # noqa: ANN401
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _validator(headers: Message) -> str:
    """What names this version of the file; weak tags do not promise equal bytes."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _start(headers: Message) -> int:
    """First byte of `Content-Range: bytes 5-9/10`; -1 without one."""
    text = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdecimal() else -1


def _total(headers: Message) -> int:
    """Bytes of the whole file from `Content-Range: bytes */10`; -1 without it."""
    text = headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isdecimal() else -1


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"the connection failed ({reason or type(reason).__name__})"
