"""Room: bounds what requests hold in memory at the same time, in number and in bytes."""

from __future__ import annotations

import asyncio

from ebbflow.web.refusal import too_many


class Room:
    """Bounds what the requests of one vertex hold in memory. Used on one loop."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._bytes = size
        self._inside = 0
        self._held = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def reserve(self, size: int) -> RequestRoom:
        """Holds room for a request with a body of that size; ``Refusal`` when there is none."""
        self.check(1, size)
        self._inside += 1
        self._held += size
        self._empty.clear()
        return RequestRoom(self, size)

    def release(self, size: int) -> None:
        """Ends the hold of a request that held so much."""
        self._inside -= 1
        self._held -= size
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
    """The room that one request holds, until it is released."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self._size = size

    def cover(self, size: int) -> None:
        """Makes it large enough for so many bytes; ``Refusal`` when there is no room."""
        if size > self._size:
            self._room.grow(size - self._size)
            self._size = size

    def release(self) -> None:
        """Gives the room back. Called once."""
        self._room.release(self._size)
