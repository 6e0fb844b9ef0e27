"""Connecting to NATS: one connection per process, used from ordinary blocking code.

nats-py needs an event loop. A ``LoopThread`` runs that loop on its own thread and submits
coroutines to it; a ``Link`` is one with a connection. Spark forks its Python workers, and neither a
loop nor a socket survives a fork, so links are kept by process id. The client's own reconnecting
never gives up: the caller decides how long to wait.

``connect`` makes a connection. Each server is the first to be tried in one round. The client
reports the error of each attempt, and ``connect`` raises one that says what is wrong and what to do
about it: a refusal says more than a server that cannot be reached.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import RawCredentials

from ebbflow.domain.errors import SetupError
from ebbflow.nats.client import NO_CERTIFICATE, NO_TLS, SecuredClient, refuses_login
from ebbflow.nats.login import Addresses, Login

T = TypeVar("T")

OLDEST_SERVER = (2, 12)
_STOP_WITHIN = 5.0
_ADVICE = "Start it, correct --nats or EBBFLOW_NATS_URL, or leave both out for the embedded server."
_WAIT = 0.2
# The client's own retries hang after a failed TLS handshake, so ``connect`` makes the rounds.
_FIRST: dict[str, Any] = {
    "allow_reconnect": False,
    "dont_randomize": True,
    "max_reconnect_attempts": 1,
    "connect_timeout": 5,
    "reconnect_time_wait": _WAIT,
    "ping_interval": 3,
    # The bytes that may wait in the client: a chunk's frames are sent all at once.
    "pending_size": 64 * 1024 * 1024,
}
_LATER = {"allow_reconnect": True, "max_reconnect_attempts": -1}
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


class LoopThread:
    """An event loop on its own thread. ``process`` is the id of the process that it runs in."""

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

        An interrupted wait, by ``TimeoutError`` or Ctrl-C, cancels the coroutine.
        """
        return self.wait(self.submit(coroutine), timeout)

    @staticmethod
    def wait(future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
        """Returns the result of a submitted coroutine; an interrupted wait cancels it."""
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
        """Makes the loop call a function, without waiting for it."""
        self.loop.call_soon_threadsafe(function)

    def stop(self, timeout: float | None = None) -> None:
        """Ends all coroutines on the loop, and the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(timeout)


class Link(LoopThread):
    """A connection and the thread its event loop runs on.

    ``advice`` ends the error when no server can be reached.
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
        """Waits until the server has received everything sent so far."""
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
    """Raises ``SetupError`` if the server cannot schedule messages or runs without JetStream."""
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
    """Returns this process's link to the server: made on first use, kept while it works.

    Spark's workers outlive runs. Before a new link is made, links whose server is down are closed:
    the server of a run that has ended never comes back, and its link would try forever.
    """
    key = (os.getpid(), server)
    link = _links.get(key)
    if link is not None and (link.client.denied is not None or link.client.ended is not None):
        link.close()
        link = None
    if link is None:
        _close_lost_links()
        link = _links[key] = Link(server)
    return link


def _close_lost_links() -> None:
    # A worker runs one task at a time, so its other links are not in use.
    lost = [key for key, link in _links.items() if not link.client.is_connected]
    for process, server in lost:
        link = _links.pop((process, server))
        if process == os.getpid():  # a forked process does not have the threads of its parent
            link.close()


async def connect(
    server: Addresses, name: str, advice: str = "Start it, or correct the URL."
) -> SecuredClient:
    """Returns a connection that reconnects by itself whenever it is lost.

    ``SetupError`` when it cannot be made; ``advice`` ends it when no server can be reached.
    """
    errors: list[Exception] = []

    async def listen(error: Exception) -> None:
        # Only the last ones are kept, to explain a failure.
        errors[:] = [*errors[-9:], error]

    for urls in _rounds(server.urls):
        client = SecuredClient(server)
        try:
            await client.connect(
                servers=urls, name=name, error_cb=listen, **_options(server), **_FIRST
            )
        except (nats.errors.Error, OSError, ValueError) as error:
            errors = errors or [error]
            client.abandon()
            await asyncio.sleep(_WAIT)
        else:
            # From now on a server that goes down is waited for; at first it is an error.
            client.options |= _LATER
            return client
    raise _explain(str(server), server.login, errors, advice) from errors[-1]


def _rounds(servers: Sequence[str]) -> Iterator[list[str]]:
    """Yields the servers of each round, in random order; each server comes first in one round."""
    urls = random.sample(servers, len(servers))
    for first in range(max(2, len(urls))):
        yield [*urls[first:], *urls[:first]]


def _options(server: Addresses) -> dict[str, Any]:
    login = server.login
    options: dict[str, Any] = {"tls_hostname": login.tls_hostname, "inbox_prefix": server.inbox}
    if login.creds is not None:
        return options | {"user_credentials": RawCredentials(login.creds)}
    if login.nkey is not None:
        return options | {"nkeys_seed_str": login.nkey}
    return options | {"user": login.user, "password": login.password, "token": login.token}


def _explain(server: str, login: Login, errors: Sequence[Exception], advice: str) -> SetupError:
    """Returns the error for a connection that could not be made, from the client's errors."""
    for error in reversed(errors):
        reason = _certificate(error) or _tls(error, login) or _login(error, login) or _limit(error)
        if reason is not None:
            what, step = reason
            return SetupError(f"NATS at {server} {what}.", step)
    text = _text(errors[-1])
    if login.held and re.search("reset|lost|EOF", text):
        # Usually a refusal: the end of the connection can overtake the reason for it.
        return SetupError(f"NATS at {server} ended the connection: {text}.", _check(login))
    return SetupError(f"No NATS server answers at {server}: {text}.", advice)


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.removeprefix("nats: ").strip().strip("'").removesuffix(".") or "no answer"


def _check(login: Login) -> str:
    shown = [login.kind, "a certificate" if login.cert else None]
    return f"It was given {' and '.join(filter(None, shown)) or 'no login'}: check that."


def _certificate(error: Exception) -> tuple[str, str] | None:
    """Returns what is wrong with the server's certificate, and the fix."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    if error.verify_code == _EXPIRED:
        return "has a certificate that has expired", "Renew it."
    if error.verify_code == _NOT_YET:
        return "has a certificate that is not valid yet", "Check the clocks of both machines."
    if error.verify_code in _OTHER_NAME:
        return (
            f"has a certificate for another host: {error.verify_message.removesuffix('.')}",
            "Use a name that is in it, or set EBBFLOW_NATS_TLS_HOSTNAME to one.",
        )
    return (
        f"has a certificate that is not trusted: {error.verify_message}",
        "Name the certificate of its authority with EBBFLOW_NATS_CA_FILE.",
    )


def _tls(error: Exception, login: Login) -> tuple[str, str] | None:
    """Returns what the server refuses about TLS or the client's certificate, and the fix."""
    text = str(error)
    if text == NO_TLS:
        return "does not use TLS, which the URL or the login asks for", "Switch it on there."
    if text == NO_CERTIFICATE:
        step = "Name one with EBBFLOW_NATS_CERT_FILE and its key with EBBFLOW_NATS_KEY_FILE."
        return "wants a certificate of the client", step
    if not isinstance(error, ssl.SSLError):
        return None
    why = (error.reason or text).replace("_", " ").lower()
    if login.cert is not None and re.search("certificate|unknown ca", why):
        return f"refused the certificate of the client: {why}", "Use one that it trusts."
    return f"did not agree on TLS: {why}", "Check how TLS is set up there."


def _login(error: Exception, login: Login) -> tuple[str, str] | None:
    if not refuses_login(error):
        return None
    text = _text(error)
    if login.kind is None:
        return (
            f"wants a login: {text}",
            "Give one, in the URL or with the variables EBBFLOW_NATS_USER and so on.",
        )
    return f"refused the login: {text}", _check(login)


def _limit(error: Exception) -> tuple[str, str] | None:
    if "control line" not in str(error):
        return None
    # Creds are sent on one line, including all their permissions.
    step = "Raise its max_control_line, or give the permissions to a signing key instead."
    return "does not accept a login as long as this one", step
