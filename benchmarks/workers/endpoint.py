"""Bare endpoints that read a post and answer at once.

python -m benchmarks.workers.endpoint PORT own|uvicorn

``own`` is the web server of Ebbflow's HTTP source with nothing behind it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from ebbflow.web.connection import HttpConnection
from ebbflow.web.exchange import Exchange, HttpRequest

_ANSWER = b'{"status":"ok"}'
_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_ANSWER)),
    ],
}
_BODY = {"type": "http.response.body", "body": _ANSWER}


@dataclass
class BareHost:
    """The server behind all connections."""

    read_timeout: float = 10.0
    most_connections: int = 1_000
    connections: set[HttpConnection] = field(default_factory=set)

    def open(self, head: HttpRequest, exchange: Exchange) -> BareReceiver:
        """Accepts every request."""
        return BareReceiver(exchange)


@dataclass(slots=True)
class BareReceiver:
    """One request."""

    exchange: Exchange
    pieces: list[bytes] = field(default_factory=list)

    def feed(self, piece: bytes) -> None:
        """Keeps a piece of the body."""
        self.pieces.append(piece)

    def finish(self) -> None:
        """Answers."""
        self.exchange.respond(200, _ANSWER)

    def abandon(self) -> None:
        """No client waits for an answer."""


async def serve(port: int) -> None:
    """Serves until killed."""
    host = BareHost()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(host), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers a request when it is complete."""
    while (await receive()).get("more_body"):
        pass
    await send(_HEAD)
    await send(_BODY)


if __name__ == "__main__":
    port, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "own":
        asyncio.run(serve(port))
    else:
        uvicorn.run(
            application, port=port, lifespan="off", ws="none", log_config=None, access_log=False
        )
