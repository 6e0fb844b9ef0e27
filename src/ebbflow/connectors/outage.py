"""The answer of built-in sinks for a message whose target is away at the moment.

Trouble that is over by itself, an outage or a full disk, is not the message's fault: the vertex
waits for the target. A sink with a ``retryStrategy`` reports a failure instead, because the
strategy then says what to do, for example to use the fallback sink.
"""

from __future__ import annotations

from ebbflow.message import Datum, Response


def away(datum: Datum, why: str, *, retried: bool) -> Response:
    """Returns the answer for a message whose target is away; ``retried`` with a retry strategy."""
    return Response.failure(datum.id, why) if retried else Response.unavailable(datum.id, why)
