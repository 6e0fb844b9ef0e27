"""A request that is not taken, and what its sender is told: a status, a reason, when to come again.

A sender may try again after a 429 and after a 503. All other refusals are about the request itself.
"""

from __future__ import annotations

from collections.abc import Mapping

_RETRY_AFTER = 1


class Refusal(Exception):
    """A request that is not taken, and what its sender is told.

    ``retry`` is when to try again, in seconds. ``headers`` go with the answer. ``next_step`` is for
    people: what to do about it.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        retry: int | None = None,
        headers: Mapping[str, str] | None = None,
        next_step: str = "",
    ) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.next_step = next_step
        self.headers = dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)


def too_many(reason: str) -> Refusal:
    """Returns a 429: there is no room at the moment, and the sender is to come again."""
    return Refusal(429, reason, retry=_RETRY_AFTER)


def unavailable(reason: str) -> Refusal:
    """Returns a 503: the server cannot do it at the moment, and the sender is to come again."""
    return Refusal(503, reason, retry=_RETRY_AFTER)
