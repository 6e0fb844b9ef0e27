"""What a client sends: requests of the caller as calls of the server's endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbflow.client.steps import ServerCall
from ebbflow.domain.message import make_request_id

_KEYS = "x-numaflow-keys"
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """One request of the caller, under the id that it keeps however often it is sent."""

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, value: Any, id: str | None, keys: Iterable[str], headers: Mapping[str, str]
    ) -> NamedRequest:
        """Returns the request for a value: bytes, text, or anything that JSON can say."""
        body, kind = _encode(value)
        sent = {"content-type": kind, **headers}
        named = _header_of(keys)
        return cls(id or make_request_id(), body, {**sent, _KEYS: named} if named else sent)


def _encode(value: Any) -> tuple[bytes, str]:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), _BINARY
    if isinstance(value, str):
        return value.encode(), _TEXT
    return json.dumps(value, ensure_ascii=False).encode(), _JSON


def _header_of(keys: Iterable[str]) -> str:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if odd := next((name for name in names if "," in name), None):
        raise ValueError(f"the key {odd!r} has a comma, which a header of keys cannot hold")
    return ",".join(names)


@dataclass(frozen=True, slots=True)
class ServerPaths:
    """The calls of a serving pipeline. ``id_header`` is the one its spec names."""

    id_header: str

    def post(self, request: NamedRequest, way: str, wait: float) -> ServerCall:
        """Returns the call that hands a request in, the ``sync`` or the ``async`` way."""
        query = {"timeout": f"{wait:.3f}"} if way == "sync" else {}
        return ServerCall(
            "POST", f"/v1/process/{way}", wait, query, self._headers_of(request), request.body
        )

    def follow(self, request: NamedRequest, wait: float) -> ServerCall:
        """Returns the call that hands a request in and follows its results."""
        path, headers = "/v1/process/sse", self._headers_of(request)
        return ServerCall("POST", path, wait, {}, headers, request.body, follows=True)

    def resume(self, id: str, last_event: str, wait: float) -> ServerCall:
        """Returns the call that follows the results of a request, behind the last one seen."""
        headers = {"last-event-id": last_event} if last_event else {}
        return ServerCall("GET", "/v1/process/sse", wait, {"id": id}, headers, follows=True)

    def look(self, id: str, what: str, wait: float) -> ServerCall:
        """Returns the call that looks for a request: ``fetch`` its results, or its ``status``."""
        return ServerCall("GET", f"/v1/process/{what}", wait, {"id": id})

    def _headers_of(self, request: NamedRequest) -> dict[str, str]:
        return {**request.headers, self.id_header: request.id}
