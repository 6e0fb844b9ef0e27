"""A connection that cannot cost much before there is a request on it.

uvicorn's own waits for the head of a request for as long as it takes, and answers in plain text
what it cannot read. h11 bounds the size of a head.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedConnection(H11Protocol):
    """The head of each request has ``within`` seconds; there are at most ``most`` connections."""

    def __init__(self, *, within: float, most: int, **given: Any) -> None:
        super().__init__(**given)
        self._within = within
        self._most = most
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")
        else:
            self._late = self.loop.call_later(self._within, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Read on; the time for a head runs from its first byte until it is there."""
        if self._late is None and not self._is_busy:
            self._late = self.loop.call_later(self._within, self._give_up)
        super().data_received(data)
        if self._is_busy:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, or has a head beyond all measure."""
        self._end(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")

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

    def _end(self, status: HTTPStatus, reason: str) -> None:
        # An answer that is being written must not be mixed with another one.
        if not self._is_busy:
            self.transport.write(_answer(status, reason))
        self.transport.close()


def _answer(status: HTTPStatus, reason: str) -> bytes:
    body = json.dumps({"reason": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
