"""The web UI of pipelines: a web server on a thread, with its own connection to NATS.

It reads what runs store and uses no object of a run, so that it cannot delay messages, however many
browsers it has and however slow they are.

It listens on this machine by default. Beyond this machine it requires a token, from
``EBBFLOW_UI_TOKEN``. At a terminal it generates one if there is none, and writes it only to that
terminal: no log, no file and no answer contains it. With ``https://`` the web UI speaks TLS, with
the certificate of ``EBBFLOW_UI_CERT_FILE`` and ``EBBFLOW_UI_KEY_FILE`` or a self-signed one.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from ebbflow.connectors.base import require_extra
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.link import LoopThread
from ebbflow.nats.login import Addresses
from ebbflow.runtime.run_setup import Attachment
from ebbflow.ui.app import FilesApi, UiRoute, WebUiApp
from ebbflow.ui.jobs import Jobs
from ebbflow.ui.letters import LettersApi
from ebbflow.ui.links import ServerLink, UiLink
from ebbflow.ui.pipelines import Pipelines, PipelinesApi, ProbesApi
from ebbflow.web.guard import WebUiGuard
from ebbflow.web.server import Certificate, Endpoint, WebServer, bind, is_loopback, make_tls, url_of

LOOPBACK = "127.0.0.1"
UI_PORT = 8321
METRICS_PORT = 8322
TOKEN = "EBBFLOW_UI_TOKEN"  # noqa: S105
CERTIFICATE, KEY = "EBBFLOW_UI_CERT_FILE", "EBBFLOW_UI_KEY_FILE"
_PLACE = re.compile(
    r"(?P<scheme>https?://)?"
    r"(?:(?:(?P<host>\[[^\]]+\]|[^:/]*):)?(?P<port>\d{1,5})|(?P<alone>\[[^\]]+\]|[^:/]*[^:/\d][^:/]*))"
)
_WHO = "web UI"
_NUMBERS = "endpoint of --metrics"
_READ_TIMEOUT = 10.0
_END = 10.0


# --- addresses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UiAddress:
    """A host and a port. If a ``usual`` port is taken, any free one is used instead.

    ``secured`` says whether to speak TLS; ``None`` leaves that to the environment. ``who`` names
    the listener in errors.
    """

    host: str
    port: int
    usual: bool = False
    secured: bool | None = None
    who: str = field(default=_WHO, compare=False)


def parse_address(text: str | bool, usual_port: int, who: str = _WHO) -> UiAddress:
    """Parses an address: ``[https://]HOST:PORT``, ``PORT`` or ``HOST``.

    ``True`` means the default address.
    """
    if text is True or not text:
        return UiAddress(LOOPBACK, usual_port, usual=True, who=who)
    match = _PLACE.fullmatch(str(text))
    port = int(match["port"] or usual_port) if match else -1
    if match is None or not 0 <= port <= 65_535:
        raise SetupError(
            f"{str(text)!r} is not an address that the {who} can listen on.",
            f"Write it as HOST:PORT, such as {LOOPBACK}:{usual_port}; port 0 is any that is free.",
        )
    host = (match["alone"] or match["host"] or LOOPBACK).strip("[]")
    secured = None if match["scheme"] is None else match["scheme"] == "https://"
    return UiAddress(host, port, usual=match["port"] is None, secured=secured, who=who)


@dataclass(frozen=True, slots=True)
class UiSocket:
    """A listening socket, with the token that requests need if it is not local.

    ``terminal`` is where a generated token is shown; ``None`` if no token was generated.
    """

    bound: socket.socket
    token: Secret | None
    is_local: bool
    tls: ssl.SSLContext | None = None
    terminal: TextIO | None = None

    @property
    def url(self) -> str:
        """The address for people on this machine, without the token."""
        return f"{_shown(url_of(self.bound, secured=self.tls is not None), self.is_local)}/"

    def announce(self, tell: Callable[[str], None], what: str, path: str = "") -> None:
        """Reports the URL of the web UI. A generated token is printed only to the terminal."""
        tell(f"{what} {self.url}{path}")
        if not self.is_local and self.tls is None:
            tell("it is reached without TLS: its token and what it shows can be read in transit")
        if self.terminal is None or self.token is None:
            return
        token = self.token.reveal()
        how = f"Its bearer token: {token}" if path else f"Open {self.url}?token={token}"
        print(how, file=self.terminal, flush=True)


def open_socket(address: UiAddress) -> UiSocket:
    """Returns a socket that listens at an address; ``SetupError`` if that is not possible."""
    is_local = is_loopback(address.host, address.who)
    text = os.environ.get(TOKEN, "")
    terminal = None if text or is_local else _find_terminal(address.host)
    chosen = Secret(text) if text else None
    token = chosen if terminal is None else Secret(secrets.token_urlsafe(24))
    secure = _make_tls(address)
    return UiSocket(_bind_address(address), token, is_local, secure, terminal)


def _bind_address(address: UiAddress) -> socket.socket:
    advice = "Stop what listens there, or name another port; 0 is any that is free."
    place = Endpoint(address.host, address.port, optional=address.usual)
    bound = bind(place, address.who, advice)
    if bound is None:
        bound = bind(Endpoint(address.host, 0), address.who, advice)
    assert bound is not None, "a port that is not optional is bound or refused"
    return bound


def _make_tls(address: UiAddress) -> ssl.SSLContext | None:
    """Returns the TLS context of the web UI; ``None`` without TLS."""
    certificate = _read_certificate()
    secured = certificate is not None if address.secured is None else address.secured
    if not secured:
        return None
    if certificate is None:
        require_extra("A web UI with a self-signed certificate", "http", "cryptography")
    place = Endpoint(address.host, address.port, certificate, self_signed=certificate is None)
    return make_tls(place, address.who)


def _read_certificate() -> Certificate | None:
    paths = {name: os.environ.get(name, "") for name in (CERTIFICATE, KEY)}
    if not any(paths.values()):
        return None
    texts = []
    for name, path in paths.items():
        try:
            texts.append(Path(path).read_text("utf-8"))
        except (OSError, ValueError):
            raise SetupError(
                f"The web UI cannot read the file that {name} names: {path or 'it is not set'}.",
                f"Set {CERTIFICATE} and {KEY} to a certificate and its key, in PEM form.",
            ) from None
    return Certificate(texts[0], Secret(texts[1]))


def _find_terminal(host: str) -> TextIO:
    """Returns the terminal to show a generated token on."""
    for stream in (sys.stderr, sys.stdout):
        if stream is not None and stream.isatty():
            return stream
    raise SetupError(
        f"The web UI would show everything to anybody who can reach {host}.",
        f"Choose a token and set {TOKEN} to it, or have the web UI listen on {LOOPBACK}.",
    )


def _shown(url: str, is_local: bool) -> str:
    """Returns the URL, with this machine's name if the server listens on all addresses."""
    if is_local:
        return url
    return re.sub(r"//(0\.0\.0\.0|\[::\])", f"//{socket.gethostname()}", url)


# --- the server -----------------------------------------------------------------------------------


class WebUiServer:
    """One web UI on one port. Start and stop it from any thread but its own.

    If it is not ``whole``, it has metrics and health only.
    """

    def __init__(
        self, listening: UiSocket, link: UiLink, only: Collection[str], whole: bool
    ) -> None:
        self._thread = LoopThread("web-ui")
        self._link = link
        self._server = WebServer(listening.bound, self._thread, listening.tls, _READ_TIMEOUT)
        port = listening.bound.getsockname()[1]
        self._guard = WebUiGuard(
            listening.token, listening.is_local, port, listening.tls is not None
        )
        self._only = only
        self._whole = whole
        self.listening = listening

    def start(self) -> None:
        """Starts answering."""
        self._thread.run(self._build())
        self._server.start(self._app.open)

    def stop(self) -> None:
        """Lets open requests finish, cancels streams, and stops."""
        self._thread.run(self._end(), timeout=_END)
        self._server.stop()
        self._thread.stop()
        self._link.close()

    async def _build(self) -> None:
        self._pipelines = Pipelines(self._link, self._only)
        self._jobs = Jobs()
        self._app = WebUiApp(self._routes(), self._guard)

    def _routes(self) -> list[UiRoute]:
        probes = ProbesApi(self._pipelines, self._guard).routes
        if not self._whole:
            return probes
        return [
            *probes,
            *FilesApi(self._guard).routes,
            *PipelinesApi(self._pipelines).routes,
            *LettersApi(self._pipelines, self._jobs).routes,
        ]

    async def _end(self) -> None:
        await self._app.end()
        self._jobs.close()
        self._pipelines.close()


@contextmanager
def open_web_ui(
    address: UiAddress, link: UiLink, only: Collection[str] = (), whole: bool = True
) -> Iterator[UiSocket]:
    """Serves the web UI until the context ends; ``SetupError`` if it cannot listen.

    It shows ``only`` these pipelines, or all. If it is not ``whole``, it has metrics and health
    only. Closes the link at the end.
    """
    try:
        server = WebUiServer(open_socket(address), link, only, whole)
    except BaseException:
        link.close()
        raise
    try:
        server.start()
        yield server.listening
    finally:
        server.stop()


# --- next to a run --------------------------------------------------------------------------------


def attach_web_ui(ui: bool | str, metrics: bool | str) -> list[Attachment]:
    """Returns the servers to open next to a run; ``SetupError`` for an invalid address.

    Each argument is ``False`` for none, ``True`` for the default address, or ``HOST:PORT``. The web
    UI also serves the metrics, so with the same address there is only one server.
    """
    address = None if ui is False else parse_address(ui, UI_PORT)
    numbers = None if metrics is False else parse_address(metrics, METRICS_PORT, _NUMBERS)
    attachments: list[Attachment] = []
    if address is not None:
        attachments.append(partial(_attach, "ui", address))
    if numbers is not None and numbers != address:
        attachments.append(partial(_attach, "metrics", numbers))
    return attachments


@contextmanager
def _attach(
    name: str,
    address: UiAddress,
    server: Addresses,
    pipeline: str,
    tell: Callable[[str], None],
) -> Iterator[Mapping[str, str]]:
    is_web_ui = name == "ui"
    with open_web_ui(address, ServerLink(server), [pipeline], whole=is_web_ui) as listening:
        if is_web_ui:
            listening.announce(tell, "web UI at")
        else:
            listening.announce(tell, "metrics at", "metrics")
        yield {name: listening.url if is_web_ui else f"{listening.url}metrics"}
