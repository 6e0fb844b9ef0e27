"""Checks messages that user code returns: types, sizes, times, and what frames can hold.

A message that breaks a rule is an error of its input alone. So all messages are checked before any
output of the input is forwarded: later, a message that no frame can hold would fail the whole
chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import ContractViolation, MessageTooLarge
from ebbflow.domain.message import Message, Metadata, NackOptions, Signal, Status
from ebbflow.engine.frames import TIME

# Iterable, but never a list of messages; an empty one must not pass for "nothing to forward".
NOT_MESSAGES = (str, bytes, bytearray, memoryview, Mapping)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one chunk of a vertex.

    ``policy`` says how often an input is redelivered after an exception, ``largest`` is the most
    bytes of a message. ``allowed`` are the statuses that the current sink may respond with besides
    OK, FAILURE and NACK. With ``has_fallback`` an input that is out of deliveries or retries goes
    to the fallback sink instead of the dead letters. In an ``ordered`` vertex no row overtakes an
    input that must be redelivered. ``secondary`` names the current sink, unless it is the primary.
    """

    vertex: str
    policy: Backoff
    largest: int
    allowed: frozenset[Status] = frozenset()
    has_fallback: bool = False
    ordered: bool = False
    secondary: str | None = None


def check_message(message: Message, rules: Rules) -> None:
    """Raises unless frames can hold the message and the vertex may forward it."""
    if not isinstance(message, Message):
        raise ContractViolation(
            rules.vertex,
            f"returned {type(message).__name__} where a Message belongs",
            fix="Return Message(value), a list of them, or None to drop the input.",
        )
    if not isinstance(message.value, bytes):
        raise ContractViolation(
            rules.vertex,
            f"returned a Message whose value is {type(message.value).__name__}, not bytes",
            fix="Encode it first, for example with json.dumps(...).encode().",
        )
    size = len(message.value)
    if message.keys is not None:
        size += check_keys(message.keys, rules)
    if message.metadata is not None:
        size += _check_metadata(message.metadata, rules.vertex)
    if size > rules.largest:
        raise MessageTooLarge(size, rules.largest)
    if message.tags:
        _check_texts("tags", message.tags, rules.vertex)
    if message.event_time is not None:
        _check_time(message.event_time, rules.vertex)
    if message.signal is not None:
        _check_signal(message, rules.vertex)


def check_keys(keys: Sequence[str], rules: Rules) -> int:
    """Returns the size of the keys; raises unless they are strings that frames can hold."""
    return _check_texts("keys", keys, rules.vertex)


def check_on_success(message: Message, rules: Rules) -> None:
    """Raises unless the on-success sink can take this message."""
    check_message(message, rules)
    if message.signal is not None:
        raise ContractViolation(
            rules.vertex,
            f"answered ON_SUCCESS with a message to {message.signal.value}",
            fix="Give Message(value), or no message to pass on the original.",
        )


def _check_time(event_time: datetime, vertex: str) -> None:
    if not isinstance(event_time, datetime):
        raise ContractViolation(
            vertex,
            f"returned an event_time of type {type(event_time).__name__}",
            fix="Give a datetime with a time zone.",
        )
    pa.scalar(event_time, TIME).as_py()  # raises for times out of range


def _check_metadata(metadata: Metadata, vertex: str) -> int:
    """Returns the size of the metadata."""
    groups: list[Any] = list(metadata.values()) if isinstance(metadata, Mapping) else [None]
    mapped = all(isinstance(entries, Mapping) for entries in groups)
    texts: list[Any] = [*metadata, *(k for e in groups for k in e)] if mapped else [None]
    values = [value for entries in groups for value in entries.values()] if mapped else []
    if {type(text) for text in texts} - {str} or {type(value) for value in values} - {bytes}:
        raise ContractViolation(
            vertex,
            f"returned a Message whose metadata is {metadata!r:.80}",
            fix="Give {group: {key: bytes}}.",
        )
    return len("".join(texts).encode()) + sum(map(len, values))


def _check_signal(message: Message, vertex: str) -> None:
    if not isinstance(message.signal, Signal):
        raise ContractViolation(
            vertex,
            f"returned a Message whose signal is {message.signal!r:.80}",
            fix="Make it with Message.to_drop(), .to_nack() or .to_fail().",
        )
    if not isinstance(message.error, str | None):
        raise ContractViolation(
            vertex,
            f"failed with an error of type {type(message.error).__name__}",
            fix="Give the error as text: Message.to_fail('what went wrong').",
        )
    if not isinstance(message.nack_options, NackOptions | None):
        raise ContractViolation(
            vertex,
            f"nacked with options of type {type(message.nack_options).__name__}",
            fix="Give NackOptions(delay=..., max_deliveries=..., reason=...).",
        )


def _check_texts(what: str, texts: Sequence[str], vertex: str) -> int:
    """Returns the total size of the strings."""
    if type(texts) is list or type(texts) is tuple:
        try:
            return len("".join(texts).encode())
        except TypeError:
            pass  # one of them is not text
    # A collection, because an iterator would be exhausted afterwards.
    if (
        isinstance(texts, str)
        or not isinstance(texts, Collection)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise ContractViolation(
            vertex,
            f"returned a Message whose {what} are {texts!r:.80}",
            fix=f"Give {what} as a list of strings.",
        )
    # Encoding raises for text that no frame could hold, while only one message is affected.
    return len("".join(texts).encode())
