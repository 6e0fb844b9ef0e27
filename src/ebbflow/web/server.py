"""The web server: one port on a loop, whoever answers.

Whatever arrives on a port, the answer is what its owner says or the connection is closed: a request
is bounded in time and size from its first byte, and so is the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable

from ebbflow.nats.link import LoopThread
from ebbflow.web.binding import BACKLOG, url_of
from ebbflow.web.connection import HttpConnection, Receiver, RequestHead
from ebbflow.web.exchange import Exchange

_END = 10.0
_LAST_ANSWERS = 1.0
_PAUSE = 0.01
_CHECK = 0.5
_MOST_CONNECTIONS = 4_096

Opener = Callable[[RequestHead, Exchange], Receiver]
"""Takes the head of a request and returns who takes its body; ``Refusal`` if nobody does."""


class WebServer:
    """Listens on a bound socket. Started and stopped by any thread but that of its loop.

    ``open`` takes each request, on the loop.
    """

    open: Opener

    def __init__(
        self,
        bound: socket.socket,
        thread: LoopThread,
        secure: ssl.SSLContext | None,
        read_timeout: float,
    ) -> None:
        self.read_timeout = read_timeout
        self.most_connections = _most_connections()
        self.connections: set[HttpConnection] = set()
        self.url = url_of(bound, secured=secure is not None)
        self._thread = thread
        self._socket = bound
        self._tls = secure
        self._server: asyncio.Server | None = None
        self._checking: asyncio.TimerHandle | None = None

    @property
    def has_started(self) -> bool:
        """True from ``start`` on."""
        return self._server is not None

    @property
    def has_ended(self) -> bool:
        """True if it was started and listens no more."""
        return self._server is not None and not self._server.is_serving()

    def start(self, open: Opener) -> None:
        """Begins to listen, and hands each request to ``open``."""
        self.open = open
        self._thread.run(self._listen())

    def stop(self) -> None:
        """Listens no more, and lets go of the port."""
        with contextlib.suppress(TimeoutError):
            self._thread.run(self._close(), timeout=_END)
        self._socket.close()

    async def _listen(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self),
            sock=self._socket,
            ssl=self._tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=self.read_timeout if self._tls else None,
        )
        self._check_times()

    def _check_times(self) -> None:
        """Looks at all connections, so that a request needs no timers of its own."""
        loop = self._thread.loop
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self._checking = loop.call_later(min(_CHECK, self.read_timeout / 5), self._check_times)

    async def _close(self) -> None:
        """Lets connections end behind what they are answering, for a moment."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close_soon()
        deadline = time.monotonic() + _LAST_ANSWERS
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE)
        for connection in list(self.connections):
            connection.abort()
        if self._checking is not None:
            self._checking.cancel()


def _most_connections() -> int:
    """Files are needed for other things, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MOST_CONNECTIONS, soft // 2)
