"""A line between a client and a NATS server that can be cut anywhere, and that can stop reading."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_PIECE = 64 * 1024


class Line:
    """Passes bytes on in both directions; hangs up once, after ``cut_after`` bytes from the server.

    While ``open`` is not set it reads nothing from the client; while ``deaf`` is, the client
    receives nothing: what the server sends is lost.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut_after: int | None = None
        self.cuts = 0
        self.deaf = False
        self.open = asyncio.Event()
        self.open.set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """Accepts connections on a port of its own, which it yields."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_PIECE)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port, limit=_PIECE)
        ways = (
            asyncio.create_task(self._pass(reader, back, self._all)),
            asyncio.create_task(self._pass(there, writer, self._cut)),
        )
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, back):
            end.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        keep: Callable[[bytes], bytes],
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                if keep == self._all:
                    await self.open.wait()
                elif self.deaf:
                    continue
                kept = keep(piece)
                writer.write(kept)
                await writer.drain()
                if len(kept) < len(piece):
                    return

    def _all(self, piece: bytes) -> bytes:
        return piece

    def _cut(self, piece: bytes) -> bytes:
        if self.cut_after is None:
            return piece
        left, self.cut_after = self.cut_after, self.cut_after - len(piece)
        if self.cut_after > 0:
            return piece
        self.cut_after, self.cuts = None, self.cuts + 1
        return piece[: max(0, left - 1)]
