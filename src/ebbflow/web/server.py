"""The web server: one port on a loop, with or without TLS, for any application.

Every request is bounded in time and size from its first byte, and so is the number of connections:
the application answers, or the connection is closed. Errors explain why a server cannot listen;
``who`` names the listener in them, such as "http source in".

Specs create endpoints, which are plain data. So this module imports the HTTP parser and the
certificate library only when they are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import resource
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ebbflow.domain import secrets
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.web.exchange import Opener

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

    from ebbflow.nats.link import LoopThread
    from ebbflow.web.connection import HttpConnection

_BACKLOG = 1_024
_END = 10.0
_LAST_ANSWERS = 1.0
_PAUSE = 0.01
_CHECK = 0.5
_MOST_CONNECTIONS = 4_096
_VALID = timedelta(days=365)
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its chain, and its key, in PEM form."""

    chain: str
    key: Secret


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port to listen on, with or without TLS.

    TLS uses ``certificate``, or a new one if ``self_signed``. An ``optional`` endpoint, which the
    user did not ask for, is skipped if another process has its port.
    """

    host: str
    port: int
    certificate: Certificate | None = None
    self_signed: bool = False
    optional: bool = False

    @property
    def secured(self) -> bool:
        """True with TLS."""
        return self.certificate is not None or self.self_signed


class WebServer:
    """Listens on a bound socket. Start and stop it from any thread but that of its loop.

    ``open`` is called with each request, on the loop.
    """

    open: Opener

    def __init__(
        self,
        bound: socket.socket,
        thread: LoopThread,
        secure: ssl.SSLContext | None,
        read_timeout: float,
    ) -> None:
        self.read_timeout = read_timeout
        self.most_connections = _most_connections()
        self.connections: set[HttpConnection] = set()
        self.url = url_of(bound, secured=secure is not None)
        self._thread = thread
        self._socket = bound
        self._tls = secure
        self._server: asyncio.Server | None = None
        self._checking: asyncio.TimerHandle | None = None

    @property
    def has_started(self) -> bool:
        """True from ``start`` on."""
        return self._server is not None

    @property
    def has_ended(self) -> bool:
        """True if it was started and no longer listens."""
        return self._server is not None and not self._server.is_serving()

    def start(self, open: Opener) -> None:
        """Starts to listen, and passes each request to ``open``."""
        self.open = open
        self._thread.run(self._listen())

    def stop(self) -> None:
        """Stops listening, and frees the port."""
        with contextlib.suppress(TimeoutError):
            self._thread.run(self._close(), timeout=_END)
        self._socket.close()

    async def _listen(self) -> None:
        from ebbflow.web.connection import HttpConnection

        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self),
            sock=self._socket,
            ssl=self._tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=self.read_timeout if self._tls else None,
        )
        self._check_times()

    def _check_times(self) -> None:
        """Checks the deadlines of all connections, so that requests need no timers."""
        loop = self._thread.loop
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self._checking = loop.call_later(min(_CHECK, self.read_timeout / 5), self._check_times)

    async def _close(self) -> None:
        """Lets connections finish the answers that they are sending, for a moment."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close_soon()
        deadline = time.monotonic() + _LAST_ANSWERS
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE)
        for connection in list(self.connections):
            connection.abort()
        if self._checking is not None:
            self._checking.cancel()


def _most_connections() -> int:
    """Returns the limit of connections. It leaves half of the open files for other uses."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MOST_CONNECTIONS, soft // 2)


# --- sockets --------------------------------------------------------------------------------------


def is_loopback(host: str, who: str) -> bool:
    """Returns whether only this machine can reach a host; ``SetupError`` if it is unknown."""
    addresses = _resolve(host, 0, who)
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in addresses)


def bind(
    endpoint: Endpoint, who: str, advice: str, *, listens: bool = True
) -> socket.socket | None:
    """Returns a socket that listens; ``SetupError`` with the ``advice`` if that is not possible.

    Returns ``None`` if the endpoint is optional and another process has its port. With ``listens``
    false the socket is only bound: that checks whether the port is free without taking it.
    """
    family, address = _resolve(endpoint.host, endpoint.port, who)[0]
    # asyncio disables Nagle's algorithm only for sockets with this protocol. Otherwise each answer
    # would wait until the client acknowledges its head.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # Only a listening socket takes the port.
        if listens:
            bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE and endpoint.optional:
            return None
        place = f"{endpoint.host}:{endpoint.port}"
        text = f"The {who} cannot listen on {place}: {error.strerror}."
        raise SetupError(text, advice) from None
    return bound


def _resolve(host: str, port: int, who: str) -> list[tuple[int, Any]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(
            f"The {who} cannot listen on {host}, which is not an address of this machine: "
            f"{error.strerror}.",
            "Correct its host.",
        ) from None
    return [(family, address) for family, _, _, _, address in addresses]


def url_of(bound: socket.socket, secured: bool) -> str:
    """Returns the URL of a socket, with its actual port."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secured else 'http'}://{shown}:{port}"


def make_tls(endpoint: Endpoint, who: str) -> ssl.SSLContext | None:
    """Returns the TLS context of an endpoint; ``None`` without TLS."""
    if not endpoint.secured:
        return None
    certificate = endpoint.certificate or make_certificate(endpoint.host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        secrets.identify(context, certificate.chain, certificate.key.reveal())
    except ValueError as error:
        raise SetupError(f"The tls of the {who}: {error}.", "Correct cert and key.") from None
    return context


# --- certificates ---------------------------------------------------------------------------------


def make_certificate(host: str) -> Certificate:
    """Returns a new certificate for this machine and the listening host, with its key.

    It protects against eavesdroppers on the network, as Numaflow's does. It does not identify the
    server, so clients have to accept it explicitly: ``curl -k``. It is kept in memory and created
    again with every run.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ebbflow")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        Secret(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode()
        ),
    )


def _names(host: str) -> list[GeneralName]:
    from cryptography.x509 import DNSName, IPAddress

    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), host))
    found: list[GeneralName] = []
    for name in filter(str.isascii, names):
        try:
            found.append(IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(DNSName(name))
    return found
