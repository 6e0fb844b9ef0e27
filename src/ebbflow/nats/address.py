"""The address of a NATS server: URLs as people write them, and a login.

``Addresses`` takes a login out of the URL and gives it to the client: servers of a cluster that the
client finds out about by itself need it as well, and no password can show up in a text.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, unquote, urlsplit

from ebbflow.nats.login import NOBODY, Login

INBOX = "_INBOX"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The servers to connect to, the login, and the first name of all inboxes for answers."""

    urls: tuple[str, ...]
    login: Login = NOBODY
    inbox: str = INBOX

    @classmethod
    def of(cls, url: str | Iterable[str], login: Login | None = None) -> Addresses:
        """Reads one URL, several with commas in between, or a list of them.

        ``ValueError`` when there is a login in the URL and another one beside it.
        """
        texts = [url] if isinstance(url, str) else list(url)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("url must be a NATS URL or a list of them")
        parts = [_split(single) for text in texts for single in text.split(",")]
        logins = {(part.username, part.password) for part in parts} - {(None, None)}
        if len(logins) > 1:
            raise ValueError("the URLs have different logins; give the same one with all of them")
        user, password = logins.pop() if logins else (None, None)
        urls = tuple(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)
        return cls(urls, _join(login or NOBODY, user, password))

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def wants_tls(self) -> bool:
        """``True`` if a connection without TLS would not do."""
        return self.login.wants_tls or any(url.startswith("tls://") for url in self.urls)

    @property
    def is_loopback(self) -> bool:
        """``True`` if every server is reached from this machine only."""
        return all(_is_loopback(urlsplit(url).hostname or "") for url in self.urls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _join(login: Login, user: str | None, password: str | None) -> Login:
    """Returns the login with what the URL has of it; a name without a password is a token."""
    if user is None:
        return login
    if login.kind is not None:
        raise ValueError("the URL has a login and there is another one; leave one of them out")
    if password is None:
        return replace(login, token=unquote(user))
    return replace(login, user=unquote(user), password=unquote(password))


def _split(url: str) -> SplitResult:
    """Returns the parts of one URL; the error for a wrong one does not repeat a password."""
    text = url.strip()
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        if parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # a port that is no number
    shown = text.rpartition("@")[2]
    raise ValueError(f"{shown!r} is not a NATS URL; write for example nats://localhost:4222")
