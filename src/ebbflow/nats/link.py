"""One connection to NATS per process, used from ordinary blocking code.

nats-py lives on an event loop. ``Link`` runs that loop on a thread of its own and hands
coroutines to it. Spark forks its Python workers, and neither a loop nor a socket survives a fork,
so links are kept by process id. The client's own reconnecting never gives up: how long to wait is
decided by whoever waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats.errors

from ebbflow.errors import SetupError
from ebbflow.nats.address import Addresses
from ebbflow.nats.client import SecuredClient

T = TypeVar("T")

OLDEST_SERVER = (2, 12)
_ADVICE = "Start it, correct --nats or EBBFLOW_NATS_URL, or leave both out for the embedded server."


class Link:
    """A connection and the thread its event loop runs on.

    ``advice`` ends the error when there is nobody to connect to.
    """

    def __init__(self, server: Addresses, advice: str = _ADVICE) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        try:
            self.client: SecuredClient = self.run(server.connect("ebbflow", advice), timeout=60)
        except BaseException:
            self._stop_loop()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the link's loop and wait for its result."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the link's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def flush(self) -> None:
        """Wait until the server has seen everything sent so far."""
        self.run(self.client.flush(10), timeout=15)

    def check(self) -> None:
        """``SetupError`` when the server has ended the connection for good."""
        if (why := self.client.ended) is not None:
            raise SetupError(
                f"NATS at {self.server} ended the connection: {why}.",
                "See whether the login is still valid, then start again.",
            )

    def close(self) -> None:
        """Close the connection and end the thread."""
        with contextlib.suppress(nats.errors.Error, OSError, concurrent.futures.TimeoutError):
            self.run(self.client.close(), timeout=5)
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)


def check_version(link: Link) -> None:
    """Refuse a server that cannot schedule messages, or that has JetStream switched off."""
    version = link.client.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        raise SetupError(
            f"NATS at {link.server} is version {version.major}.{version.minor}.{version.patch}; "
            "Ebbflow needs 2.12 or newer, because redelivery uses message schedules.",
            "Upgrade the server, or leave out --nats to use the embedded one.",
        )
    if not link.client._server_info.get("jetstream"):
        raise SetupError(
            f"NATS at {link.server} runs without JetStream.",
            "Start it with -js, or leave out --nats to use the embedded one.",
        )


_links: dict[tuple[int, Addresses], Link] = {}


def worker_link(server: Addresses) -> Link:
    """The link of this process to the server; made on first use and then kept while it is good."""
    key = (os.getpid(), server)
    link = _links.get(key)
    if link is not None and (link.client.denied is not None or link.client.ended is not None):
        link.close()
        link = None
    if link is None:
        link = _links[key] = Link(server)
    return link
