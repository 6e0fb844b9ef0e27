"""The exceptions that mean that a system is down, and not that a message is bad.

These are ``Unavailable``, the connection and timeout errors of the standard library and of
well-known clients, PEP 249's ``OperationalError`` and ``InterfaceError``, and the errors that HTTP
clients raise for the responses 502, 503 and 504. ``OSError`` in general is not among them: a
missing file concerns only the message. Classes are recognised by name, so that none has to be
imported.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ebbflow.domain.errors import (
    BufferFull,
    JetStreamUnavailable,
    NoStreamResponse,
    PublishTimeout,
    Unavailable,
)

_TYPES = (
    ConnectionError,
    TimeoutError,
    socket.gaierror,
    socket.herror,
    Unavailable,
    JetStreamUnavailable,
    NoStreamResponse,
    PublishTimeout,
    BufferFull,
)
_NETWORK = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH})

WELL_KNOWN = {
    "aiohttp": ("ClientConnectionError",),
    "asyncpg": ("InterfaceError", "PostgresConnectionError", "OperatorInterventionError"),
    "azure.core": ("ServiceRequestError", "ServiceResponseError"),
    "botocore": ("HTTPClientError", "ConnectionError"),
    "cassandra": ("NoHostAvailable", "OperationTimedOut"),
    "clickhouse_driver": ("NetworkError", "SocketTimeoutError"),
    "elastic_transport": ("ConnectionError", "ConnectionTimeout"),
    "elasticsearch": ("ConnectionError", "ConnectionTimeout"),
    "google.api_core": ("ServiceUnavailable", "DeadlineExceeded", "RetryError"),
    "http.client": ("IncompleteRead",),
    "httpcore": ("NetworkError", "TimeoutException", "RemoteProtocolError"),
    "httpx": ("NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"),
    "kafka": ("KafkaConnectionError", "KafkaTimeoutError", "NoBrokersAvailable"),
    "nats": (
        "NoServersError",
        "ConnectionClosedError",
        "StaleConnectionError",
        "NoRespondersError",
        "ConnectionReconnectingError",
    ),
    "pika": ("AMQPConnectionError", "AMQPChannelError"),
    "pymongo": ("ConnectionFailure", "WTimeoutError"),
    "redis": ("ConnectionError", "TimeoutError"),
    "requests": ("ConnectionError", "Timeout", "ChunkedEncodingError"),
    "smtplib": ("SMTPServerDisconnected", "SMTPConnectError"),
    "ssl": ("SSLEOFError", "SSLZeroReturnError"),
    "urllib3": ("NewConnectionError", "MaxRetryError", "ProtocolError", "TimeoutError"),
}
"""Classes of well-known clients by package; they may be in any module of the package."""

_WELL_KNOWN = frozenset(
    f"{package}:{name}" for package, names in WELL_KNOWN.items() for name in names
)
# The PEP 249 base classes that such a class must have, or any program's own would count.
_PEP_249 = {"OperationalError": {"DatabaseError"}, "InterfaceError": {"Error", "DBAPIError"}}
_HTTP_DOWN = frozenset({502, 503, 504})
_GRPC_DOWN = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class SystemErrors:
    """Recognises errors of systems; ``more`` are names of further classes, as ``module:Class``."""

    more: frozenset[str] = frozenset()

    def means_down(self, error: BaseException) -> bool:
        """Returns whether the error, or a cause of it, means that a system is down."""
        return any(self._is_listed(cause) for cause in _causes(error))

    def _is_listed(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(self.means_down(member) for member in error.exceptions)
        if isinstance(error, _TYPES) or _is_network(error) or _is_pep_249(type(error)):
            return True
        return _is_refused_request(error) or any(map(self._is_named, _names(type(error))))

    def _is_named(self, name: str) -> bool:
        return name in _WELL_KNOWN or name in self.more


LISTED = SystemErrors()
"""The built-in list, without further classes."""


def retry_after(error: BaseException) -> int | None:
    """Returns the milliseconds to wait that the error itself asks for, if it does."""
    waits = (cause.retry_after for cause in _causes(error) if isinstance(cause, Unavailable))
    return next(waits, None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and its causes."""
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            return
        yield cause
        reason = getattr(cause, "reason", None)  # urllib keeps the cause there
        cause = cause.__cause__ or (reason if isinstance(reason, BaseException) else None)


def _is_network(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _NETWORK


def _is_pep_249(kind: type) -> bool:
    names = {cls.__name__ for cls in kind.__mro__}
    return any(name in names and names & roots for name, roots in _PEP_249.items())


def _names(kind: type) -> Iterator[str]:
    """Yields every name of the class and its bases: in their modules and in the parent packages."""
    for cls in kind.__mro__:
        module = cls.__module__
        while module:
            yield f"{module}:{cls.__qualname__}"
            module = module.rpartition(".")[0]


def _is_refused_request(error: BaseException) -> bool:
    """Returns whether it is the error of an HTTP or gRPC reply that says the server is down."""
    response = getattr(error, "response", None)
    status: Any = getattr(error, "code", None)
    statuses = [getattr(error, "status", None), getattr(response, "status_code", None), status]
    if any(type(code) is int and code in _HTTP_DOWN for code in statuses):
        return True
    if callable(status) and any(name == "grpc:RpcError" for name in _names(type(error))):
        return getattr(status(), "name", None) in _GRPC_DOWN
    return False


def named(classes: Iterable[str | type]) -> frozenset[str]:
    """Returns the names of classes as ``SystemErrors`` takes them; names stay as they are."""
    return frozenset(
        kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"
        for kind in classes
    )
