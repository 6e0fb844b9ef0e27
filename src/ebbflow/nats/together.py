"""Publishing several messages to one stream that are stored together, or not at all.

The server holds back what belongs to a batch until its last message has come, and then stores all
of it or refuses all of it. A condition on one of the messages is a condition on all of them. What a
process had sent when it was killed is forgotten, unless it was everything.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence

from ebbflow.domain.errors import EbbflowError
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import check_size
from ebbflow.nats.requests import Answer
from ebbflow.nats.wire import Publishes

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
"""The header that says which message must be the last one on the subject; 0 is for none."""
MOST = 1_000
"""The most messages that the server stores together."""

_BATCH, _PLACE, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_SILENCE = 5.0
# The condition is not met; or the server has lost sight of the batch, has too many of them, is
# without a leader or out of resources for the moment: nothing was stored then.
_NOT_NOW = frozenset({10071, 10164, 10176, 10210, 10211, 10008, 10023, 10163, 10167})

Addressed = tuple[str, Mapping[str, str], bytes]
"""A subject, headers and a payload."""


async def publish_together(client: SecuredClient, messages: Sequence[Addressed]) -> int | None:
    """Stores all messages in one stream and returns the sequence of the last one.

    ``None`` if they were not stored, or nobody can tell: whoever asks looks into the stream.
    ``MessageTooLarge`` before anything is sent, ``EbbflowError`` for what no other attempt mends.
    """
    batch = secrets.token_hex(16)
    rows = Publishes.of(
        (subject, {**headers, **_place_in(batch, place, len(messages))}, payload)
        for place, (subject, headers, payload) in enumerate(messages, 1)
    )
    for headers, payload in zip(rows.headers, rows.payloads, strict=True):
        check_size(client.max_payload, payload, headers)
    if not client.is_connected:
        return None
    answers = await client.request_all(rows, _SILENCE)
    for answer in answers[:-1]:
        _read(answer, messages)
    return _read(answers[-1], messages)


def _place_in(batch: str, place: int, last: int) -> dict[str, str]:
    headers = {_BATCH: batch, _PLACE: str(place)}
    return headers | {_COMMIT: "1"} if place == last else headers


def _read(answer: Answer, messages: Sequence[Addressed]) -> int | None:
    if not answer or isinstance(answer, int):  # the server confirms all but the last with nothing
        return None
    facts = json.loads(answer)
    error = facts.get("error")
    if error is None:
        return int(facts["seq"])
    if error.get("err_code") in _NOT_NOW:
        return None
    raise EbbflowError(
        f"NATS refused to store {len(messages)} messages on {messages[0][0]} together: "
        f"{error.get('description')} ({error.get('err_code')})."
    )
