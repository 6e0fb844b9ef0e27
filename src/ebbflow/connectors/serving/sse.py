"""Answers as events, as they come: Server-Sent Events.

An answer that is text is an event of the usual kind. One that is not, or that has carriage returns,
which the format would change, is an event ``base64``. The last event is ``done`` or ``error``, with
JSON. The id of an event counts up as answers are stored, so a client that comes again with the last
id that it has seen gets the rest.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

from ebbflow.connectors.serving.results import describe_failure, encode_json, is_text
from ebbflow.connectors.serving.served_request import ServedRequest
from ebbflow.engine.answers import Answer
from ebbflow.web.exchange import Exchange


def format_answer(answer: Answer) -> bytes:
    """Returns the event of one answer."""
    payload = answer.payload
    if b"\r" in payload or not is_text(payload):
        encoded = base64.b64encode(payload)
        return b"id: %d\nevent: base64\ndata: %b\n\n" % (answer.arrived, encoded)
    return b"id: %d\ndata: %b\n\n" % (answer.arrived, payload.replace(b"\n", b"\ndata: "))


def format_end(request: ServedRequest, answers: int) -> bytes:
    """Returns the last event of a request that has ended with so many answers."""
    if request.status == "failed":
        return format_error(describe_failure(request))
    facts = {"id": request.id, "status": request.status, "answers": answers}
    return b"event: done\ndata: %b\n\n" % encode_json(facts)


def format_error(problem: bytes) -> bytes:
    """Returns the last event of a stream that ends with a problem, which is JSON."""
    return b"event: error\ndata: %b\n\n" % problem


async def stream_answers(
    exchange: Exchange, events: AsyncIterator[Answer | ServedRequest], after: int
) -> None:
    """Sends what comes until the request has ended, without answers that came until ``after``."""
    answers = 0
    async for event in events:
        if isinstance(event, ServedRequest):
            exchange.put(format_end(event, answers))
            return
        answers += 1
        if event.arrived > after:
            await exchange.send(format_answer(event))
