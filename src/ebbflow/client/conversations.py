"""The conversations of a client with a server: ask, submit, fetch, status, and follow.

No request is accepted twice. If the connection is lost while a request is sent, the client cannot
know whether the server accepted it. So it looks for the request by its id, and submits it again
only if the server does not know it. The server also refuses a second request with the same id.

The results of a followed request arrive as server-sent events. Every result is emitted once: each
event has its place as an id, and after a lost connection the client continues after the last one.
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
    """Options of calls about a request: ``timeout`` replaces the client's."""

    timeout: Duration


class AskOptions(LookOptions, total=False):
    """Options of a request in addition to its value.

    ``id`` identifies it; the client generates one by default. ``keys`` and ``headers`` are those
    that its message has in the pipeline.
    """

    id: str | None
    keys: Iterable[str]
    headers: Mapping[str, str]


class Conversations:
    """Makes the conversations with one server."""

    def __init__(self, id_header: str, timeout: Duration) -> None:
        self._at = ServerPaths(id_header)
        self._timeout = to_seconds(timeout)

    def ask(self, value: Any, options: AskOptions) -> Conversation[Answered]:
        """Submits a request and waits for its answer."""
        return ask(self._at, _request_of(value, options), self._limit(options))

    def submit(self, value: Any, options: AskOptions) -> Conversation[str]:
        """Submits a request."""
        return submit(self._at, _request_of(value, options), self._limit(options))

    def fetch(self, id: str, options: LookOptions) -> Conversation[Answered | None]:
        """Looks for an answer once."""
        return fetch(self._at, id, self._limit(options))

    def wait(self, id: str, options: LookOptions) -> Conversation[Answered]:
        """Waits for an answer."""
        return await_answer(self._at, id, self._limit(options))

    def status(self, id: str, options: LookOptions) -> Conversation[RequestStatus]:
        """Asks for the status of a request."""
        return request_status(self._at, id, self._limit(options))

    def follow(self, value: Any, options: AskOptions) -> Conversation[None]:
        """Submits a request and follows it, or follows the request with the id."""
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
    """The time that is left for a conversation, by ``clock``, and the length of its next wait."""

    clock: Callable[[], float]
    end: float
    waits: int = 0

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float]) -> TimeLimit:
        """Returns a limit this many seconds from now."""
        return cls(clock, clock() + seconds)

    @property
    def left(self) -> float:
        """The seconds that are left, at least a millisecond."""
        return max(self.end - self.clock(), 0.001)

    def has(self, seconds: float) -> bool:
        """Returns whether more than this many seconds are left."""
        return self.clock() + seconds < self.end

    def grow(self) -> float:
        """Returns the next wait, which grows with every call."""
        self.waits += 1
        return _LOOKING.seconds(self.waits)


# --- asking ---------------------------------------------------------------------------------------


def ask(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[Answered]:
    """Submits a request and waits for its answer."""
    reply = yield from _post(at, request, "sync", limit)
    if reply is None or is_in_progress(reply):
        return (yield from await_answer(at, request.id, limit))
    if not has_answer(reply):
        raise_error(request.id, reply)
    return read_results(request.id, reply)


def submit(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[str]:
    """Submits a request; returns its id when the server has stored it."""
    reply = yield from _post(at, request, "async", limit)
    if reply is not None and reply.status != 200:
        raise_error(request.id, reply)
    return request.id


def _post(
    at: ServerPaths, request: NamedRequest, mode: str, limit: TimeLimit
) -> Conversation[ServerReply | None]:
    """Returns the server's reply; ``None`` if an earlier attempt was accepted."""
    in_doubt = ""
    while True:
        reply = yield from calling(at.post(request, mode, limit.left))
        if isinstance(reply, NoReply):
            in_doubt = check_sent(request.id, reply, in_doubt)
        elif is_busy(reply):
            yield from wait_for_room(request.id, reply, limit, in_doubt)
            continue
        elif not (in_doubt and reply.status == _DUPLICATE):
            return reply
        if (yield from _is_known(at, request.id, limit, in_doubt)):
            return None


def check_sent(id: str, lost: NoReply, in_doubt: str) -> str:
    """Returns why a request is in doubt; ``RequestRefused`` if it never reached a server."""
    if not (lost.sent or in_doubt):
        raise RequestRefused(id, 0, f"there is no connection: {lost.problem}")
    return lost.problem


def wait_for_room(
    id: str, reply: ServerReply, limit: TimeLimit, in_doubt: str
) -> Conversation[None]:
    """Waits as long as a busy server asks, or raises if that exceeds the limit."""
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
        reply = yield from calling(at.look(id, "status", limit.left))
        if isinstance(reply, ServerReply) and not is_busy(reply):
            if reply.status not in (200, _UNKNOWN):
                raise_error(id, reply)
            return reply.status == 200


def await_answer(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered]:
    """Waits for the answer to an accepted request by fetching it repeatedly."""
    while True:
        reply = yield from calling(at.look(id, "fetch", limit.left))
        if isinstance(reply, ServerReply) and has_answer(reply):
            return read_results(id, reply)
        if isinstance(reply, ServerReply) and not (is_busy(reply) or is_in_progress(reply)):
            raise_not_found(id, reply)
        pause = limit.grow()
        if not limit.has(pause):
            raise AnswerPending(id)
        yield Wait(pause)


def fetch(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered | None]:
    """Looks once for the answer to a request; returns ``None`` if there is none yet."""
    reply = yield from _look(at, id, "fetch", limit)
    if is_in_progress(reply):
        return None
    if not has_answer(reply):
        raise_not_found(id, reply)
    return read_results(id, reply)


def request_status(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[RequestStatus]:
    """Asks once for the status of a request."""
    return read_request_status(id, (yield from _look(at, id, "status", limit)))


def _look(at: ServerPaths, id: str, what: str, limit: TimeLimit) -> Conversation[ServerReply]:
    """Asks about a request. This changes nothing, so it is retried after a lost connection."""
    while True:
        reply = yield from calling(at.look(id, what, limit.left))
        if isinstance(reply, ServerReply) and not is_busy(reply):
            return reply
        pause = limit.grow() if isinstance(reply, NoReply) else read_pause(reply)
        if not limit.has(pause) or (isinstance(reply, NoReply) and not reply.sent):
            _give_up(id, reply)
        yield Wait(pause)


def _give_up(id: str, reply: ServerReply | NoReply) -> None:
    if isinstance(reply, ServerReply):
        raise_error(id, reply)
    raise RequestInDoubt(id, reply.problem)


# --- following ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Following:
    """Follows one request. Each result restarts the ``limit`` of ``seconds``.

    ``request`` is the request to submit; ``None`` if it was submitted before. ``is_accepted`` is
    true when the server is known to have it. ``last`` is the event id of the last emitted result.
    ``in_doubt`` is why the connection was lost, if it was.
    """

    at: ServerPaths
    id: str
    request: NamedRequest | None
    limit: TimeLimit
    seconds: float
    is_accepted: bool = False
    last: str = ""
    in_doubt: str = ""

    def follow(self) -> Conversation[None]:
        """Emits each result of the request as it arrives, until the request is complete."""
        submitting = self.request is not None
        while True:
            reply = yield from calling(self._call(submitting))
            if isinstance(reply, ServerReply) and is_busy(reply):
                yield from wait_for_room(self.id, reply, self.limit, self.in_doubt)
                continue
            if isinstance(reply, NoReply):
                self.in_doubt = check_sent(self.id, reply, self.in_doubt)
            elif reply.status == 200:
                self.is_accepted = True
                if (yield from self._read()):
                    return
            elif not (self.in_doubt and reply.status in (_DUPLICATE, _UNKNOWN)):
                self._raise(reply, submitting)
            submitting = self._was_not_accepted(reply)
            yield from self._pause()

    def _call(self, submitting: bool) -> ServerCall:
        if submitting and self.request is not None:
            return self.at.follow(self.request, self.limit.left)
        return self.at.resume(self.id, self.last, self.limit.left)

    def _raise(self, reply: ServerReply, submitting: bool) -> NoReturn:
        if submitting:
            raise_error(self.id, reply)
        raise_not_found(self.id, reply)

    def _was_not_accepted(self, reply: ServerReply | NoReply) -> bool:
        """Returns whether the server does not know the request and it may be submitted."""
        if not (isinstance(reply, ServerReply) and reply.status == _UNKNOWN):
            return False
        if self.request is None or self.is_accepted:
            raise UnknownRequest(self.id)
        return True

    def _pause(self) -> Conversation[None]:
        pause = self.limit.grow()
        if not self.limit.has(pause):
            if self.is_accepted:
                raise AnswerPending(self.id)
            raise RequestInDoubt(self.id, self.in_doubt)
        yield Wait(pause)

    def _read(self) -> Conversation[bool]:
        """Emits the results of the stream; returns whether the request is complete."""
        lines = EventLines()
        while True:
            data = yield MoreEvents()
            if not isinstance(data, bytes):
                self.in_doubt = data.problem if isinstance(data, NoReply) else "the stream ended"
                return False
            for event in lines.feed(data):
                if event.name == _DONE:
                    return True
                if (yield from self._take(event)):
                    return False
            if not self.limit.has(0):
                raise AnswerPending(self.id)

    def _take(self, event: ServerEvent) -> Conversation[bool]:
        """Emits a result; returns whether the stream ended before the request was complete."""
        if event.name == _ERROR:
            self._check_error(event)
            return True
        self.last = event.id or self.last
        yield Emit(_result_of(event))
        # The caller's own time between results does not count.
        self.limit = TimeLimit.of(self.seconds, self.limit.clock)
        return False

    def _check_error(self, event: ServerEvent) -> None:
        """Raises the error of an event, unless it only means that the stream ends."""
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
    """One event of a stream; ``id`` is empty if the event has none."""

    name: str
    data: str
    id: str


class EventLines:
    """Parses events from the bytes of a stream, however they are split."""

    def __init__(self) -> None:
        self._open_line: list[bytes] = []
        self._held = b""
        self._fields: dict[str, list[str]] = {}

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yields the events that these bytes complete."""
        for line in self._split(data):
            if not line:
                yield from self._end_event()
            elif not line.startswith(b":"):
                name, _, value = line.decode("utf-8", "replace").partition(":")
                self._fields.setdefault(name, []).append(value.removeprefix(" "))

    def _split(self, data: bytes) -> list[bytes]:
        """Returns the lines that these bytes complete. No byte is searched twice for a line end."""
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
