"""The conversations of a client with a server: ask, submit, fetch, status, and follow.

A request is never handed in twice. After a connection that was lost with the request on it, the
client cannot know whether the server took it; so it looks for the request by its id, and hands it
in again only when the server does not know it. The server would refuse a second request with the
same id in any case.

A request that is followed comes as server-sent events. Every result is handed over once: each event
says its place, and after a lost connection the client continues behind the last event it has seen.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict

from ebbflow.client.protocol import (
    Answered,
    Conversation,
    Emit,
    MoreEvents,
    NamedRequest,
    NoReply,
    RequestStatus,
    ServerCall,
    ServerPaths,
    ServerReply,
    Wait,
    calling,
    has_answer,
    is_busy,
    is_in_progress,
    raise_error,
    raise_not_found,
    read_pause,
    read_request_status,
    read_results,
    says_nothing,
)
from ebbflow.domain.durations import Backoff, Duration, to_seconds
from ebbflow.domain.errors import AnswerPending, RequestInDoubt, RequestRefused, UnknownRequest

_LOOKING = Backoff("50ms", factor=1.6, cap="1s")
_UNKNOWN = 404
_DUPLICATE = 409
_TIMEOUT = 408
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_RESULT, _BINARY_RESULT, _ERROR, _DONE = "message", "base64", "error", "done"


class LookOptions(TypedDict, total=False):
    """How to look for a request: ``timeout`` in place of the client's."""

    timeout: Duration


class AskOptions(LookOptions, total=False):
    """What a request has besides its value.

    ``id`` names it; left out, the client makes an id. ``keys`` and ``headers`` are those that its
    message has in the pipeline.
    """

    id: str | None
    keys: Iterable[str]
    headers: Mapping[str, str]


class Conversations:
    """Begins conversations with one server."""

    def __init__(self, id_header: str, timeout: Duration) -> None:
        self._at = ServerPaths(id_header)
        self._timeout = to_seconds(timeout)

    def ask(self, value: Any, options: AskOptions) -> Conversation[Answered]:
        """Begins to hand in a request and to wait for its answer."""
        return ask(self._at, _request_of(value, options), self._limit(options))

    def submit(self, value: Any, options: AskOptions) -> Conversation[str]:
        """Begins to hand in a request."""
        return submit(self._at, _request_of(value, options), self._limit(options))

    def fetch(self, id: str, options: LookOptions) -> Conversation[Answered | None]:
        """Begins to look for an answer."""
        return fetch(self._at, id, self._limit(options))

    def wait(self, id: str, options: LookOptions) -> Conversation[Answered]:
        """Begins to wait for an answer."""
        return await_answer(self._at, id, self._limit(options))

    def status(self, id: str, options: LookOptions) -> Conversation[RequestStatus]:
        """Begins to look how far a request is."""
        return request_status(self._at, id, self._limit(options))

    def follow(self, value: Any, options: AskOptions) -> Conversation[None]:
        """Begins to hand in a request and to follow it, or to follow the one that has the id."""
        request = None if value is None else _request_of(value, options)
        id = options.get("id") if request is None else request.id
        if id is None:
            raise ValueError("give a value to ask with, or the id of a request to follow")
        seconds, limit = self._seconds(options), self._limit(options)
        return Following(self._at, id, request, limit, seconds).follow()

    def _limit(self, options: LookOptions) -> TimeLimit:
        return TimeLimit.of(self._seconds(options), time.monotonic)

    def _seconds(self, options: LookOptions) -> float:
        return to_seconds(options["timeout"]) if "timeout" in options else self._timeout


def _request_of(value: Any, options: AskOptions) -> NamedRequest:
    headers = options.get("headers", {})
    return NamedRequest.of(value, options.get("id"), options.get("keys", ()), headers)


@dataclass(slots=True)
class TimeLimit:
    """How long a conversation may still take, by ``clock``, and how long its next wait is."""

    clock: Callable[[], float]
    end: float
    waits: int = 0

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float]) -> TimeLimit:
        """Returns the limit of some seconds from now."""
        return cls(clock, clock() + seconds)

    @property
    def left(self) -> float:
        """The seconds that are left, at least a moment."""
        return max(self.end - self.clock(), 0.001)

    def has(self, seconds: float) -> bool:
        """Returns whether so much is left."""
        return self.clock() + seconds < self.end

    def grow(self) -> float:
        """Returns the next wait, each longer than the one before."""
        self.waits += 1
        return _LOOKING.seconds(self.waits)


# --- asking ---------------------------------------------------------------------------------------


def ask(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[Answered]:
    """Hands a request in and waits for its answer."""
    came = yield from _hand_in(at, request, "sync", limit)
    if came is None or is_in_progress(came):
        return (yield from await_answer(at, request.id, limit))
    if not has_answer(came):
        raise_error(request.id, came)
    return read_results(request.id, came)


def submit(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[str]:
    """Hands a request in; returns its id when the server has stored it."""
    came = yield from _hand_in(at, request, "async", limit)
    if came is not None and came.status != 200:
        raise_error(request.id, came)
    return request.id


def _hand_in(
    at: ServerPaths, request: NamedRequest, way: str, limit: TimeLimit
) -> Conversation[ServerReply | None]:
    """Returns the server's reply; ``None`` if an earlier call of this one was taken in."""
    in_doubt = ""
    while True:
        came = yield from calling(at.post(request, way, limit.left))
        if isinstance(came, NoReply):
            in_doubt = check_sent(request.id, came, in_doubt)
        elif is_busy(came):
            yield from wait_for_room(request.id, came, limit, in_doubt)
            continue
        elif not (in_doubt and came.status == _DUPLICATE):
            return came
        if (yield from _is_known(at, request.id, limit, in_doubt)):
            return None


def check_sent(id: str, lost: NoReply, in_doubt: str) -> str:
    """Returns why a request is in doubt; ``RequestRefused`` if no server ever heard of it."""
    if not (lost.sent or in_doubt):
        raise RequestRefused(id, 0, f"there is no connection: {lost.problem}")
    return lost.problem


def wait_for_room(
    id: str, reply: ServerReply, limit: TimeLimit, in_doubt: str
) -> Conversation[None]:
    """Waits as long as a busy server asks for, or raises if that is too long."""
    pause = read_pause(reply)
    if not limit.has(pause):
        if in_doubt:
            raise RequestInDoubt(id, in_doubt)
        raise_error(id, reply)
    yield Wait(pause)


def _is_known(at: ServerPaths, id: str, limit: TimeLimit, in_doubt: str) -> Conversation[bool]:
    """Returns whether the server has a request that may or may not have reached it."""
    while True:
        pause = limit.grow()
        if not limit.has(pause):
            raise RequestInDoubt(id, in_doubt)
        yield Wait(pause)
        came = yield from calling(at.look(id, "status", limit.left))
        if isinstance(came, ServerReply) and not is_busy(came):
            if came.status not in (200, _UNKNOWN):
                raise_error(id, came)
            return came.status == 200


def await_answer(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered]:
    """Looks for the answer to a request that was taken in, until it is there."""
    while True:
        came = yield from calling(at.look(id, "fetch", limit.left))
        if isinstance(came, ServerReply) and has_answer(came):
            return read_results(id, came)
        if isinstance(came, ServerReply) and not (is_busy(came) or is_in_progress(came)):
            raise_not_found(id, came)
        pause = limit.grow()
        if not limit.has(pause):
            raise AnswerPending(id)
        yield Wait(pause)


def fetch(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered | None]:
    """Looks once for the answer to a request; ``None`` while there is none yet."""
    came = yield from _look(at, id, "fetch", limit)
    if is_in_progress(came):
        return None
    if not has_answer(came):
        raise_not_found(id, came)
    return read_results(id, came)


def request_status(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[RequestStatus]:
    """Looks once how far a request is."""
    return read_request_status(id, (yield from _look(at, id, "status", limit)))


def _look(at: ServerPaths, id: str, what: str, limit: TimeLimit) -> Conversation[ServerReply]:
    """Looks for a request; a look changes nothing, so it is repeated after a lost connection."""
    while True:
        came = yield from calling(at.look(id, what, limit.left))
        if isinstance(came, ServerReply) and not is_busy(came):
            return came
        pause = limit.grow() if isinstance(came, NoReply) else read_pause(came)
        if not limit.has(pause) or (isinstance(came, NoReply) and not came.sent):
            _give_up(id, came)
        yield Wait(pause)


def _give_up(id: str, came: ServerReply | NoReply) -> None:
    if isinstance(came, ServerReply):
        raise_error(id, came)
    raise RequestInDoubt(id, came.problem)


# --- following ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Following:
    """One request that is followed. Each result has the time ``limit`` of ``seconds`` again.

    ``request`` is what to hand in, unless the request is there already. ``is_taken`` is true when
    the server is known to have it. ``last`` is the place of the last result that was handed over.
    ``in_doubt`` is why the connection was lost, if it was.
    """

    at: ServerPaths
    id: str
    request: NamedRequest | None
    limit: TimeLimit
    seconds: float
    is_taken: bool = False
    last: str = ""
    in_doubt: str = ""

    def follow(self) -> Conversation[None]:
        """Emits each result of the request as it comes, until the request is complete."""
        handing_in = self.request is not None
        while True:
            came = yield from calling(self._call(handing_in))
            if isinstance(came, ServerReply) and is_busy(came):
                yield from wait_for_room(self.id, came, self.limit, self.in_doubt)
                continue
            if isinstance(came, NoReply):
                self.in_doubt = check_sent(self.id, came, self.in_doubt)
            elif came.status == 200:
                self.is_taken = True
                if (yield from self._read()):
                    return
            elif not (self.in_doubt and came.status in (_DUPLICATE, _UNKNOWN)):
                self._raise(came, handing_in)
            handing_in = self._was_not_taken(came)
            yield from self._pause()

    def _call(self, handing_in: bool) -> ServerCall:
        if handing_in and self.request is not None:
            return self.at.follow(self.request, self.limit.left)
        return self.at.resume(self.id, self.last, self.limit.left)

    def _raise(self, reply: ServerReply, handing_in: bool) -> NoReturn:
        if handing_in:
            raise_error(self.id, reply)
        raise_not_found(self.id, reply)

    def _was_not_taken(self, came: ServerReply | NoReply) -> bool:
        """Returns whether the server says that it does not know a request we may hand in."""
        if not (isinstance(came, ServerReply) and came.status == _UNKNOWN):
            return False
        if self.request is None or self.is_taken:
            raise UnknownRequest(self.id)
        return True

    def _pause(self) -> Conversation[None]:
        pause = self.limit.grow()
        if not self.limit.has(pause):
            if self.is_taken:
                raise AnswerPending(self.id)
            raise RequestInDoubt(self.id, self.in_doubt)
        yield Wait(pause)

    def _read(self) -> Conversation[bool]:
        """Emits what the stream brings; returns whether it came to the request's end."""
        lines = EventLines()
        while True:
            came = yield MoreEvents()
            if not isinstance(came, bytes):
                self.in_doubt = came.problem if isinstance(came, NoReply) else "the stream ended"
                return False
            for event in lines.feed(came):
                if event.name == _DONE:
                    return True
                if (yield from self._take(event)):
                    return False
            if not self.limit.has(0):
                raise AnswerPending(self.id)

    def _take(self, event: ServerEvent) -> Conversation[bool]:
        """Emits a result; returns whether the stream ends before its request does."""
        if event.name == _ERROR:
            self._check_error(event)
            return True
        self.last = event.id or self.last
        yield Emit(_result_of(event))
        # The caller may have taken its time.
        self.limit = TimeLimit.of(self.seconds, self.limit.clock)
        return False

    def _check_error(self, event: ServerEvent) -> None:
        """Raises what the error says, unless it is only that the stream ends here."""
        status = int(json.loads(event.data).get("code", 500))
        reply = ServerReply(status, {}, event.data.encode())
        if status != _TIMEOUT and not says_nothing(reply):
            raise_error(self.id, reply)
        self.in_doubt = "the server ended the stream"


def _result_of(event: ServerEvent) -> bytes:
    if event.name == _BINARY_RESULT:
        return base64.b64decode(event.data)
    return event.data.encode()


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream; ``id`` is empty if it has none."""

    name: str
    data: str
    id: str


class EventLines:
    """Reads events from the bytes of a stream, however they are cut."""

    def __init__(self) -> None:
        self._open_line: list[bytes] = []
        self._held = b""
        self._fields: dict[str, list[str]] = {}

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Returns the events that these bytes complete."""
        for line in self._split(data):
            if not line:
                yield from self._end_event()
            elif not line.startswith(b":"):
                name, _, value = line.decode("utf-8", "replace").partition(":")
                self._fields.setdefault(name, []).append(value.removeprefix(" "))

    def _split(self, data: bytes) -> list[bytes]:
        """Returns the lines that these bytes complete; nothing is searched twice for their ends."""
        *lines, rest = _LINE_END.split(self._held + data)
        if lines:
            lines[0] = b"".join((*self._open_line, lines[0]))
            self._open_line.clear()
        # A carriage return at the end may be the first half of a line end.
        self._held = b"\r" if rest.endswith(b"\r") else b""
        self._open_line.append(rest.removesuffix(b"\r"))
        return lines

    def _end_event(self) -> Iterator[ServerEvent]:
        fields, self._fields = self._fields, {}
        if "data" in fields or "event" in fields:
            name = fields.get("event", [_RESULT])[-1]
            id = fields.get("id", [""])[-1]
            yield ServerEvent(name, "\n".join(fields.get("data", [])), id)
