"""Routes, limits, tasks and events for the HTTP source, serving and the web UI.

A ``Router`` finds the route of a request. An ``Admission`` bounds the number and the bytes of the
requests in memory: a request beyond that is refused before its body is kept. Longer work runs as a
task. The task is cancelled when its client disconnects; otherwise the request is answered, also if
the task fails. All of this runs on the web server's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from ebbflow.web.exchange import (
    JSON,
    Exchange,
    HttpRequest,
    Opener,
    Receiver,
    Refusal,
    encode_json,
    too_many,
)

EVENTS = "text/event-stream; charset=utf-8"
_EVENTS_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_QUIET = 15.0
_KEEP_ALIVE_COMMENT = b":\n\n"

# --- routes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A path with its methods, and the function that opens their requests.

    Parts of a path may be ``{names}``; the last one may be ``{name...}``, for the rest of the path.
    ``error_body`` makes the body of a refusal, if it differs from the server's.
    """

    methods: tuple[bytes, ...]
    path: str
    open: Opener
    error_body: Callable[[Refusal], bytes] | None = None

    @property
    def is_exact(self) -> bool:
        """True if the path has no named parts."""
        return "{" not in self.path

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Returns the named parts of a path; ``None`` if the path does not match."""
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


class Router:
    """The routes of one server. ``unknown`` makes the refusal of an unknown path.

    Another thread may add and remove routes while requests are routed. With ``heads``, a HEAD
    request is routed like GET.
    """

    def __init__(self, unknown: Callable[[bytes], Refusal], heads: bool = False) -> None:
        self._unknown = unknown
        self._heads = heads
        self._exact: dict[bytes, dict[bytes, Route]] = {}
        self._templates: list[Route] = []

    def __contains__(self, path: str) -> bool:
        return path.encode() in self._exact

    def add(self, routes: Iterable[Route]) -> None:
        """Adds routes. If several templates match a path, the first one wins."""
        for route in routes:
            if route.is_exact:
                by_method = dict.fromkeys(route.methods, route)
                known = self._exact.get(route.path.encode(), {})
                self._exact[route.path.encode()] = known | by_method
            else:
                self._templates.append(route)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes the routes of exact paths."""
        for path in paths:
            del self._exact[path.encode()]

    def open(self, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the receiver of a request's body; raises ``Refusal`` if there is no route."""
        by_method = self._exact.get(request.target)
        route = None if by_method is None else by_method.get(request.method)
        if route is None:
            route = self._find(request, exchange)
        if route.error_body is not None:
            exchange.error_body = route.error_body
        return route.open(request, exchange)

    def _find(self, request: HttpRequest, exchange: Exchange) -> Route:
        is_head = self._heads and request.method == b"HEAD"
        method = b"GET" if is_head else request.method
        raw = request.target.partition(b"?")[0]
        path = unquote_to_bytes(raw)
        allowed: dict[bytes, Route] = dict(self._exact.get(path, {}))
        if method in allowed:
            return allowed[method]
        parts = _split_path(raw) if self._templates else ()
        for route in self._templates:
            if (names := route.match(parts)) is None:
                continue
            if method in route.methods:
                request.names = names
                return route
            allowed |= dict.fromkeys(route.methods, route)
        if not allowed:
            raise self._unknown(path)
        exchange.error_body = next(iter(allowed.values())).error_body or exchange.error_body
        names_of_methods = b", ".join(allowed).decode()
        raise Refusal(405, "Method Not Allowed", headers={"allow": names_of_methods})


def _split_path(path: bytes) -> list[str]:
    """Returns the decoded parts of a path. A part may contain a slash, written as %2F."""
    try:
        return [unquote_to_bytes(part).decode() for part in path.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Refusal(400, "the path is not UTF-8") from None


# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> HttpReply:
        """Returns a value as JSON."""
        return cls(encode_json(value), status)

    def send(self, exchange: Exchange) -> None:
        """Sends this answer."""
        exchange.respond(self.status, self.body, self.headers, self.content_type)


def reply_always(reply: HttpReply) -> Opener:
    """Returns an opener that answers every request with ``reply``."""
    return lambda request, exchange: BodilessRequest(lambda: reply.send(exchange))


def reply_health(
    is_well: bool,
    public: Mapping[str, Any],
    private: Mapping[str, Any],
    may_know: Callable[[], bool],
) -> HttpReply:
    """Returns the answer to a probe, which needs no token: 200 if all is well, 503 if not.

    It has the ``private`` facts only if ``may_know`` returns true, because they may contain texts
    of errors and of user code.
    """
    facts = {**public, **private} if private and may_know() else public
    return HttpReply.json(facts, 200 if is_well else 503)


class EventStream:
    """A stream of Server-Sent Events to one client, begun with ``async with``.

    A client that reads slowly delays only its own stream. When there are no events, comments show
    proxies that the stream is alive, and show the server whether the client still is.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._exchange.begin(200, _EVENTS_HEADERS, EVENTS)
        self._wait()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if kind is None:
            self._exchange.end()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_QUIET, self._send_keep_alive)

    def _send_keep_alive(self) -> None:
        if self._exchange.has_room:
            self._exchange.put(_KEEP_ALIVE_COMMENT)
        self._wait()


def format_event(data: bytes, name: bytes = b"", number: int | None = None) -> bytes:
    """Returns an event of such a stream; ``number`` is its id. Data has no carriage returns."""
    lines = b"" if number is None else b"id: %d\n" % number
    if name:
        lines += b"event: %b\n" % name
    return b"%bdata: %b\n\n" % (lines, data.replace(b"\n", b"\ndata: "))


# --- limits -------------------------------------------------------------------------------------


class Admission:
    """Bounds the number and the bytes of the requests in memory."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._bytes = size
        self._count = 0
        self._reserved = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def reserve(self, size: int = 0, largest: int = 0) -> Reservation:
        """Reserves ``size`` bytes for the body of a request; ``Refusal`` if that exceeds a limit.

        The body may have up to ``largest`` bytes.
        """
        check_body_size(size, largest)
        self._check(1, size)
        self._count += 1
        self._reserved += size
        self._empty.clear()
        return Reservation(self, size, largest)

    def release(self, size: int) -> None:
        """Releases a request and its reserved bytes."""
        self._count -= 1
        self._reserved -= size
        if not self._count:
            self._empty.set()

    def grow(self, size: int) -> None:
        """Reserves more bytes for a request."""
        self._check(0, size)
        self._reserved += size

    def _check(self, requests: int, size: int) -> None:
        if self._count + requests > self._requests or self._reserved + size > self._bytes:
            raise too_many("too many requests are in flight")

    async def wait_until_empty(self) -> None:
        """Waits until no request is in flight."""
        await self._empty.wait()


class Reservation:
    """The reservation of one request, whose body has at most ``largest`` bytes."""

    __slots__ = ("_admission", "_size", "largest")

    def __init__(self, admission: Admission, size: int, largest: int) -> None:
        self._admission = admission
        self._size = size
        self.largest = largest

    def grow_to(self, size: int) -> None:
        """Extends the reservation to ``size`` bytes; ``Refusal`` if that exceeds a limit."""
        if size > self._size:
            self._admission.grow(size - self._size)
            self._size = size

    def release(self) -> None:
        """Releases the reservation. Called once."""
        self._admission.release(self._size)


def check_body_size(size: int, largest: int) -> None:
    """Refuses a body that is larger than a message may be."""
    if size > largest:
        raise Refusal(413, f"a body may have {largest:,} bytes, not {size:,} or more")


# --- bodies -------------------------------------------------------------------------------------


class Body:
    """The body of a request while it arrives, within its reservation."""

    __slots__ = ("_pieces", "_reservation", "received")

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._pieces: list[bytes] = []
        self.received = 0

    def feed(self, piece: bytes) -> None:
        """Adds a piece of the body; ``Refusal`` if it exceeds a limit."""
        self.received += len(piece)
        check_body_size(self.received, self._reservation.largest)
        self._reservation.grow_to(self.received)
        self._pieces.append(piece)

    def join(self) -> bytes:
        """Returns everything that has arrived."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def abandon(self) -> None:
        """Releases the reservation."""
        self._reservation.release()


class WholeBody(Body):
    """The body of a request that is answered when all of it has arrived."""

    __slots__ = ("_begin",)

    def __init__(self, reservation: Reservation, begin: Callable[[bytes], None]) -> None:
        super().__init__(reservation)
        self._begin = begin

    def finish(self) -> None:
        """Passes on the complete body."""
        self._begin(self.join())


class BodilessRequest:
    """A request that is answered when it is complete; its body does not matter."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def feed(self, piece: bytes) -> None:
        """Ignores the body."""

    def finish(self) -> None:
        """Answers the request."""
        self._answer()

    def abandon(self) -> None:
        """Does nothing: nothing is reserved."""


# --- tasks --------------------------------------------------------------------------------------

Work = Callable[[], Coroutine[Any, Any, None]]
"""Handles a request and answers it."""

Explain = Callable[[BaseException], Refusal]
"""Returns the refusal for work that failed, or was cancelled because the server stops."""


class RequestTasks:
    """The tasks of the requests in progress."""

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, admission: Admission, exchange: Exchange, work: Work) -> Receiver:
        """Returns a receiver that starts the work of a request without a body."""
        return BodilessRequest(lambda: self._start(work, exchange, admission.reserve()))

    def take_body(
        self,
        reservation: Reservation,
        exchange: Exchange,
        work: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> Receiver:
        """Returns a receiver that starts the work of a request when its body is complete."""

        def begin(body: bytes) -> None:
            self._start(partial(work, body), exchange, reservation)

        return WholeBody(reservation, begin)

    def _start(self, work: Work, exchange: Exchange, reservation: Reservation) -> None:
        """Starts the work of one request; its reservation is released at the end."""
        task = asyncio.get_running_loop().create_task(self._answer(work, exchange))
        self._tasks.add(task)
        # Not at the end of the work, because a task that is cancelled at once never runs it.
        task.add_done_callback(partial(self._finish, reservation))
        exchange.on_disconnect = task.cancel

    async def end(self, grace: float) -> None:
        """Waits ``grace`` seconds for answers, then cancels the other tasks, which refuse."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)

    async def _answer(self, work: Work, exchange: Exchange) -> None:
        try:
            await work()
        except (Exception, asyncio.CancelledError) as error:
            # Has no effect if the client has disconnected.
            exchange.fail(self._explain(error))

    def _finish(self, reservation: Reservation, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        reservation.release()
