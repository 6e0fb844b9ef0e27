"""What callers are told about a request: its results, how far it is, or why it failed.

The body of an answer is the results, one behind the other, in their order. Two headers tell them
apart: their number and the length of each in bytes.

Results are bytes, and their type is seen by looking. One result that begins and ends as a JSON
object or array does is ``application/json``, other text in UTF-8 is ``text/plain``, and anything
else ``application/octet-stream``. Browsers are told not to guess further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ebbflow.connectors.serving.served_request import ServedRequest
from ebbflow.web.exchange import JSON, Exchange
from ebbflow.web.refusal import Refusal

LENGTH = "Numaflow-Array-Len"
LENGTHS = "Numaflow-Array-Index-Len"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
_BRACKETS = {b"{": b"}", b"[": b"]"}


def answer_request(exchange: Exchange, request: ServedRequest) -> None:
    """Answers with the results of a request that has ended, or with its failure."""
    if request.status == "failed":
        exchange.respond(500, describe_failure(request))
    elif not request.answers:
        exchange.respond(204, b"", {LENGTH: "0"})
    else:
        _answer_results(exchange, [answer.payload for answer in request.answers])


def _answer_results(exchange: Exchange, results: Sequence[bytes]) -> None:
    headers = {
        LENGTH: str(len(results)),
        LENGTHS: ",".join([str(len(result)) for result in results]),
        "X-Content-Type-Options": "nosniff",
    }
    body = results[0] if len(results) == 1 else b"".join(results)
    exchange.respond(200, body, headers, choose_type(results))


def choose_type(results: Sequence[bytes]) -> str:
    """Returns the content type of results, of which there is one at least."""
    if not all(map(is_text, results)):
        return BINARY
    if len(results) == 1:
        result = results[0].strip()
        if result[-1:] == _BRACKETS.get(result[:1]):
            return JSON
    return TEXT


def is_text(result: bytes) -> bool:
    """Returns whether it is UTF-8."""
    if result.isascii():
        return True
    try:
        result.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- JSON ---------------------------------------------------------------------------------------


def encode_json(value: Any) -> bytes:
    """Returns it in few bytes."""
    return json.dumps(value, separators=(",", ":")).encode()


def describe_problem(refusal: Refusal, **facts: Any) -> bytes:
    """Returns the body of a refusal, in the words of Numaflow; ``facts`` stand beside them."""
    return encode_json(_problem(refusal.reason, refusal.status, facts))


def describe_failure(request: ServedRequest) -> bytes:
    """Returns the body of the answer to a request that has failed."""
    failure = request.failure
    facts: dict[str, Any] = {"id": request.id}
    if failure is None:
        return encode_json(_problem("the request has failed", 500, facts))
    facts |= {"vertex": failure.vertex, "reason": failure.reason, "error": failure.error}
    message = f"the request has failed at {failure.vertex}: {failure.reason}"
    return encode_json(_problem(message, 500, facts))


def describe_status(request: ServedRequest) -> bytes:
    """Returns how far a request is, and its way."""
    return encode_json(request.describe())


def describe_acceptance(request: str) -> bytes:
    """Returns the body of the answer to a request that is accepted."""
    return encode_json(_problem("Successfully published message", 200, {"id": request}))


def _problem(message: str, code: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {"message": message, "code": code, "timestamp": now, **facts}
