"""Answers of the page: JSON, files and texts, with the headers that keep a browser careful."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbflow.web.exchange import JSON, Exchange
from ebbflow.web.refusal import Refusal

POLICY = (
    "default-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
CAREFUL = (
    f"content-security-policy: {POLICY}\r\n"
    "x-content-type-options: nosniff\r\n"
    "referrer-policy: no-referrer\r\n"
    "cross-origin-resource-policy: same-origin\r\n"
).encode()
"""The header lines of every answer."""

_NOT_KEPT = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class PageReply:
    """An answer as a whole."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=lambda: _NOT_KEPT)

    @classmethod
    def of(cls, value: Any, status: int = 200) -> PageReply:
        """Returns a value as JSON."""
        return cls(encode(value), status)

    def send(self, exchange: Exchange) -> None:
        """Answers with it."""
        exchange.respond(self.status, self.body, self.headers, self.content_type)


def encode(value: Any) -> bytes:
    """Returns it as JSON in few bytes."""
    return json.dumps(value, separators=(",", ":")).encode()


def describe_error(refusal: Refusal) -> bytes:
    """Returns the body of a refusal: what is wrong, and what to do next."""
    return encode({"error": refusal.reason, "next_step": refusal.next_step})
