"""One connection to NATS per process, used from ordinary blocking code.

nats-py lives on an event loop. A ``LoopThread`` runs that loop on a thread of its own and hands
coroutines to it; a ``Link`` is one with a connection. Spark forks its Python workers, and neither a
loop nor a socket survives a fork, so links are kept by process id. The client's own reconnecting
never gives up: whoever waits decides for how long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import nats.errors

from ebbflow.domain.errors import SetupError
from ebbflow.nats.address import Addresses
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.connect import connect

T = TypeVar("T")

OLDEST_SERVER = (2, 12)
_STOP_WITHIN = 5.0
_ADVICE = "Start it, correct --nats or EBBFLOW_NATS_URL, or leave both out for the embedded server."


class LoopThread:
    """An event loop on a thread of its own. ``process`` is the only one that it runs in."""

    def __init__(self, name: str) -> None:
        self.process = os.getpid()
        self._end = asyncio.Event()
        running: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(running),), name=name, daemon=True
        )
        self._thread.start()
        self.loop = running.result()

    async def _serve(self, running: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        running.set_result(asyncio.get_running_loop())
        await self._end.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine on the loop and returns its result; not to be called on the loop.

        Whatever ends the wait ends the coroutine too, be it ``TimeoutError`` or Ctrl-C.
        """
        return self.wait(self.submit(coroutine), timeout)

    @staticmethod
    def wait(future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
        """Returns the result of what was submitted; an end of the wait ends that as well."""
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the loop; ``RuntimeError`` when the loop has ended."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the connection to NATS is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Has the loop call a function, without waiting for it."""
        self.loop.call_soon_threadsafe(function)

    def stop(self, timeout: float | None = None) -> None:
        """Ends everything that runs on the loop, and the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(timeout)


class Link(LoopThread):
    """A connection and the thread its event loop runs on.

    ``advice`` ends the error when there is nobody to connect to.
    """

    def __init__(self, server: Addresses, advice: str = _ADVICE) -> None:
        super().__init__("nats")
        self.server = server
        try:
            self.client: SecuredClient = self.run(connect(server, "ebbflow", advice), timeout=60)
        except BaseException:
            self.stop(_STOP_WITHIN)
            raise

    def flush(self) -> None:
        """Waits until the server has seen everything sent so far."""
        self.run(self.client.flush(10), timeout=15)

    def check(self) -> None:
        """Raises ``SetupError`` when the server has ended the connection for good."""
        if (why := self.client.ended) is not None:
            raise SetupError(
                f"NATS at {self.server} ended the connection: {why}.",
                "See whether the login is still valid, then start again.",
            )

    def close(self) -> None:
        """Closes the connection and ends the thread."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(nats.errors.Error, OSError, concurrent.futures.TimeoutError):
            self.run(self.client.close(), timeout=5)
        self.stop(_STOP_WITHIN)


def check_version(link: Link) -> None:
    """Refuses a server that cannot schedule messages, or that has JetStream switched off."""
    version = link.client.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        raise SetupError(
            f"NATS at {link.server} is version {version.major}.{version.minor}.{version.patch}; "
            "Ebbflow needs 2.12 or newer, because redelivery uses message schedules.",
            "Upgrade the server, or leave out --nats to use the embedded one.",
        )
    if not link.client.has_jetstream:
        raise SetupError(
            f"NATS at {link.server} runs without JetStream.",
            "Start it with -js, or leave out --nats to use the embedded one.",
        )


_links: dict[tuple[int, Addresses], Link] = {}


def worker_link(server: Addresses) -> Link:
    """Returns this process's link to the server: made on first use, kept while it is good."""
    key = (os.getpid(), server)
    link = _links.get(key)
    if link is not None and (link.client.denied is not None or link.client.ended is not None):
        link.close()
        link = None
    if link is None:
        link = _links[key] = Link(server)
    return link
