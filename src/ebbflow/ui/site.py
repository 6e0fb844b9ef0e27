"""The paths of the page: finds who answers a request, and sees to it that there is an answer.

Everything here is on the loop of the page's own thread. What has to wait for NATS is done by a few
threads beside it, so that no request holds up another, and all of it is bounded: the requests at a
time, the size of their bodies, the threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import nats.errors

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.nats.api import ApiError
from ebbflow.ui.guard import PageGuard
from ebbflow.ui.reply import CAREFUL, describe_error
from ebbflow.ui.request import PageRequest, read_body, read_form, split_path
from ebbflow.web.body import BodilessRequest, Body, check_size
from ebbflow.web.connection import Receiver, RequestHead, refusal_of
from ebbflow.web.exchange import Exchange
from ebbflow.web.query import read_query
from ebbflow.web.refusal import Refusal, unavailable
from ebbflow.web.room import RequestRoom, Room
from ebbflow.web.tasks import RequestTasks

LARGEST_BODY = 16 * 1024 * 1024
_LARGEST_FORM = 4 * 1024
_MOST_REQUESTS = 1_024
_MOST_BYTES = 64 * 1024 * 1024
_GRACE = 1.0

Answerer = Callable[[PageRequest, Exchange], Coroutine[Any, Any, None]]
"""Answers a request, on the loop."""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A path, whose parts may be ``{names}``; the last one may be ``{name...}`` for all the rest.

    One that is ``open`` to everybody needs no token. The body of a form is no JSON, and the browser
    that sends it adds no header.
    """

    method: str
    path: str
    answer: Answerer
    open: bool = False
    is_form: bool = False

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Returns the names of a path; ``None`` if it is another one."""
        own = self.path.split("/")[1:]
        names: dict[str, str] = {}
        for position, part in enumerate(own):
            if part.endswith("...}"):
                return names | {part[1:-4]: "/".join(parts[position:])}
            if position >= len(parts):
                return None
            if part.startswith("{"):
                names[part[1:-1]] = parts[position]
            elif part != parts[position]:
                return None
        return names if len(own) == len(parts) else None


class RequestWithBody(Body):
    """A request with a body: it is answered when that is complete."""

    __slots__ = ("_begin",)

    def __init__(self, room: RequestRoom, largest: int, begin: Callable[[bytes], None]) -> None:
        super().__init__(room, largest)
        self._begin = begin

    def finish(self) -> None:
        """Has it answered."""
        self._begin(self.join())


class Site:
    """All paths of one page."""

    def __init__(self, routes: Sequence[PageRoute], guard: PageGuard) -> None:
        self._routes = routes
        self._guard = guard
        self._room = Room(_MOST_REQUESTS, _MOST_BYTES)
        self._tasks = RequestTasks(explain_failure)

    async def end(self) -> None:
        """Has open requests answered, and lets go of streams."""
        await self._tasks.end(_GRACE)

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a request; ``Refusal`` if nobody does."""
        exchange.describe = describe_error
        exchange.lines += CAREFUL
        self._guard.check_site(head)
        route, names = self._find(head)
        query = read_query(head)
        if not route.is_form:
            self._guard.check_mark(head)
        if not route.open:
            self._guard.check_token(head)
        if head.method in (b"GET", b"HEAD"):
            request = PageRequest(names, query, {}, head)
            return BodilessRequest(
                lambda: self._start(route, request, exchange, self._room.reserve(0))
            )
        return self._take_body(route, PageRequest(names, query, {}, head), exchange)

    def _take_body(self, route: PageRoute, request: PageRequest, exchange: Exchange) -> Receiver:
        announced = request.header("content-length")
        size = int(announced) if announced.isdigit() else 0
        largest, read = (_LARGEST_FORM, read_form) if route.is_form else (LARGEST_BODY, read_body)
        check_size(size, largest)
        room = self._room.reserve(size)

        def begin(body: bytes) -> None:
            try:
                whole = request.with_body(read(body))
            except Refusal:
                room.release()
                raise
            self._start(route, whole, exchange, room)

        return RequestWithBody(room, largest, begin)

    def _start(
        self, route: PageRoute, request: PageRequest, exchange: Exchange, room: RequestRoom
    ) -> None:
        self._tasks.start(partial(route.answer, request, exchange), exchange, room)

    def _find(self, head: RequestHead) -> tuple[PageRoute, Mapping[str, str]]:
        parts = split_path(head.target)
        method = "GET" if head.method == b"HEAD" else head.method.decode("latin-1")
        allowed = set()
        for route in self._routes:
            names = route.match(parts)
            if names is not None and route.method == method:
                return route, names
            if names is not None:
                allowed.add(route.method)
        if allowed:
            raise Refusal(405, "Method Not Allowed", headers={"allow": ", ".join(sorted(allowed))})
        raise Refusal(404, "there is no such page")


def explain_failure(error: BaseException) -> Refusal:
    """Returns what a browser is told about an error: whose it is, and what to do next."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, asyncio.CancelledError):
        return unavailable("the page is being stopped")
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
