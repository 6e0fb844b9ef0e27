"""How much may be on its way in at the same time, in requests and in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ebbflow.connectors.http.request import Refusal

_AGAIN = 1


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
            raise Refusal(429, "too many requests are on their way", retry=_AGAIN)

    def grow(self, size: int) -> None:
        """Have a place hold so much more."""
        self.check(0, size)
        self._held += size

    async def wait_until_empty(self) -> None:
        """Returns when no request is on its way."""
        await self._empty.wait()


class RequestRoom:
    """What one request holds."""

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self.size = size

    def cover(self, size: int) -> None:
        """Make it large enough for a body of that size."""
        if size > self.size:
            self._room.grow(size - self.size)
            self.size = size
