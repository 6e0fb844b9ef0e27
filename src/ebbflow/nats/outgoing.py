"""What a caller gives a publisher: a message, and how hard to try.

What JetStream could not take and options that make no sense are refused when they are made.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypedDict
from uuid import uuid4

from ebbflow.nats.publish import MSG_ID, PublishRetry

DEFAULT_ACK_WAIT = 5.0
# A name between dots may hold * and > but not be one: that would be a pattern, not a subject.
_NAME = r"(?![*>](?:\.|\Z))[^\s.\x00-\x1f\x7f]+"
_SUBJECT = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message. Its id is made up when none is given, in ``headers`` or as ``msg_id``.

    It is the same message however often it is published: within the duplicate window of its stream
    (two minutes, if the stream does not say otherwise) it is stored once. The headers are copied.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None
    msg_id: str | None = None

    def __post_init__(self) -> None:
        check_subject(self.subject)
        if not isinstance(self.data, bytes):
            raise ValueError(f"data must be bytes, not {type(self.data).__name__}")
        headers = _check_headers(self.headers)
        header = headers.get(MSG_ID)
        if header is not None and self.msg_id not in (None, header):
            raise ValueError(f"msg_id is {self.msg_id!r}, but the header {MSG_ID} is {header!r}")
        msg_id = _check_id(self.msg_id if header is None else header)
        object.__setattr__(self, "msg_id", msg_id)
        object.__setattr__(self, "headers", MappingProxyType({**headers, MSG_ID: msg_id}))

    @classmethod
    def of(cls, message: Outgoing | tuple[str, bytes]) -> Outgoing:
        """Returns the message that is meant, be it only a subject and its data."""
        if isinstance(message, cls):
            return message
        if not isinstance(message, tuple) or len(message) != 2:
            kind = type(message).__name__
            raise ValueError(f"a message is an Outgoing or a pair (subject, data), not {kind}")
        return cls(*message)


def check_subject(subject: object, name: str = "subject") -> None:
    """Refuses what no message can be sent to; ``name`` is what it is called in the error."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject) or _CONTROL.search(subject):
        raise ValueError(
            f"{name} must be names joined by dots, without spaces, * or >, not {subject!r}"
        )


def _check_headers(headers: object) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if not isinstance(value, str) or _CONTROL.search(value):
            raise ValueError(f"header {name} must be text on one line, not {value!r}")
    return dict(headers)


def _check_id(msg_id: object) -> str:
    if msg_id is None:
        return uuid4().hex
    if not isinstance(msg_id, str) or not msg_id.strip() or _CONTROL.search(msg_id):
        raise ValueError(f"msg_id must be text on one line, not {msg_id!r}")
    return msg_id


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

    def with_changes(self, options: OptionNames) -> PublishOptions:
        """Returns these options with others in their place; a new bound replaces the old one."""
        if not options:
            return self
        bounded = "ack_wait" in options or "deadline" in options
        unbound: OptionNames = {"ack_wait": None, "deadline": None} if bounded else {}
        changes: OptionNames = {**unbound, **options}
        return replace(self, **changes)

    def to_retry(self) -> PublishRetry:
        """Returns what they mean for a call that begins now."""
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
