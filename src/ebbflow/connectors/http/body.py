"""The body of a request, read piece by piece: never more of it than may be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from ebbflow.connectors.http.request import Refusal
from ebbflow.connectors.http.room import RequestRoom

_DISCARDING = 1.0


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
