"""What a sink says about a message that its target cannot take at the moment.

Trouble that is over by itself, an outage or a full disk, must not make dead letters: the message
comes again, after longer and longer waits, unless its sink has a ``retryStrategy``, which then says
what to do.
"""

from __future__ import annotations

from ebbflow.message import Datum, Response
from ebbflow.options import NackOptions

_FIRST_WAIT, _LONGEST_WAIT = 1_000, 30_000


def not_now(datum: Datum, why: str, *, retried: bool) -> Response:
    """The answer for a message that may be taken later; ``retried`` if there is a strategy."""
    if retried:
        return Response.failure(datum.id, why)
    delay = min(_FIRST_WAIT << min(datum.deliveries - 1, 10), _LONGEST_WAIT)
    return Response.nack(datum.id, NackOptions(delay, reason=why))
