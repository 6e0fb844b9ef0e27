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
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client

from ebbflow.errors import SetupError
from ebbflow.jetstream.addresses import Addresses

T = TypeVar("T")

OLDEST_SERVER = (2, 12)
_ADVICE = "Start it, correct --nats or EBBFLOW_NATS_URL, or leave both out for the embedded server."


@dataclass(frozen=True, slots=True, repr=False)
class Server:
    """Where NATS is and how to log in. No password shows in ``repr`` or ``str``."""

    url: str
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Server({str(self)!r})"

    def __str__(self) -> str:
        return str(Addresses.of(self.url))


class Link:
    """A connection and the thread its event loop runs on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        try:
            self.client: Client = self.run(self._connect(), timeout=60)
        except BaseException:
            self._stop_loop()
            raise

    async def _connect(self) -> Client:
        try:
            addresses = Addresses.of(self.server.url)
        except ValueError as error:
            raise SetupError(f"{error}.", "Correct --nats or EBBFLOW_NATS_URL.") from None
        if self.server.user is not None:
            addresses = replace(addresses, user=self.server.user, password=self.server.password)
        return await addresses.connect("ebbflow", advice=_ADVICE)

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

    def close(self) -> None:
        """Close the connection and end the thread."""
        with contextlib.suppress(nats.errors.Error, concurrent.futures.TimeoutError):
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


_links: dict[tuple[int, Server], Link] = {}


def worker_link(server: Server) -> Link:
    """The link of this process to the server; made on first use and then kept."""
    key = (os.getpid(), server)
    link = _links.get(key)
    if link is None or link.client.is_closed:
        link = _links[key] = Link(server)
    return link
