"""The bodies of requests: read piece by piece, never more of them than there is room for.

``Room`` bounds what the requests of one vertex hold in memory at the same time, in number and in
bytes. A request that it has no room for is refused with 429.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from ebbflow.connectors.http.refusal import Refusal, too_many

_DISCARDING = 1.0


class Room:
    """Bounds what the requests of one vertex hold in memory. Used on one loop."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._bytes = size
        self._inside = 0
        self._held = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def place(self, size: int) -> Iterator[RequestRoom]:
        """Holds room for a request with a body of that size; ``Refusal`` when there is none."""
        self.check(1, size)
        place = RequestRoom(self, size)
        self._inside += 1
        self._held += size
        self._empty.clear()
        try:
            yield place
        finally:
            self._inside -= 1
            self._held -= place.size
            if not self._inside:
                self._empty.set()

    def check(self, requests: int, size: int) -> None:
        """Raises ``Refusal`` unless there is room for so much more."""
        if self._inside + requests > self._requests or self._held + size > self._bytes:
            raise too_many("too many requests are on their way")

    def grow(self, size: int) -> None:
        """Has a place hold so much more."""
        self.check(0, size)
        self._held += size

    async def wait_until_empty(self) -> None:
        """Returns when no request is on its way."""
        await self._empty.wait()


class RequestRoom:
    """The room that one request holds."""

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self.size = size

    def cover(self, size: int) -> None:
        """Makes it large enough for a body of that size."""
        if size > self.size:
            self._room.grow(size - self.size)
            self.size = size


class Body:
    """Reads one body of at most ``largest`` bytes."""

    def __init__(self, request: Request, largest: int) -> None:
        self._request = request
        self._largest = largest
        self._ended = False

    def announced_size(self) -> int:
        """Returns the announced length, 0 for a body in pieces; ``Refusal`` if it may not be."""
        text = self._request.headers.get("content-length")
        if text is None:
            if "transfer-encoding" not in self._request.headers:
                raise Refusal(411, "there is no content-length")
            return 0
        self._check(int(text))
        return int(text)

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise Refusal(413, f"a body may have {self._largest:,} bytes, not {size:,} or more")

    async def read(self, place: RequestRoom, within: float) -> bytes:
        """Returns the whole body; ``place`` grows with what has arrived of it."""
        body = bytearray()
        try:
            async with asyncio.timeout(within):
                async for piece in self._pieces():
                    body += piece
                    self._check(len(body))
                    place.cover(len(body))
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {within:g} s") from None
        return bytes(body)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._ended = not message.get("more_body", False)
            yield message.get("body", b"")

    async def discard_rest(self) -> bool:
        """Reads and forgets the rest for a moment; returns whether nothing is left to come.

        An answer to somebody who is still sending may get lost. Who asked first whether to send
        has not begun.
        """
        if "expect" in self._request.headers:
            return self._ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARDING):
                async for _ in self._pieces():
                    pass
        return self._ended
