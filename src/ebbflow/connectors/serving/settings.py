"""The settings of a serving source: plain data that the driver makes from a spec and keeps."""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.domain.secrets import Secret
from ebbflow.web.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How requests are taken in and answered. Times are in seconds.

    ``id_header`` is the header with the id of a request, as the spec writes it. A caller waits for
    ``request_timeout`` at most. ``cors`` are the origins whose pages may ask, ``*`` for all.
    ``read_timeout`` is for one request to arrive as a whole, ``ack_wait`` for JetStream to confirm
    it; ``in_flight`` requests at most are served at the same time, waiting callers included.
    """

    endpoints: tuple[Endpoint, ...]
    token: Secret | None = None
    id_header: str = "X-Numaflow-Id"
    request_timeout: float = 120.0
    cors: tuple[str, ...] = ()
    read_timeout: float = 10.0
    ack_wait: float = 5.0
    in_flight: int = 1_000
