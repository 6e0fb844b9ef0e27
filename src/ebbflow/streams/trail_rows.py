"""The trail: the outcome of every message of a pipeline that answers requests, as data.

A pipeline with a serving source publishes a trail frame for each chunk, as the last stage of
settling it. So the outputs and answers that a trail mentions are stored, and every row whose chunk
is done has a trail. A row may have several: a replay that decides differently adds its own, and
readers treat them as a set.

A frame is a JSON list of rows, compressed if it is long. An Arrow batch, like a frame of messages,
would take ten times as long to write and to read, because chunks of requests are small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from ebbflow.engine import frames
from ebbflow.engine.account import REDELIVERED, SENT
from ebbflow.engine.publications import Publication, Stage

_NOT_FINAL = frozenset({SENT, REDELIVERED})

_PLAIN, _PACKED = b"EBBT\x01\x00", b"EBBT\x01\x01"
_MARK_BYTES = 6
_WORTH_COMPRESSING = 4096
_CODEC = pa.Codec("lz4")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class SentTo(NamedTuple):
    """An output: the vertex it went to, and the id it has there."""

    to: str
    id: str


class TrailRow(NamedTuple):
    """The outcome of one delivery of a message at a vertex.

    ``outcome`` is sent, redelivered, done, dropped, fallback, served, on_success or dead_lettered.
    ``reason`` and ``error`` say why it was redelivered, dropped or dead-lettered, ``due`` when it
    is redelivered. ``answers`` is how many answers it has stored; with the user's own store, 1 if
    there is any.
    """

    request: str
    id: str
    at: datetime
    deliveries: int = 1
    outcome: str = "done"
    reason: str | None = None
    error: str | None = None
    due: datetime | None = None
    answers: int = 0
    sent: tuple[SentTo, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether the message has ended at the vertex."""
        return self.outcome not in _NOT_FINAL


def publish_trail(
    rows: Sequence[TrailRow], key: str, vertex: str, partition: int = 0
) -> Iterator[Publication]:
    """Yields frames of rows, as publications whose ids begin with the key of a chunk."""
    texts = [_write_row(row) for row in rows]
    start = 0
    for end in _split(texts):
        yield Publication(
            Stage.TRAIL,
            vertex,
            partition,
            f"{key}:trail:{_fingerprint(rows[start:end])}",
            _pack(texts[start:end]),
            # In order: after the end of a message, its earlier rows would arrive too late.
            ordered=True,
        )
        start = end


def _fingerprint(rows: Sequence[TrailRow]) -> str:
    """Returns a hash of the rows without times, so that a replay's equal rows are copies."""
    # With the outcomes and outputs, not the ids alone: a replay that decides differently has the
    # same ids, and if its trail were dropped as a copy, a request would stay open forever.
    texts = ((row.id, row.outcome, str(row.answers), *sum(row.sent, ())) for row in rows)
    return frames.fingerprint([text for own in texts for text in own])


def _write_row(row: TrailRow) -> str:
    at, due = _to_micros(row.at), row.due and _to_micros(row.due)
    return _encode([*row[:2], at, *row[3:7], due, row.answers, row.sent])


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _to_micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _split(texts: Sequence[str]) -> Iterator[int]:
    """Yields where frames end, so that each fits into a message."""
    size = 0
    for number, text in enumerate(texts):
        if size and size + len(text) > frames.MAX_BYTES:
            yield number
            size = 0
        size += len(text)
    if texts:
        yield len(texts)


def _pack(texts: Sequence[str]) -> bytes:
    payload = f"[{','.join(texts)}]".encode()
    if len(payload) <= _WORTH_COMPRESSING:
        return _PLAIN + payload
    size = len(payload).to_bytes(4, "big")
    return b"".join((_PACKED, size, _CODEC.compress(payload, asbytes=True)))


def read_trail(payload: bytes | memoryview) -> list[TrailRow]:
    """Returns the rows of a frame; ``ValueError`` if it is not a trail frame."""
    rows = json.loads(_unpack(bytes(payload)))
    return [_read_row(*facts) for facts in rows]


def _unpack(payload: bytes) -> bytes:
    mark, rest = payload[:_MARK_BYTES], payload[_MARK_BYTES:]
    if mark == _PLAIN:
        return rest
    if mark != _PACKED:
        raise ValueError(f"not a frame of a trail of version 1: starts with {mark!r}")
    unpacked: bytes = _CODEC.decompress(rest[4:], int.from_bytes(rest[:4], "big"), asbytes=True)
    return unpacked


def _read_row(
    request: str,
    message: str,
    at: int,
    deliveries: int,
    outcome: str,
    reason: str | None,
    error: str | None,
    due: int | None,
    answers: int,
    sent: list[list[str]],
) -> TrailRow:
    return TrailRow(
        request,
        message,
        _EPOCH + at * _MICROSECOND,
        deliveries,
        outcome,
        reason,
        error,
        None if due is None else _EPOCH + due * _MICROSECOND,
        answers,
        tuple(map(SentTo._make, sent)),
    )
