"""A stream of Server-Sent Events to one client.

A client that reads slowly holds up its own stream and nothing else. In quiet times a comment tells
proxies that the stream lives, and tells the server when the client does not.
"""

from __future__ import annotations

import asyncio

from ebbflow.web.exchange import Exchange

CONTENT_TYPE = "text/event-stream; charset=utf-8"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_QUIET = 15.0
_STILL_HERE = b":\n\n"


class EventStream:
    """The stream of one client, begun with ``async with``; comments keep it alive."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._exchange.begin(200, _HEADERS, CONTENT_TYPE)
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
