"""The web UI as a web application: its routes, its files, and the login.

Everything here runs on the loop of the web UI's own thread. A few other threads wait for NATS, so
that no request delays another. Concurrent requests, the size of their bodies and the threads are
all bounded. An invalid request raises a ``Refusal``.

Names of pipelines and vertices become parts of NATS subjects, so they are validated first.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.nats.api import ApiError
from ebbflow.web.app import Admission, HttpReply, RequestTasks, Route, Router
from ebbflow.web.exchange import (
    Exchange,
    HttpRequest,
    Receiver,
    Refusal,
    encode_json,
    refusal_of,
    unavailable,
)
from ebbflow.web.guard import WebUiGuard

LARGEST_BODY = 16 * 1024 * 1024
_LARGEST_FORM = 4 * 1024
_MOST_REQUESTS = 1_024
_MOST_BYTES = 64 * 1024 * 1024
_GRACE = 1.0
_NOT_KEPT = {"cache-control": "no-store"}
_HTML = "text/html; charset=utf-8"
_POLICY = (
    "default-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = (
    f"content-security-policy: {_POLICY}\r\n"
    "x-content-type-options: nosniff\r\n"
    "referrer-policy: no-referrer\r\n"
    "cross-origin-resource-policy: same-origin\r\n"
).encode()
"""Security headers of every answer."""

Stream = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Sends a streamed answer."""

Answerer = Callable[[HttpRequest], Coroutine[Any, Any, HttpReply | Stream]]
"""Returns the answer to a request, on the loop."""


# --- routes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UiRoute:
    """A path of the web UI, in the syntax of ``Route``, and the function that answers it.

    An ``open`` route needs no token. With ``is_form`` the body is a form instead of JSON, and the
    browser that sends it adds no header.
    """

    method: str
    path: str
    answer: Answerer
    open: bool = False
    is_form: bool = False


class WebUiApp:
    """All paths of one web UI."""

    def __init__(self, routes: Iterable[UiRoute], guard: WebUiGuard) -> None:
        self._guard = guard
        self._admission = Admission(_MOST_REQUESTS, _MOST_BYTES)
        self._tasks = RequestTasks(explain_failure)
        self._router = Router(lambda path: Refusal(404, "there is no such page"), heads=True)
        self._router.add(
            Route((route.method.encode(),), route.path, partial(self._take, route))
            for route in routes
        )

    async def end(self) -> None:
        """Lets open requests finish, and cancels streams."""
        await self._tasks.end(_GRACE)

    def open(self, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the receiver of a request's body; raises ``Refusal`` if there is none."""
        exchange.error_body = describe_refusal
        exchange.extra_headers += _SECURITY_HEADERS
        self._guard.check_site(request)
        return self._router.open(request, exchange)

    def _take(self, route: UiRoute, request: HttpRequest, exchange: Exchange) -> Receiver:
        _ = request.query  # an invalid query is refused before anything else is checked
        if not route.is_form:
            self._guard.check_mark(request)
        if not route.open:
            self._guard.check_token(request)
        if request.method in (b"GET", b"HEAD"):
            work = partial(self._answer, route, request, exchange)
            return self._tasks.take(self._admission, exchange, work)
        announced = request.header(b"content-length")
        size = int(announced) if announced.isdigit() else 0
        largest = _LARGEST_FORM if route.is_form else LARGEST_BODY
        reservation = self._admission.reserve(size, largest)
        return self._tasks.take_body(
            reservation, exchange, partial(self._answer, route, request, exchange)
        )

    async def _answer(
        self, route: UiRoute, request: HttpRequest, exchange: Exchange, body: bytes = b""
    ) -> None:
        request.body = body
        if body and not route.is_form:
            request.json()
        answer = await route.answer(request)
        if isinstance(answer, HttpReply):
            replace(answer, headers={**_NOT_KEPT, **answer.headers}).send(exchange)
        else:
            await answer(exchange)


def describe_refusal(refusal: Refusal) -> bytes:
    """Returns the body of a refusal: the problem, and what to do next."""
    return encode_json({"error": refusal.reason, "next_step": refusal.next_step})


def explain_failure(error: BaseException) -> Refusal:
    """Returns an error as a refusal with the right status and the next step."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, asyncio.CancelledError):
        return unavailable("the web UI is being stopped")
    if isinstance(error, nats.errors.Error | TimeoutError):
        return unavailable(f"NATS does not answer: {str(error) or 'no answer in time'}")
    if isinstance(error, ApiError):
        return unavailable(f"NATS refused: {error}")
    if isinstance(error, SetupError):
        return Refusal(503, error.what, retry=1, next_step=error.next_step)
    if isinstance(error, EbbflowError):
        return Refusal(409, str(error))
    assert isinstance(error, Exception)
    return refusal_of(error)


# --- reading requests ---------------------------------------------------------------------------

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"\d{1,15}")


def pipeline_of(request: HttpRequest) -> str:
    """Returns the pipeline in the path."""
    return read_name(request.names["pipeline"], "pipeline")


def parameter(request: HttpRequest, name: str) -> str | None:
    """Returns a query parameter; ``None`` if it is missing or empty."""
    return request.query.get(name) or None


def number_of(request: HttpRequest, name: str, default: int, most: int) -> int:
    """Returns a query parameter that is a number from 0 to ``most``."""
    text = parameter(request, name)
    return default if text is None else read_number(text, name, most)


def read_name(text: str, what: str) -> str:
    """Returns a name of a pipeline or vertex; 404 if it is invalid."""
    if _NAME.fullmatch(text) is None:
        raise Refusal(404, f"there is no {what} {text[:80]!r}")
    return text


def read_number(text: str, name: str, most: int) -> int:
    """Returns a whole number from 0 to ``most``."""
    if _NUMBER.fullmatch(text) is None or int(text) > most:
        raise Refusal(400, f"{name} must be a whole number from 0 to {most}")
    return int(text)


def parse_iso_time(text: str, name: str) -> datetime:
    """Returns a time in UTC, from ISO 8601; without a time zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal(400, f"{name} must be a time such as 2026-01-31T12:00:00Z") from None


# --- files and login ----------------------------------------------------------------------------

_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".html": _HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
# Not a redirect: after a link from another site, the browser would not send the new cookie. The
# script replaces this URL, which may contain the token, in the browser's history.
_ENTER = b"""<!doctype html><script src="/enter.js"></script>
<noscript><meta http-equiv="refresh" content="0; url=/"></noscript>
<a href="/">Open the web UI</a>"""
_ASK = b"""<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>Ebbflow</title><h1>Ebbflow</h1><form action="/" method="post"><p>%b</p>
<label>Token <input name="token" type="password" autofocus autocomplete="current-password"></label>
<button>Open</button></form></html>"""


class FilesApi:
    """Serves the files of the web UI, and logs users in with the token.

    All files are part of the package; nothing is loaded from other servers.
    """

    def __init__(self, guard: WebUiGuard) -> None:
        self._guard = guard

    @property
    def routes(self) -> list[UiRoute]:
        """The paths of this part."""
        return [
            UiRoute("GET", "/", self._open_page, open=True),
            UiRoute("POST", "/", self._log_in, open=True, is_form=True),
            UiRoute("GET", "/enter.js", partial(self._file, "enter.js"), open=True),
            UiRoute("GET", "/favicon.ico", partial(self._file, "icon.svg"), open=True),
            UiRoute("GET", "/static/{path...}", partial(self._file, None)),
        ]

    async def _open_page(self, request: HttpRequest) -> HttpReply:
        if token := parameter(request, "token"):
            return self._enter(token, request)
        if self._guard.admits(request):
            return read_file(["index.html"], request)
        return HttpReply(_ASK % b"The web UI needs a token.", 401, _HTML)

    async def _log_in(self, request: HttpRequest) -> HttpReply:
        return self._enter(str(request.form().get("token", "")), request)

    def _enter(self, token: str, request: HttpRequest) -> HttpReply:
        """Sets the cookie if the token is right, and otherwise shows the form again."""
        cookie = self._guard.make_cookie(token, request)
        if cookie or self._guard.admits(request):
            return HttpReply(_ENTER, 200, _HTML, {"set-cookie": cookie} if cookie else {})
        return HttpReply(_ASK % b"This token is wrong.", 401, _HTML)

    async def _file(self, name: str | None, request: HttpRequest) -> HttpReply:
        return read_file([name] if name else request.names["path"].split("/"), request)


def read_file(parts: Sequence[str], request: HttpRequest) -> HttpReply:
    """Returns a file of the web UI, or 304 when ``If-None-Match`` has its ETag."""
    path = _find_file(parts)
    body = path.read_bytes()
    mark = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    # A browser caches files, and checks each time whether they have changed.
    headers = {"cache-control": "no-cache", "etag": mark}
    if mark.encode() in request.header(b"if-none-match"):
        return HttpReply(b"", 304, _TYPES[path.suffix], headers)
    return HttpReply(body, 200, _TYPES[path.suffix], headers)


def _find_file(parts: Sequence[str]) -> Path:
    """Returns the path of a file of the web UI; 404 for anything else, such as path traversal."""
    is_plain = all(part and not part.startswith(".") and "/" not in part for part in parts)
    path = _FOLDER.joinpath(*parts) if is_plain and "\0" not in "".join(parts) else _FOLDER
    if path.suffix not in _TYPES or not path.is_file():
        raise Refusal(404, "there is no such file")
    return path
