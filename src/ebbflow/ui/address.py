"""Where the page listens: on this machine, unless somebody says otherwise, and then with a token.

The token is the one of ``EBBFLOW_UI_TOKEN``. Where a person looks on, at a terminal, one is made up
if there is none, and the address that the terminal shows has it. No log and no page has it.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from dataclasses import dataclass

from ebbflow.errors import SetupError
from ebbflow.secret import Secret
from ebbflow.web.binding import bind, is_loopback, url_of
from ebbflow.web.endpoint import Endpoint

LOOPBACK = "127.0.0.1"
PAGE_PORT = 8321
METRICS_PORT = 8322
TOKEN = "EBBFLOW_UI_TOKEN"  # noqa: S105
_PLACE = re.compile(
    r"(?:(?P<host>\[[^\]]+\]|[^:]*):)?(?P<port>\d{1,5})|(?P<alone>\[[^\]]+\]|[^:]*[^:\d][^:]*)"
)
_WHO = "page"


@dataclass(frozen=True, slots=True)
class PageAddress:
    """A host and a port. One that is only ``usual`` gives way to any that is free."""

    host: str
    port: int
    usual: bool = False


def parse_address(text: str | bool, usual_port: int) -> PageAddress:
    """Returns the address that ``HOST:PORT``, ``PORT`` or ``HOST`` means; ``True`` is the usual."""
    if text is True or not text:
        return PageAddress(LOOPBACK, usual_port, usual=True)
    match = _PLACE.fullmatch(str(text))
    port = int(match["port"] or usual_port) if match else -1
    if match is None or not 0 <= port <= 65_535:
        raise SetupError(
            f"{str(text)!r} is no address for a page to listen on.",
            f"Write it as HOST:PORT, such as {LOOPBACK}:{usual_port}; port 0 is any that is free.",
        )
    host = (match["alone"] or match["host"] or LOOPBACK).strip("[]")
    return PageAddress(host, port, usual=match["port"] is None)


@dataclass(frozen=True, slots=True)
class Entrance:
    """A socket that listens, and who may come in: everybody on this machine, or with the token."""

    bound: socket.socket
    token: Secret | None
    is_local: bool
    is_made_up: bool = False

    @property
    def url(self) -> str:
        """The address for people on this machine, without the token."""
        return f"{_shown(url_of(self.bound, secured=False), self.is_local)}/"

    @property
    def way_in(self) -> str:
        """The address to open, with the token if one was made up. For a terminal only."""
        if self.token is None or not self.is_made_up:
            return self.url
        return f"{self.url}?token={self.token.reveal()}"


def open_entrance(address: PageAddress) -> Entrance:
    """Returns what listens there; ``SetupError`` when that is not possible."""
    is_local = is_loopback(address.host, _WHO)
    text = os.environ.get(TOKEN, "")
    is_made_up = not text and not is_local
    token = _make_up_token(address.host) if is_made_up else Secret(text) if text else None
    return Entrance(_bind(address), token, is_local, is_made_up)


def _bind(address: PageAddress) -> socket.socket:
    advice = "Stop what listens there, or name another port; 0 is any that is free."
    place = Endpoint(address.host, address.port, optional=address.usual)
    bound = bind(place, _WHO, advice)
    if bound is None:
        bound = bind(Endpoint(address.host, 0), _WHO, advice)
    assert bound is not None, "a port that is not optional is bound or refused"
    return bound


def _make_up_token(host: str) -> Secret:
    """Returns a new token, if there is a terminal to show it on."""
    if not sys.stdout.isatty():
        raise SetupError(
            f"The page would show everything to anybody who can reach {host}.",
            f"Choose a token and set {TOKEN} to it, or have the page listen on {LOOPBACK}.",
        )
    return Secret(secrets.token_urlsafe(24))


def _shown(url: str, is_local: bool) -> str:
    """Returns the address by the name of this machine where every address is listened on."""
    if is_local:
        return url
    return re.sub(r"//(0\.0\.0\.0|\[::\])", f"//{socket.gethostname()}", url)
