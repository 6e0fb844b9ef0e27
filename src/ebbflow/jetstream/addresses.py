"""NATS URLs as people write them, and a connection that goes on for as long as it is wanted.

The login is taken out of the URLs and given to the client: servers of a cluster that it finds out
about by itself need it as well, and no password can show up in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

import nats
import nats.errors
from nats.aio.client import Client

from ebbflow.errors import SetupError

# What may wait in the client while it is busy; a chunk's frames come all at once.
_PENDING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Addresses:
    """The servers to connect to, without the login, and the login."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str | Iterable[str]) -> Addresses:
        """From one URL, several with commas in between, or a list of them."""
        given = [url] if isinstance(url, str) else list(url)
        if not given or not all(isinstance(one, str) for one in given):
            raise ValueError("url must be a NATS URL or a list of them")
        parts = [_split(one) for text in given for one in text.split(",")]
        logins = {(part.username, part.password) for part in parts} - {(None, None)}
        if len(logins) > 1:
            raise ValueError("the URLs have different logins; give the same one with all of them")
        user, password = logins.pop() if logins else (None, None)
        urls = tuple(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)
        return cls(urls, user and unquote(user), password and unquote(password))

    def __str__(self) -> str:
        return ", ".join(self.urls)

    async def connect(self, name: str, advice: str = "Start it, or correct the URL.") -> Client:
        """A connection that, once made, is made again whenever it is lost.

        ``advice`` ends the error when there is nobody to connect to.
        """
        told: list[str] = []

        async def listen(error: Exception) -> None:
            # The last few, to explain a failure; the client reconnects by itself.
            told[:] = [*told[-9:], str(error) or type(error).__name__]

        try:
            client = await nats.connect(
                servers=list(self.urls),
                **self._login(),
                name=name,
                connect_timeout=5,
                max_reconnect_attempts=2,
                reconnect_time_wait=0.2,
                ping_interval=10,
                pending_size=_PENDING,
                error_cb=listen,
            )
        except (nats.errors.Error, OSError, ValueError) as error:
            raise self._unreachable(told or [str(error)], advice) from error
        # A server that was never there is an error; one that went away is waited for.
        client.options["max_reconnect_attempts"] = -1
        return client

    def _login(self) -> dict[str, str | None]:
        if self.password is None:
            return {"token": self.user}  # as every NATS client reads nats://token@host
        return {"user": self.user, "password": self.password}

    def _unreachable(self, told: list[str], advice: str) -> SetupError:
        refused = [text for text in told if re.search("authorization", text, re.IGNORECASE)]
        text = (refused or told)[-1].strip().removesuffix(".") or "no answer"
        if refused:
            what, step = f"NATS at {self} refused the login", "Check the login in the URL."
        elif self.user is not None and "reset" in text:
            # A refusal, as a rule: the end of the connection can overtake the reason for it.
            what, step = f"NATS at {self} ended the connection", "Check the login in the URL."
        else:
            what, step = f"No NATS server answers at {self}", advice
        return SetupError(f"{what}: {text}.", step)


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
