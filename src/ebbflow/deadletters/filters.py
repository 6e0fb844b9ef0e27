"""Dead letters as they are stored, filters that choose some of them, and their form for programs.

A search may read a hundred thousand dead letters to find a few. So a ``LetterRecord`` parses only
the facts that a filter needs, from the raw headers. ``describe_letter`` returns one JSON object,
with nothing that JSON cannot represent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from ebbflow.domain.message import json_bytes
from ebbflow.domain.spelling import named_fields
from ebbflow.engine.causes import are_alike
from ebbflow.engine.dead_letter import HISTORY, PREFIX, REPLAYS, Letter, describe_cause
from ebbflow.nats.stored import StoredMessage, StoredPage
from ebbflow.nats.wire import write_headers

_NEVER = "0001-01-01T00:00:00+00:00"
_SEARCHED = ("Id", "Reason", "Error", "Keys", "Headers")
_BULKY = ("value", "traceback", "headers", "metadata", "history")
_FIRST = "\r\n" + PREFIX


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter and its number in the dead-letter stream."""

    number: int
    letter: Letter


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """A message of the dead-letter stream: its number, its raw headers, its payload."""

    number: int
    block: bytes
    payload: bytes

    def fact(self, name: str, absent: Any = None) -> Any:
        """Returns a fact of the dead letter by its name in the headers; ``absent`` if it has none.

        A message in the stream that is not a dead letter has no facts, so it matches no filter.
        """
        mark = f"{_FIRST}{name}: ".encode()
        start = self.block.find(mark)
        if start < 0:
            return absent
        start += len(mark)
        try:
            return json.loads(self.block[start : self.block.index(b"\r\n", start)])
        except ValueError:
            return absent

    def to_letter(self) -> StoredLetter:
        """Returns the whole; ``KeyError`` or ``ValueError`` if this is not a dead letter."""
        return StoredLetter(self.number, Letter.from_block(self.payload, self.block))

    @property
    def is_letter(self) -> bool:
        """``False`` if something else was put into the stream."""
        try:
            self.to_letter()
        except (KeyError, ValueError, TypeError):
            return False
        return True


def records_of(page: StoredPage) -> list[LetterRecord]:
    """Returns the records of a page, in its order."""
    parcel = page.parcel
    return [
        LetterRecord(number, parcel.block(row), parcel.payload(row))
        for row, number in enumerate(page.seqs)
    ]


def record_of(message: StoredMessage) -> LetterRecord:
    """Returns the record of a single message."""
    return LetterRecord(message.seq, write_headers(message.headers), message.payload)


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Chooses dead letters: those that match every field that is set.

    ``vertex`` and ``id`` must be equal. ``reason``, ``error`` and ``key`` must be contained in the
    dead letter's, ignoring case; ``key`` in one of its keys. ``cause`` matches similar dead
    letters: reason and error differ only in numbers, ids and quoted values.
    ``header`` is the name of a header, or ``name=value``. ``text`` must be contained in the value,
    or in id, reason, error, keys or headers. ``since`` and ``until`` bound the time when the
    message died: from ``since`` on, before ``until``. ``up_to`` is the last number to include. A
    time without a zone is in UTC.
    """

    vertex: str | None = None
    reason: str | None = None
    cause: str | None = None
    error: str | None = None
    text: str | None = None
    id: str | None = None
    key: str | None = None
    header: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    up_to: int | None = None

    @property
    def is_everything(self) -> bool:
        """``True`` if every dead letter of the vertex matches, or every one up to a number."""
        plain = replace(self, vertex=None, up_to=None)
        return all(getattr(plain, field.name) is None for field in fields(plain))

    def matches(self, record: LetterRecord) -> bool:
        """Returns whether a dead letter matches."""
        # The cheapest checks first, and only those of fields that are set.
        return (
            (self.up_to is None or record.number <= self.up_to)
            and (self.vertex is None or record.fact("Vertex") == self.vertex)
            and (self.id is None or record.fact("Id") == self.id)
            and (self.reason is None or _contains(record.fact("Reason", ""), self.reason))
            and (self.error is None or _contains(record.fact("Error", ""), self.error))
            and self._has_cause(record)
            and self._has_key(record)
            and self._has_header(record)
            and self._is_in_time(record)
            and (self.text is None or _is_in(record, self.text))
        )

    def _has_cause(self, record: LetterRecord) -> bool:
        if self.cause is None:
            return True
        text = describe_cause(record.fact("Reason", ""), record.fact("Error"))
        return are_alike(text, self.cause)

    def _has_key(self, record: LetterRecord) -> bool:
        wanted = self.key
        return wanted is None or any(_contains(key, wanted) for key in record.fact("Keys", ()))

    def _has_header(self, record: LetterRecord) -> bool:
        if self.header is None:
            return True
        name, equals, value = self.header.partition("=")
        headers = record.fact("Headers", {})
        return name in headers and (not equals or headers[name] == value)

    def _is_in_time(self, record: LetterRecord) -> bool:
        if self.since is None and self.until is None:
            return True
        died = datetime.fromisoformat(record.fact("Last-Seen", _NEVER))
        return (self.since is None or died >= _in_utc(self.since)) and (
            self.until is None or died < _in_utc(self.until)
        )


def _in_utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _contains(text: str, wanted: str) -> bool:
    return wanted.casefold() in text.casefold()


def _is_in(record: LetterRecord, wanted: str) -> bool:
    if wanted.isascii():
        is_in_value = wanted.lower().encode() in record.payload.lower()
    else:
        is_in_value = _contains(record.payload.decode("utf-8", "replace"), wanted)
    return is_in_value or any(_contains(_flatten(record.fact(n, "")), wanted) for n in _SEARCHED)


def _flatten(fact: str | list[str] | dict[str, str]) -> str:
    if isinstance(fact, dict):
        return "\n".join(f"{name}={value}" for name, value in fact.items())
    return fact if isinstance(fact, str) else "\n".join(fact)


def describe_letter(stored: StoredLetter, whole: bool = True) -> dict[str, Any]:
    """Returns the facts of a dead letter; bytes that are not text become ``{"base64": …}``.

    Without ``whole``, large facts are left out: value, traceback, headers, metadata, history.
    """
    letter = stored.letter
    facts: dict[str, Any] = {"number": stored.number}
    facts |= {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    facts |= {name: _time(facts[name]) for name in ("first_seen", "last_seen", "event_time")}
    facts["why"] = describe_cause(letter.reason, letter.error)
    facts["value"] = json_bytes(letter.value)
    facts["headers"] = own_headers(stored)
    facts["metadata"] = {
        group: {key: json_bytes(value) for key, value in entries.items()}
        for group, entries in letter.metadata.items()
    }
    facts["replays"] = letter.replays
    facts["history"] = [death.to_json() for death in letter.history]
    for name in () if whole else _BULKY:
        del facts[name]
    return facts


def own_headers(stored: StoredLetter) -> dict[str, str]:
    """Returns the headers of the message, without those that a replay has added."""
    headers = stored.letter.headers
    return {name: value for name, value in headers.items() if name not in (REPLAYS, HISTORY)}


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
