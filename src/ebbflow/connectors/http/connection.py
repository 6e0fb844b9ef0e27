"""A connection that cannot cost much before there is a request on it.

uvicorn's own waits for the head of a request for as long as it takes, answers in plain text what it
cannot read in a head, and not at all what it cannot read in a body. h11 bounds the size of a head.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEARING_OUT = 1.0
_BOTH = {b"content-length", b"transfer-encoding"}


class Framing(h11.Connection):
    """Reads requests whose body has one length, not two.

    A proxy that believes the other one sees a different request behind the body: what is not for
    it to pass on could be hidden there.
    """

    def next_event(self) -> Any:
        """Returns the next part of a request; ``RemoteProtocolError`` if there can be none."""
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _BOTH:
            raise h11.RemoteProtocolError("content-length with transfer-encoding")
        return event


class GuardedConnection(H11Protocol):
    """The head of each request has ``within`` seconds; there are at most ``most`` connections."""

    def __init__(self, *, within: float, most: int, **given: Any) -> None:
        super().__init__(**given)
        self.conn = Framing(h11.SERVER)
        self._ended = False
        self._within = within
        self._most = most
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")
        else:
            self._late = self.loop.call_later(self._within, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Reads on; the time for a head runs from its first byte until it is there."""
        if self._ended:
            return
        if self._late is None and not self._is_busy:
            self._late = self.loop.call_later(self._within, self._give_up)
        super().data_received(data)
        if self._is_busy:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, in head or body, or has a head beyond all measure."""
        reason = "this is not a valid HTTP request"
        self._end(HTTPStatus.BAD_REQUEST, reason, within=_HEARING_OUT)

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        self._end(HTTPStatus.REQUEST_TIMEOUT, f"no request arrived within {self._within:g} s")

    def _end(self, status: HTTPStatus, reason: str, within: float = 0.0) -> None:
        """Answers and closes, ``within`` so long if somebody is still sending: while data comes in
        that nobody reads, closing would take the answer back.
        """
        self._ended = True
        self._stop_waiting()
        if self._is_busy and self.cycle.response_started:
            within = 0.0  # an answer that is being written must not be mixed with another one
        else:
            self._leave_request()
            self.transport.write(_answer(status, reason))
        if within and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(within, self.transport.close)
        else:
            self.transport.close()

    def _leave_request(self) -> None:
        """Whoever waits for the rest of its body is told that it will not come."""
        if self._is_busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def _answer(status: HTTPStatus, reason: str) -> bytes:
    body = json.dumps({"reason": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
