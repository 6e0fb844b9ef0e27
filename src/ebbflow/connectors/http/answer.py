"""The answers to the HTTP sink's requests, read as outcomes of the messages in them. Pure.

A batch may be answered with a JSON array of ``{"id": …, "status": 503, "retry_after": 2}``, one
entry for each message; ``error`` may say why. Any other answer is for all messages alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from ebbflow.connectors.outage import away
from ebbflow.message import Datum, Response
from ebbflow.nacks import NackOptions

LONGEST_WAIT = 60 * 60.0
_AGAIN_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_AWAY = (
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_FIRST_WORDS = 200


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status, the seconds after which to come again if there are any, and the body.

    ``whole`` is false when the body was longer than what was read of it.
    """

    status: int
    wait: float | None = None
    body: bytes = b""
    whole: bool = True

    @property
    def words(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:_FIRST_WORDS]


def parse_retry_after(text: str | None, now: datetime) -> float | None:
    """Returns the seconds that a ``Retry-After`` asks for: a number, or a date from now on."""
    if text is None:
        return None
    try:
        return _bounded(float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = date if date.tzinfo else date.replace(tzinfo=UTC)
    return _bounded((at - now).total_seconds())


def _bounded(seconds: float) -> float | None:
    """Returns the wait, at most an hour; ``None`` for what is not a number."""
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_WAIT)


def decide(datum: Datum, answer: HttpAnswer, retried: bool) -> Response:
    """Returns the response for a message that the whole answer is about.

    ``retried`` says that the sink has a retry strategy.
    """
    return _response(datum, answer.status, answer.wait, answer.words, retried)


def decide_each(data: Sequence[Datum], answer: HttpAnswer, retried: bool) -> list[Response]:
    """Returns the responses for the messages of a batch."""
    if not 200 <= answer.status < 300:
        return [decide(datum, answer, retried) for datum in data]
    if not answer.whole:
        why = f"HTTP {answer.status}, with an answer too long to read"
        return [Response.failure(datum.id, why) for datum in data]
    entries = _entries(answer.body)
    if entries is None:
        return [Response.ok(datum.id) for datum in data]
    return [_entry(datum, entries.get(datum.id), retried) for datum in data]


def _entries(body: bytes) -> dict[Any, Mapping[str, Any]] | None:
    """Returns the entries by id; none when the answer is no array."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, list):
        return None
    entries = [entry for entry in answer if isinstance(entry, Mapping)]
    return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}


def _entry(datum: Datum, entry: Mapping[str, Any] | None, retried: bool) -> Response:
    status = entry.get("status") if entry is not None else None
    if entry is None or not isinstance(status, int):
        return Response.failure(datum.id, "the answer has no status for this message")
    wait = entry.get("retry_after")
    seconds = _bounded(float(wait)) if isinstance(wait, int | float) else None
    return _response(datum, status, seconds, str(entry.get("error") or ""), retried)


def _response(datum: Datum, status: int, wait: float | None, words: str, retried: bool) -> Response:
    if 200 <= status < 300:
        return Response.ok(datum.id)
    why = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if status in _AGAIN_LATER and wait is not None:
        return Response.nack(datum.id, NackOptions(wait * 1000, reason=why))
    if status in _AWAY:
        return away(datum, why, retried=retried)
    return Response.failure(datum.id, why)
