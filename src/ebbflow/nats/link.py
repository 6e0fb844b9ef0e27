"""Connecting to NATS: one connection per process, used from ordinary blocking code.

nats-py lives on an event loop. A ``LoopThread`` runs that loop on its own thread and hands
coroutines to it; a ``Link`` is one with a connection. Spark forks its Python workers, and neither a
loop nor a socket survives a fork, so links are kept by process id. The client's own reconnecting
never gives up: whoever waits decides for how long.

``connect`` makes a connection. Every server is tried first once. The client tells of each attempt,
and the error says what is wrong and what to do about it: a refusal counts for more than a dead
line.
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
# The client's own way of starting over hangs after a failed TLS handshake, so rounds are ours.
_FIRST: dict[str, Any] = {
    "allow_reconnect": False,
    "dont_randomize": True,
    "max_reconnect_attempts": 1,
    "connect_timeout": 5,
    "reconnect_time_wait": _WAIT,
    "ping_interval": 3,
    # What may wait in the client while it is busy; a chunk's frames come all at once.
    "pending_size": 64 * 1024 * 1024,
}
_LATER = {"allow_reconnect": True, "max_reconnect_attempts": -1}
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


class LoopThread:
    """An event loop on its own thread. ``process`` is the only one that it runs in."""

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

    ``advice`` ends the error when there is no one to connect to.
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
    """Returns this process's link to the server: made on first use, kept while it is good.

    Spark's workers outlive runs. Before another link is made, those whose server is down are
    closed: the server of a run that has ended never comes back, and each would try for ever.
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
    # A worker runs one task at a time: no one uses the others now.
    lost = [key for key, link in _links.items() if not link.client.is_connected]
    for process, server in lost:
        link = _links.pop((process, server))
        if process == os.getpid():  # a process that was forked has no thread of its parent's links
            link.close()


async def connect(
    server: Addresses, name: str, advice: str = "Start it, or correct the URL."
) -> SecuredClient:
    """Returns a connection that, once made, is made again whenever it is lost.

    ``SetupError`` when it cannot be made; ``advice`` ends it when there is no one at all.
    """
    errors: list[Exception] = []

    async def listen(error: Exception) -> None:
        # The last few, to explain a failure; the client reconnects by itself.
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
            # A server that was never there is an error; one that went away is waited for.
            client.options |= _LATER
            return client
    raise _explain(str(server), server.login, errors, advice) from errors[-1]


def _rounds(servers: Sequence[str]) -> Iterator[list[str]]:
    """Yields the order of the servers in each round: all come first once, in any order."""
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
    """Returns the error for a connection that could not be made, from what the client heard."""
    for error in reversed(errors):
        reason = _certificate(error) or _tls(error, login) or _login(error, login) or _limit(error)
        if reason is not None:
            what, step = reason
            return SetupError(f"NATS at {server} {what}.", step)
    text = _text(errors[-1])
    if login.held and re.search("reset|lost|EOF", text):
        # A refusal, as a rule: the end of the connection can overtake the reason for it.
        return SetupError(f"NATS at {server} ended the connection: {text}.", _check(login))
    return SetupError(f"No NATS server answers at {server}: {text}.", advice)


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.removeprefix("nats: ").strip().strip("'").removesuffix(".") or "no answer"


def _check(login: Login) -> str:
    shown = [login.kind, "a certificate" if login.cert else None]
    return f"It was given {' and '.join(filter(None, shown)) or 'no login'}: check that."


def _certificate(error: Exception) -> tuple[str, str] | None:
    """Says what this side finds wrong with the server's certificate."""
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
    """Says what the server finds wrong with this side's, or that it has no TLS at all."""
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
    # Creds are sent on one line, with all the permissions that are in them.
    step = "Raise its max_control_line, or give the permissions to a signing key instead."
    return "takes no login as long as this one", step
