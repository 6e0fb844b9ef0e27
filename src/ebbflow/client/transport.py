"""Translates steps of a conversation to and from httpx, for both clients."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from ebbflow.client.protocol import NoReply, ServerCall, ServerReply
from ebbflow.domain import secrets
from ebbflow.domain.durations import Duration
from ebbflow.domain.errors import SetupError

CONNECTIONS = 100
TIMEOUT: Duration = "2m"
ID_HEADER = "X-Numaflow-Id"

_CONNECT = 10.0
_TRANSIT = 1.0
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
FAILURES = (httpx.TransportError, httpx.DecodingError)
"""Errors of a connection. Any other error is a mistake of the caller."""


def connection_options(
    url: str, token: str | None, ca: str | os.PathLike[str] | None, verify: bool, connections: int
) -> dict[str, Any]:
    """Returns the arguments for httpx's client; ``ValueError`` for a URL that it cannot use."""
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not a server URL; write for example http://localhost:8080")
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {token}"} if token else {},
        # Without TLS there is no certificate to check, and reading the trusted ones takes time.
        "verify": _trusting(ca) if verify and scheme == "https" else False,
        "limits": httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    }


def _trusting(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    if ca is None:
        return secrets.trusting(None)
    try:
        return secrets.trusting(Path(ca).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError) as problem:
        raise SetupError(f"The client cannot use the certificate {ca}: {problem}.") from None


def arguments_of(call: ServerCall) -> dict[str, Any]:
    """Returns a call as arguments for httpx's ``build_request``.

    The server has as much time as the caller. The timeout here is a bit longer, so that the
    server's own timeout reply still arrives.
    """
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query,
        "headers": call.headers,
        "content": call.body,
        "timeout": httpx.Timeout(call.wait + _TRANSIT, connect=min(call.wait, _CONNECT)),
    }


def reply_of(response: httpx.Response, body: bytes = b"") -> ServerReply:
    """Returns the server's reply; ``body`` is the part that has been read."""
    return ServerReply(response.status_code, dict(response.headers), body)


def no_reply(error: Exception) -> NoReply:
    """Returns a connection error as ``NoReply``."""
    problem = str(error) or type(error).__name__
    return NoReply(problem, not isinstance(error, _NOTHING_SENT))
