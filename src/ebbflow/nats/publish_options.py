"""How hard a publisher tries. Values that make no sense are refused when the options are made."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypedDict

from ebbflow.nats.publish import PublishRetry

DEFAULT_ACK_WAIT = 5.0


class OptionNames(TypedDict, total=False):
    """The options by name, as a call takes them."""

    retry_wait: float
    retry_attempts: int
    ack_wait: float | None
    deadline: datetime | None
    attempt_timeout: float
    wait_for_room: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """When to send a message again and when to give up. Times are in seconds.

    ``retry_attempts`` is how often a message is sent again: 2 means three times in all, 0 once,
    -1 until the deadline. ``retry_wait`` is the wait after "no responders". ``ack_wait`` bounds the
    whole call (5 s); ``deadline`` does the same by a time of day. ``attempt_timeout`` is how long
    one attempt waits for an answer before the message is sent again; the last attempt waits for as
    long as there is time. ``wait_for_room`` waits for a full stream instead of ``BufferFull``.
    """

    retry_wait: float = 0.25
    retry_attempts: int = 2
    ack_wait: float | None = None
    deadline: datetime | None = None
    attempt_timeout: float = 1.0
    wait_for_room: bool = False

    def __post_init__(self) -> None:
        _check_seconds("retry_wait", self.retry_wait)
        _check_seconds("attempt_timeout", self.attempt_timeout)
        if self.ack_wait is not None:
            _check_seconds("ack_wait", self.ack_wait, most=math.inf)
        _check_attempts(self.retry_attempts)
        _check_deadline(self.deadline)
        if self.ack_wait is not None and self.deadline is not None:
            raise ValueError("ack_wait and deadline both bound the call; give one of them")
        if not isinstance(self.wait_for_room, bool):
            raise ValueError(f"wait_for_room must be True or False, not {self.wait_for_room!r}")

    def changed(self, options: OptionNames) -> PublishOptions:
        """These options with others in their place; a new bound replaces the old one."""
        if not options:
            return self
        bounded = "ack_wait" in options or "deadline" in options
        unbound: OptionNames = {"ack_wait": None, "deadline": None} if bounded else {}
        changes: OptionNames = {**unbound, **options}
        return replace(self, **changes)

    def retry(self) -> PublishRetry:
        """What they mean for a call that begins now."""
        if self.deadline is not None:
            ack_wait = (self.deadline - datetime.now(UTC)).total_seconds()
        else:
            ack_wait = DEFAULT_ACK_WAIT if self.ack_wait is None else self.ack_wait
        return PublishRetry(
            wait=self.retry_wait,
            attempts=self.retry_attempts,
            ack_wait=ack_wait,
            attempt_timeout=self.attempt_timeout,
            until_room=self.wait_for_room,
        )


def _check_seconds(name: str, value: object, most: float = sys.float_info.max) -> None:
    # Written so that nan, which is neither above nor below anything, is refused.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")


def _check_attempts(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < -1:
        raise ValueError(
            "retry_attempts must be a whole number from 0, or -1 to go on until the deadline, "
            f"not {value!r}"
        )


def _check_deadline(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ValueError(f"deadline must be a datetime with a time zone, not {value!r}")
