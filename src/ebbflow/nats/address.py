"""Where NATS is and how to get in: URLs as people write them, and a login.

A login in a URL is taken out of it and given to the client: servers of a cluster that it finds out
about by itself need it as well, and no password can show up in a text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import nats.errors
from nats.aio.client import RawCredentials

from ebbflow.nats.client import SecuredClient
from ebbflow.nats.connect_errors import explained
from ebbflow.nats.login import NOBODY, Login

INBOX = "_INBOX"
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
_LATER = {"allow_reconnect": True, "dont_randomize": False, "max_reconnect_attempts": -1}


@dataclass(frozen=True, slots=True)
class Addresses:
    """The servers to connect to, the login, and the first name of all inboxes for answers."""

    urls: tuple[str, ...]
    login: Login = NOBODY
    inbox: str = INBOX

    @classmethod
    def of(cls, url: str | Iterable[str], login: Login | None = None) -> Addresses:
        """From one URL, several with commas in between, or a list of them.

        ``ValueError`` when there is a login in the URL and another one beside it.
        """
        given = [url] if isinstance(url, str) else list(url)
        if not given or not all(isinstance(one, str) for one in given):
            raise ValueError("url must be a NATS URL or a list of them")
        parts = [_split(one) for text in given for one in text.split(",")]
        logins = {(part.username, part.password) for part in parts} - {(None, None)}
        if len(logins) > 1:
            raise ValueError("the URLs have different logins; give the same one with all of them")
        user, password = logins.pop() if logins else (None, None)
        urls = tuple(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)
        return cls(urls, _joined(login or NOBODY, user, password))

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def wants_tls(self) -> bool:
        """Whether a connection without TLS would not do."""
        return self.login.wants_tls or any(url.startswith("tls://") for url in self.urls)

    async def connect(
        self, name: str, advice: str = "Start it, or correct the URL."
    ) -> SecuredClient:
        """A connection that, once made, is made again whenever it is lost.

        ``SetupError`` when it cannot be made; ``advice`` ends it when there is nobody at all.
        """
        told: list[Exception] = []

        async def listen(error: Exception) -> None:
            # The last few, to explain a failure; the client reconnects by itself.
            told[:] = [*told[-9:], error]

        for servers in self._rounds():
            client = SecuredClient(self)
            try:
                await client.connect(
                    servers=servers, name=name, error_cb=listen, **self._options(), **_FIRST
                )
            except (nats.errors.Error, OSError, ValueError) as error:
                told = told or [error]
                client.abandon()
                await asyncio.sleep(_WAIT)
            else:
                # A server that was never there is an error; one that went away is waited for.
                client.options |= _LATER
                return client
        raise explained(str(self), self.login, told, advice) from told[-1]

    def _rounds(self) -> Iterator[list[str]]:
        """The order of the servers in each round: all come first once, in any order."""
        urls = random.sample(self.urls, len(self.urls))
        for first in range(max(2, len(urls))):
            yield [*urls[first:], *urls[:first]]

    def _options(self) -> dict[str, Any]:
        login = self.login
        options: dict[str, Any] = {"tls_hostname": login.tls_hostname, "inbox_prefix": self.inbox}
        if login.creds is not None:
            return options | {"user_credentials": RawCredentials(login.creds)}
        if login.nkey is not None:
            return options | {"nkeys_seed_str": login.nkey}
        return options | {"user": login.user, "password": login.password, "token": login.token}


def _joined(login: Login, user: str | None, password: str | None) -> Login:
    """The login with what the URL has of it; a name without a password is a token."""
    if user is None:
        return login
    if login.kind is not None:
        raise ValueError("the URL has a login and there is another one; leave one of them out")
    if password is None:
        return replace(login, token=unquote(user))
    return replace(login, user=unquote(user), password=unquote(password))


def _split(url: str) -> SplitResult:
    """The parts of one URL. What is wrong with it is told without repeating a password."""
    text = url.strip()
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        if parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # a port that is no number
    shown = text.rpartition("@")[2]
    raise ValueError(f"{shown!r} is not a NATS URL; write for example nats://localhost:4222")
