"""A socket to listen on, and its TLS; what keeps it from listening is told in words.

``who`` is who is to listen, for errors: "http source in".
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from typing import Any

from ebbflow.domain import secrets
from ebbflow.domain.errors import SetupError
from ebbflow.web.endpoint import Endpoint

BACKLOG = 1_024


def is_loopback(host: str, who: str) -> bool:
    """Returns whether only this machine can reach it; ``SetupError`` when there is no such host."""
    addresses = _resolve(host, 0, who)
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in addresses)


def bind(
    endpoint: Endpoint, who: str, advice: str, *, listens: bool = True
) -> socket.socket | None:
    """Returns a socket that listens; ``SetupError`` with the ``advice`` when that is not possible.

    ``None`` if the endpoint is optional and somebody else has its port. One that does not listen
    yet takes the port from nobody, and finds out whether somebody has it.
    """
    family, address = _resolve(endpoint.host, endpoint.port, who)[0]
    # Named as TCP, or asyncio would let each answer wait for the client to acknowledge its head.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # A port is taken as soon as somebody listens, not before.
        if listens:
            bound.listen(BACKLOG)
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
            f"The {who} is to listen on {host}, which is no address of this machine: "
            f"{error.strerror}.",
            "Correct its host.",
        ) from None
    return [(family, address) for family, _, _, _, address in addresses]


def url_of(bound: socket.socket, secured: bool) -> str:
    """Returns the address, with the port that the system gave."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secured else 'http'}://{shown}:{port}"


def make_tls(endpoint: Endpoint, who: str) -> ssl.SSLContext | None:
    """Returns the TLS of an endpoint; ``None`` if it has none."""
    if not endpoint.secured:
        return None
    from ebbflow.web.self_signed import make_certificate

    certificate = endpoint.certificate or make_certificate(endpoint.host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        secrets.identify(context, certificate.chain, certificate.key.reveal())
    except ValueError as error:
        raise SetupError(f"The tls of the {who}: {error}.", "Correct cert and key.") from None
    return context
