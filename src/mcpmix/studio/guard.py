"""Who may ask for what: every request passes here first.

A request needs the token: in the address that was opened, from then on in a cookie. One that changes
something needs it once more in a header, which a page of another site cannot set, and must come from our own
pages. A name of the host that is not ours is refused, so that no other site can point its own name at this
machine. Bodies are limited while they arrive, and every answer carries a strict content security policy.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class TooLargeError(Exception):
    """A body grew beyond the limit while it arrived; the application answers with 413."""


class Guard:
    """Wraps an application.

    Args:
        host: name that the server listens at; if it is not of this machine alone, any name is taken.
        largest: bytes of a body.
    """

    def __init__(self, app: App, *, token: str, host: str, largest: int) -> None:
        self.app, self.token, self.largest = app, token, largest
        self.names = LOOPBACK if host in LOOPBACK else None
        # Cookies do not know of ports: two studios on one machine must not overwrite each other's.
        self.cookie = f"mcpmix-{hashlib.sha256(token.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        fresh = [(b"set-cookie", cookie.encode())] if self._is_token(given) else []

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in there]
                keep = [] if b"cache-control" in there else [(b"cache-control", b"no-store")]
                message["headers"] = [*message["headers"], *extra, *keep, *fresh]
            await send(message)

        refused = self._refusal(scope["method"], headers, given)
        if refused is not None:
            await _answer(guarded, *refused)
            return
        await self.app(scope, _limited(receive, self.largest), guarded)

    def _refusal(self, method: str, headers: MutableMapping[str, str], given: str) -> tuple[int, str] | None:
        """Status and text of a request that is refused."""
        host = headers.get("host", "")
        if self.names is not None and _hostname(host) not in self.names:
            return 421, "This name does not belong to the studio. Open the address that it has printed."
        if method not in (*_READING, "POST"):
            return 405, "Only GET and POST are known here."
        if not any(map(self._is_token, (given, self._from_cookie(headers), headers.get("x-token", "")))):
            return 401, "The token is missing or wrong. Open the address that `mcpmix studio` has printed."
        if method not in _READING:
            if urlsplit(headers.get("origin", "")).netloc != host or not host:
                return 403, "The request comes from another page than the studio's own."
            if not self._is_token(headers.get("x-token", "")):
                return 403, "The token is missing in the header x-token."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.largest:
            return 413, f"The body has {length} bytes; at most {self.largest} are taken."
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    def _from_cookie(self, headers: MutableMapping[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _limited(receive: Receive, largest: int) -> Receive:
    """The same, counting the bytes of the body."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > largest:
            raise TooLargeError
        return message

    return counted


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]}
    )
    await send({"type": "http.response.body", "body": body})
