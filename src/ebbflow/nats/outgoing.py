"""A message to publish. What JetStream could not take as it is, is refused when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import uuid4

from ebbflow.nats.publish import MSG_ID

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
        headers = _checked(self.headers)
        given = headers.get(MSG_ID)
        if given is not None and self.msg_id not in (None, given):
            raise ValueError(f"msg_id is {self.msg_id!r}, but the header {MSG_ID} is {given!r}")
        msg_id = _check_id(self.msg_id if given is None else given)
        object.__setattr__(self, "msg_id", msg_id)
        object.__setattr__(self, "headers", MappingProxyType({**headers, MSG_ID: msg_id}))

    @classmethod
    def of(cls, message: Outgoing | tuple[str, bytes]) -> Outgoing:
        """The message that is meant, be it only a subject and its data."""
        if isinstance(message, cls):
            return message
        if not isinstance(message, tuple) or len(message) != 2:
            kind = type(message).__name__
            raise ValueError(f"a message is an Outgoing or a pair (subject, data), not {kind}")
        return cls(*message)


def check_subject(subject: object, name: str = "subject") -> None:
    """Refuse what no message can be sent to; ``name`` is what it is called in the error."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject) or _CONTROL.search(subject):
        raise ValueError(
            f"{name} must be names joined by dots, without spaces, * or >, not {subject!r}"
        )


def _checked(headers: object) -> dict[str, str]:
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
