"""Following a request: its results as server-sent events, across lost connections.

Every result is handed over once. Each event says its place; after a lost connection the client
follows the request again, behind the last event it has seen.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ebbflow.client.asking import TimeLimit, check_sent, wait_for_room
from ebbflow.client.replies import calling, is_busy, raise_error, raise_not_found, says_nothing
from ebbflow.client.requests import NamedRequest, ServerPaths
from ebbflow.client.steps import (
    Conversation,
    Emit,
    MoreEvents,
    NoReply,
    Pause,
    ServerCall,
    ServerReply,
)
from ebbflow.domain.errors import AnswerPending, RequestInDoubt, UnknownRequest

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_RESULT, _BINARY_RESULT, _ERROR, _DONE = "message", "base64", "error", "done"
_UNKNOWN, _TIMEOUT, _DUPLICATE = 404, 408, 409


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


@dataclass(slots=True)
class Following:
    """One request that is followed. Each result has the time ``limit`` of ``seconds`` anew.

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
        yield Pause(pause)

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
