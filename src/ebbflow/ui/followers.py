"""Reads the state of each pipeline once, for all who look at it.

However many pages are open, there is one reader for a pipeline; it rests when nobody looks. Each
state is made into an event once. A page that is slow misses those that a newer one has replaced: it
holds up neither the reader nor other pages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from ebbflow.status.model import PipelineStatus
from ebbflow.web.app import format_event
from ebbflow.web.exchange import encode_json

_EVERY = 0.5
_EVERY_AT_REST = 2.0
_LINGER = 10.0
# What takes long to read is read seldom, so that it keeps the server busy for a small part of time.
_PAUSES = 10
_AGAIN = 2.0

Read = Callable[[], Awaitable[PipelineStatus]]
"""Reads the state of a pipeline as it is now."""

Describe = Callable[[Exception], bytes]
"""Makes what people are told about a state that cannot be read, as JSON."""


class StatusFollower:
    """The state of one pipeline, as of a moment ago. Used on one loop."""

    def __init__(self, read: Read, describe: Describe) -> None:
        self._read = read
        self._describe = describe
        self._status: PipelineStatus | Exception | None = None
        self._event = b""
        self._looks = 0
        self._news = asyncio.Event()
        self._watchers = 0
        self._wanted_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> PipelineStatus:
        """Returns the latest state; raises what reading it has raised."""
        self._want()
        while self._status is None:
            await self._news.wait()
        if isinstance(self._status, Exception):
            raise self._status
        return self._status

    async def watch(self) -> AsyncIterator[bytes]:
        """Yields an event for each look, always the latest; never ends by itself.

        A state that has not changed is an event too: whoever hears nothing knows that all is lost.
        """
        self._watchers += 1
        try:
            self._want()
            seen = self._looks if self._status is None else self._looks - 1
            while True:
                news = self._news
                if self._looks != seen:
                    seen = self._looks
                    yield self._event
                else:
                    await news.wait()
        finally:
            self._watchers -= 1

    def stop(self) -> None:
        """Reads nothing more."""
        if self._reading is not None:
            self._reading.cancel()

    def _want(self) -> None:
        loop = asyncio.get_running_loop()
        self._wanted_until = loop.time() + _LINGER
        if self._reading is None or self._reading.done():
            self._status = None
            self._reading = loop.create_task(self._follow())

    async def _follow(self) -> None:
        while self._is_wanted:
            began = time.monotonic()
            await self._look()
            is_live = isinstance(self._status, PipelineStatus) and self._status.phase != "ended"
            pause = _PAUSES * (time.monotonic() - began)
            await self._rest(max(_EVERY if is_live else _EVERY_AT_REST, pause))

    @property
    def _is_wanted(self) -> bool:
        return bool(self._watchers) or asyncio.get_running_loop().time() < self._wanted_until

    async def _rest(self, seconds: float) -> None:
        """Waits until the next look; tells the same again meanwhile, so that nobody gives up."""
        end = time.monotonic() + seconds
        while self._is_wanted and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _AGAIN))
            if end - time.monotonic() > 0:
                self._tell()

    async def _look(self) -> None:
        try:
            status = self._status = await self._read()
            self._event = format_event(encode_json(status.to_json()), b"status")
        except Exception as error:
            self._status = error
            self._event = format_event(self._describe(error), b"problem")
        self._tell()

    def _tell(self) -> None:
        self._looks += 1
        news, self._news = self._news, asyncio.Event()
        news.set()
