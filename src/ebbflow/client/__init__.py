"""Clients for pipelines that serve requests: ``Client``, and ``AsyncClient`` for asyncio.

    with Client("http://localhost:8080") as client:
        price = client.ask({"order": 7}).json()

The client chooses the id of each request, so no request is processed twice: after a lost connection
the client looks for the request by its id, and sends it again only if the server does not have it.
If it cannot find out, the error has the id. This package also exports the errors. It needs the
extra ``client``, and neither Spark nor NATS. Programs import it; nothing in Ebbflow does. Start
with ``protocol``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbflow.connectors.base import require_extra
from ebbflow.domain.errors import (
    AnswerPending,
    RequestError,
    RequestFailed,
    RequestInDoubt,
    RequestRefused,
    UnknownRequest,
)

if TYPE_CHECKING:
    from ebbflow.accounts.completion import RequestFailure, RequestStep
    from ebbflow.client.asynchronous import AsyncClient
    from ebbflow.client.blocking import Client
    from ebbflow.client.protocol import Answered, RequestStatus

__all__ = [
    "AnswerPending",
    "Answered",
    "AsyncClient",
    "Client",
    "RequestError",
    "RequestFailed",
    "RequestFailure",
    "RequestInDoubt",
    "RequestRefused",
    "RequestStatus",
    "RequestStep",
    "UnknownRequest",
]

_IMPORTED_WHEN_USED = {
    "Answered": "ebbflow.client.protocol",
    "AsyncClient": "ebbflow.client.asynchronous",
    "Client": "ebbflow.client.blocking",
    "RequestFailure": "ebbflow.accounts.completion",
    "RequestStatus": "ebbflow.client.protocol",
    "RequestStep": "ebbflow.accounts.completion",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used; ``SetupError`` if the extra is missing."""
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("The client", "client", "httpx")
    value = getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    globals()[name] = value
    return value
