"""What the HTTP source, serving and the web UI answer requests with: routes, limits, tasks, events.

A ``Router`` finds who takes a request. An ``Admission`` bounds what requests hold in memory at the
same time, in number and in bytes: beyond that a request is refused before its body is kept. Work
that takes a while is a task that ends when its client disconnects, and whatever becomes of it,
there is an answer. Everything is used on one loop, that of the web server.
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
_STILL_HERE = b":\n\n"

# --- routes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A path with the methods that are taken there, and who takes them.

    Parts of a path may be ``{names}``; the last one may be ``{name...}`` for all the rest.
    ``error_body`` makes the body of a refusal, if it is not that of the server.
    """

    methods: tuple[bytes, ...]
    path: str
    open: Opener
    error_body: Callable[[Refusal], bytes] | None = None

    @property
    def is_exact(self) -> bool:
        """True if the path names no parts."""
        return "{" not in self.path

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Returns the named parts of a path; ``None`` if it is another one."""
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
    """The routes of one server. ``unknown`` makes the refusal of a path that is not here.

    Routes may be added and removed by another thread while requests are routed. A request with HEAD
    is taken as GET if ``heads``.
    """

    def __init__(self, unknown: Callable[[bytes], Refusal], heads: bool = False) -> None:
        self._unknown = unknown
        self._heads = heads
        self._exact: dict[bytes, dict[bytes, Route]] = {}
        self._templates: list[Route] = []

    def __contains__(self, path: str) -> bool:
        return path.encode() in self._exact

    def add(self, routes: Iterable[Route]) -> None:
        """Has requests to these routes taken; of several templates that match the first counts."""
        for route in routes:
            if route.is_exact:
                by_method = dict.fromkeys(route.methods, route)
                known = self._exact.get(route.path.encode(), {})
                self._exact[route.path.encode()] = known | by_method
            else:
                self._templates.append(route)

    def remove(self, paths: Iterable[str]) -> None:
        """Has requests to these exact paths refused."""
        for path in paths:
            del self._exact[path.encode()]

    def open(self, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a request; ``Refusal`` if no one does."""
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
    """Returns the parts of a path, each decoded: a part may have a slash that was written %2F."""
    try:
        return [unquote_to_bytes(part).decode() for part in path.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Refusal(400, "the path is not UTF-8") from None


# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer as a whole."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> HttpReply:
        """Returns a value as JSON."""
        return cls(encode_json(value), status)

    def send(self, exchange: Exchange) -> None:
        """Answers with it."""
        exchange.respond(self.status, self.body, self.headers, self.content_type)


def reply_always(reply: HttpReply) -> Opener:
    """Returns who answers each request with the same."""
    return lambda request, exchange: BodilessRequest(lambda: reply.send(exchange))


def reply_health(
    is_well: bool,
    public: Mapping[str, Any],
    private: Mapping[str, Any],
    may_know: Callable[[], bool],
) -> HttpReply:
    """Returns the answer to a probe, which needs no token: 200 if all is well, 503 if not.

    Only those who ``may_know`` are told the ``private`` facts: their words may be those of an error
    or of user code.
    """
    facts = {**public, **private} if private and may_know() else public
    return HttpReply.json(facts, 200 if is_well else 503)


class EventStream:
    """A stream of Server-Sent Events to one client, begun with ``async with``.

    A client that reads slowly holds up its own stream and nothing else. In quiet times a comment
    tells proxies that the stream lives, and tells the server when the client does not.
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
        self._timer = asyncio.get_running_loop().call_later(_QUIET, self._say_still_here)

    def _say_still_here(self) -> None:
        if self._exchange.has_room:
            self._exchange.put(_STILL_HERE)
        self._wait()


def format_event(data: bytes, name: bytes = b"", number: int | None = None) -> bytes:
    """Returns an event of such a stream; ``number`` is its id. Data has no carriage returns."""
    lines = b"" if number is None else b"id: %d\n" % number
    if name:
        lines += b"event: %b\n" % name
    return b"%bdata: %b\n\n" % (lines, data.replace(b"\n", b"\ndata: "))


# --- limits -------------------------------------------------------------------------------------


class Admission:
    """Bounds what requests hold in memory at the same time, in number and in bytes."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._bytes = size
        self._inside = 0
        self._held = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def reserve(self, size: int = 0, largest: int = 0) -> Reservation:
        """Holds room for a request with a body of that size; ``Refusal`` when there is none.

        Its body may have ``largest`` bytes.
        """
        check_body_size(size, largest)
        self._check(1, size)
        self._inside += 1
        self._held += size
        self._empty.clear()
        return Reservation(self, size, largest)

    def release(self, size: int) -> None:
        """Ends the hold of a request that held that many bytes."""
        self._inside -= 1
        self._held -= size
        if not self._inside:
            self._empty.set()

    def grow(self, size: int) -> None:
        """Has a request hold that many bytes more."""
        self._check(0, size)
        self._held += size

    def _check(self, requests: int, size: int) -> None:
        if self._inside + requests > self._requests or self._held + size > self._bytes:
            raise too_many("too many requests are in flight")

    async def wait_until_empty(self) -> None:
        """Returns when no request is in flight."""
        await self._empty.wait()


class Reservation:
    """What one request holds, until it is released; its body has ``largest`` bytes at most."""

    __slots__ = ("_admission", "_size", "largest")

    def __init__(self, admission: Admission, size: int, largest: int) -> None:
        self._admission = admission
        self._size = size
        self.largest = largest

    def grow_to(self, size: int) -> None:
        """Makes it large enough for that many bytes; ``Refusal`` when there is no room."""
        if size > self._size:
            self._admission.grow(size - self._size)
            self._size = size

    def release(self) -> None:
        """Gives the room back. Called once."""
        self._admission.release(self._size)


def check_body_size(size: int, largest: int) -> None:
    """Refuses a body that is larger than a message may be."""
    if size > largest:
        raise Refusal(413, f"a body may have {largest:,} bytes, not {size:,} or more")


# --- bodies -------------------------------------------------------------------------------------


class Body:
    """The body of a request while it arrives, within what is reserved for it."""

    __slots__ = ("_pieces", "_reservation", "received")

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._pieces: list[bytes] = []
        self.received = 0

    def feed(self, piece: bytes) -> None:
        """Takes a piece of the body; ``Refusal`` if there is no room for it."""
        self.received += len(piece)
        check_body_size(self.received, self._reservation.largest)
        self._reservation.grow_to(self.received)
        self._pieces.append(piece)

    def join(self) -> bytes:
        """Returns all that has arrived."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def abandon(self) -> None:
        """Gives its room back."""
        self._reservation.release()


class WholeBody(Body):
    """The body of a request that is answered when all of it has arrived."""

    __slots__ = ("_begin",)

    def __init__(self, reservation: Reservation, begin: Callable[[bytes], None]) -> None:
        super().__init__(reservation)
        self._begin = begin

    def finish(self) -> None:
        """Has the request answered."""
        self._begin(self.join())


class BodilessRequest:
    """A request that is answered when it is complete; its body does not matter."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def feed(self, piece: bytes) -> None:
        """Forgets it."""

    def finish(self) -> None:
        """Answers."""
        self._answer()

    def abandon(self) -> None:
        """Has nothing to give back."""


# --- tasks --------------------------------------------------------------------------------------

Work = Callable[[], Coroutine[Any, Any, None]]
"""Does what a request asks for, and answers it."""

Explain = Callable[[BaseException], Refusal]
"""Returns what a client is told about work that failed, or was cancelled as the server ends."""


class RequestTasks:
    """The requests that are worked on."""

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, admission: Admission, exchange: Exchange, work: Work) -> Receiver:
        """Has a request without a body worked on when it is complete and there is room."""
        return BodilessRequest(lambda: self._start(work, exchange, admission.reserve()))

    def take_body(
        self,
        reservation: Reservation,
        exchange: Exchange,
        work: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> Receiver:
        """Has a request worked on when its body is complete."""

        def begin(body: bytes) -> None:
            self._start(partial(work, body), exchange, reservation)

        return WholeBody(reservation, begin)

    def _start(self, work: Work, exchange: Exchange, reservation: Reservation) -> None:
        """Begins the work of one request; what it holds is given back at the end."""
        task = asyncio.get_running_loop().create_task(self._answer(work, exchange))
        self._tasks.add(task)
        # Not at the end of the work: a task that is cancelled at once never begins it.
        task.add_done_callback(partial(self._finish, reservation))
        exchange.on_disconnect = task.cancel

    async def end(self, grace: float) -> None:
        """Waits for the answers that are due within that many seconds; others are refused."""
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
            # If the client has gone, no one reads this.
            exchange.fail(self._explain(error))

    def _finish(self, reservation: Reservation, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        reservation.release()
