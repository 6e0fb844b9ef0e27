"""The code that is bound to the images of Numaflow's examples: maps, transformers, sinks, sources.

Most maps and all sinks take columns. Code that reads JSON or keeps counts is called with single
messages, so that one message on which it fails does not affect the others.

An output of an image has only the keys and metadata that it sets. An output of Ebbflow's own code
would inherit those of its input, so the functions here set empty ones.

The lines that sinks print begin with the name of their vertex. Sources count, and keep unsettled
messages in memory, as the images do: a process that replaces a lost one starts counting again, with
new offsets. They have no ``nack``, so Ebbflow keeps nacked messages and redelivers them itself,
with their delay.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Datum, Message, Metadata, Response
from ebbflow.domain.user_source import Source, SourceMessage
from ebbflow.engine.frames import TIME
from ebbflow.usercode.columns import TYPES

Responses = dict[int, Response]
"""The responses for the rows that are not simply written."""

_PARITY_KEYS = pa.array([["even"], ["odd"]], TYPES["keys"])
_PARITY_TAGS = pa.array([["even-tag"], ["odd-tag"]], TYPES["tags"])
_WHOLE_NUMBER, _ODD_NUMBER = r"^[+-]?[0-9]+$", r"^[+-]?[0-9]*[13579]$"
_ROUNDS = 3
"""The round in which ``RetryRounds`` lets a value pass."""

_BYPASS_WORDS = {
    "fallback": (b"fallback", b"Fallback"),
    "onSuccess": (b"onSuccess", b"OnSuccess", b"on_success", b"on-success"),
    "sink": (b"primary",),
}
_STARTS = pa.array([datetime(2022, 1, 1, tzinfo=UTC), datetime(2023, 1, 1, tzinfo=UTC)], TIME)
_YEAR_TAGS = pa.array([["within_year_2022"], ["after_year_2022"]], TYPES["tags"])
_NAMES = ("NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME")
_FALLBACK = Response.fallback()
_ON_SUCCESS = Response.on_success(message=Message(b"on-success-message", keys=[], metadata={}))
_SUCCESS = Response.on_success()
_FAILURE = Response.failure(error="this sink fails for every message, so that retries can be seen")


# --- maps -----------------------------------------------------------------------------------------


def without(rows: int, *names: str) -> dict[str, pa.Array]:
    """Returns empty columns of keys or metadata for that many outputs."""
    return {name: pa.array([[]] * rows, TYPES[name]) for name in names}


def cat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Forwards every message with its keys."""
    values = batch.column("value")
    return pa.RecordBatch.from_pydict({"value": values, **without(len(values), "metadata")})


def even_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sets the parity of whole numbers as key and tag; drops all other messages."""
    numbers = batch.filter(pc.match_substring_regex(batch.column("value"), _WHOLE_NUMBER))
    parity = pc.match_substring_regex(numbers.column("value"), _ODD_NUMBER).cast(pa.int8())
    columns = {
        "id": numbers.column("id"),
        "value": numbers.column("value"),
        "keys": _PARITY_KEYS.take(parity),
        "tags": _PARITY_TAGS.take(parity),
        **without(numbers.num_rows, "metadata"),
    }
    return pa.RecordBatch.from_pydict(columns)


def even_odd_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sets the parity as key, without a tag; a value that is not a number counts as even."""
    values = batch.column("value")
    parity = pc.match_substring_regex(values, _ODD_NUMBER).cast(pa.int8())
    columns = {"value": values, "keys": _PARITY_KEYS.take(parity)}
    return pa.RecordBatch.from_pydict(columns | without(len(values), "metadata"))


def even_odd_bytes(datum: Datum) -> Message:
    """Reads the bytes as a little-endian number and sets its parity as key and tag."""
    word = "odd" if datum.value[:1] and datum.value[0] % 2 else "even"
    return Message(datum.value, keys=[word], tags=[f"{word}-tag"], metadata={})


def flatmap(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Splits every message at its commas; the parts have no keys."""
    parts = _split(batch)
    return pa.RecordBatch.from_pydict(parts | without(len(parts["id"]), "keys", "metadata"))


def flatmap_with_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Splits every message at its commas; the parts have its keys."""
    parts = _split(batch)
    return pa.RecordBatch.from_pydict(parts | without(len(parts["id"]), "metadata"))


def _split(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    parts = pc.split_pattern(batch.column("value"), ",")
    ids = batch.column("id").take(pc.list_parent_indices(parts))
    return {"id": ids, "value": pc.list_flatten(parts)}


def has_small_id(value: bytes) -> bool:
    """Returns whether the ``id`` in a JSON object is below 100; raises if there is no such id."""
    return int(_read_object(value)["id"]) < 100


def is_good_greeting(value: bytes) -> bool:
    """Returns whether a JSON object has a small id, ``msg`` "hello" and "good" in its ``desc``."""
    record = _read_object(value)
    greets = record.get("msg") == "hello" and "good" in str(record.get("desc"))
    return int(record["id"]) < 100 and greets


def _read_object(value: bytes) -> dict[str, Any]:
    record = json.loads(value)
    if not isinstance(record, dict):
        raise ValueError(f"the payload is not a JSON object but a {type(record).__name__}")
    return record


def filter_small_ids(datum: Datum) -> Message:
    """Forwards JSON objects whose ``id`` is below 100, without keys; drops the others."""
    return _bare(datum) if has_small_id(datum.value) else Message.to_drop()


def filter_greetings(datum: Datum) -> Message:
    """Forwards JSON objects that are a good greeting, without keys; drops the others.

    A good greeting has an ``id`` below 100, "hello" as ``msg`` and "good" in its ``desc``.
    """
    return _bare(datum) if is_good_greeting(datum.value) else Message.to_drop()


def _bare(datum: Datum, *tags: str) -> Message:
    return Message(datum.value, keys=[], tags=tags, metadata={})


class RetryRounds:
    """Tags a value ``retry`` the first two times that it arrives, and lets it pass the third time.

    For a map that an edge with this tag leads back to. It counts in memory, for one partition.
    """

    def __init__(self) -> None:
        self._rounds: Counter[bytes] = Counter()

    def __call__(self, datum: Datum) -> Message:
        """Returns the message, with the tag ``retry`` before the last round."""
        self._rounds[datum.value] += 1
        if self._rounds[datum.value] < _ROUNDS:
            return _bare(datum, "retry")
        del self._rounds[datum.value]
        return _bare(datum)


def add_metadata(datum: Datum) -> Message:
    """Forwards the message with ``map-key`` in the group ``map-group`` of its metadata."""
    print(f"Groups of metadata: {sorted(datum.metadata)}")
    group = {**datum.metadata.get("map-group", {}), "map-key": b"map-value"}
    return Message(datum.value, metadata={**datum.metadata, "map-group": group})


def tags_by_words(value: bytes) -> list[str]:
    """Returns the sinks whose words are in the payload, as tags for a MonoVertex's ``bypass``."""
    return [tag for tag, words in _BYPASS_WORDS.items() if any(word in value for word in words)]


def tag_for_bypass(datum: Datum) -> Message:
    """Forwards the message with the tags of the sinks that its payload mentions."""
    return Message(datum.value, tags=tags_by_words(datum.value), metadata={})


# --- transformers ---------------------------------------------------------------------------------


def assign_event_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sets the current time as the event time of every message."""
    now = pa.repeat(pa.scalar(datetime.now(UTC), TIME), batch.num_rows)
    columns = {"value": batch.column("value"), "event_time": now}
    return pa.RecordBatch.from_pydict(columns | without(batch.num_rows, "metadata"))


def filter_event_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drops messages from before 2022; tags the rest by year and sets their event times.

    The event time becomes the start of 2022 for messages of 2022 and that of 2023 for later ones.
    Keys are removed.
    """
    kept = batch.filter(pc.greater_equal(batch.column("event_time"), _STARTS[0]))
    later = pc.greater_equal(kept.column("event_time"), _STARTS[1]).cast(pa.int8())
    columns = {
        "id": kept.column("id"),
        "value": kept.column("value"),
        "tags": _YEAR_TAGS.take(later),
        "event_time": _STARTS.take(later),
        **without(kept.num_rows, "keys", "metadata"),
    }
    return pa.RecordBatch.from_pydict(columns)


def filter_keyed_greetings(datum: Datum) -> Message:
    """Forwards JSON objects that are a good greeting, with their keys; drops the others."""
    good = is_good_greeting(datum.value)
    return Message(datum.value, metadata={}) if good else Message.to_drop()


def add_event_time(datum: Datum) -> Message:
    """Sets the current time as event time, and in the metadata in ``event-time-group``."""
    now = datetime.now(UTC)
    text = now.isoformat(timespec="seconds").encode()
    group = {**datum.metadata.get("event-time-group", {}), "event-time": text}
    metadata = {**datum.metadata, "event-time-group": group}
    return Message(datum.value, event_time=now, metadata=metadata)


def tag_for_bypass_now(datum: Datum) -> Message:
    """Forwards the message with the current time and the tags of the sinks that it mentions."""
    tags, now = tags_by_words(datum.value), datetime.now(UTC)
    return Message(datum.value, tags=tags, event_time=now, metadata={})


# --- sinks ----------------------------------------------------------------------------------------


def log(batch: pa.RecordBatch) -> None:
    """Prints every payload; bytes that are not text are shown escaped."""
    _print_payloads(batch)


def log_metadata(batch: pa.RecordBatch) -> None:
    """Prints the metadata of every message."""
    groups = batch.column("metadata").to_pylist()
    _print_lines(f"metadata={_write_metadata(own)}" for own in groups)


def _write_metadata(groups: list[tuple[str, list[tuple[str, bytes]]]] | None) -> str:
    return str({group: dict(entries) for group, entries in groups or ()})


def send_to_fallback(batch: pa.RecordBatch) -> Responses:
    """Prints every payload and sends the message to the fallback sink."""
    _print_payloads(batch, "to the fallback sink, ")
    return dict.fromkeys(range(batch.num_rows), _FALLBACK)


def send_to_on_success(batch: pa.RecordBatch) -> Responses:
    """Prints every payload and sends a fixed message to the on-success sink."""
    _print_payloads(batch, "to the on-success sink, ")
    return dict.fromkeys(range(batch.num_rows), _ON_SUCCESS)


def send_to_either(batch: pa.RecordBatch) -> Responses:
    """Sends every message at random to the on-success sink or to the fallback sink."""
    written = (random.getrandbits(1) for _ in range(batch.num_rows))
    return {row: _SUCCESS if success else _FALLBACK for row, success in enumerate(written)}


def serve_payloads(batch: pa.RecordBatch) -> Responses:
    """Answers every request with the payload of its message."""
    payloads = batch.column("value").to_pylist()
    return {row: Response.serve(payload=payload) for row, payload in enumerate(payloads)}


def fail(batch: pa.RecordBatch) -> Responses:
    """Fails for every message, to demonstrate the sink's ``retryStrategy``."""
    return dict.fromkeys(range(batch.num_rows), _FAILURE)


def panic(batch: pa.RecordBatch) -> None:
    """Raises on every call, like a sink that crashes on its first message."""
    raise RuntimeError(f"this sink takes no message, and it received {batch.num_rows}")


def _print_payloads(batch: pa.RecordBatch, before: str = "") -> None:
    payloads = batch.column("value").to_pylist()
    _print_lines(before + _write_payload(payload) for payload in payloads)


def _print_lines(lines: Iterable[str]) -> None:
    """Prints all lines at once, because each print of user code is forwarded separately."""
    names = (os.environ.get(name) for name in _NAMES)
    place = next((f"({name}) " for name in names if name), "")
    print("\n".join(place + line for line in lines))


def _write_payload(payload: bytes) -> str:
    return "payload=" + payload.decode("utf-8", "backslashreplace").replace("\n", "\\n")


# --- sources --------------------------------------------------------------------------------------


class CountingSource(Source):
    """Produces 0, 1, 2, … with a header ``x-txn-id``, and no more while any is unsettled.

    A read returns as many as requested, and the next read none until all are acknowledged.
    """

    _end = sys.maxsize

    def __init__(self) -> None:
        self._count = 0
        self._open: set[bytes] = set()
        self._start = time.time_ns()

    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        """Returns the next numbers if all earlier ones are settled, else none."""
        if self._open:
            return []
        first, self._count = self._count, min(self._count + limit, self._end)
        messages = [self._message(number) for number in range(first, self._count)]
        self._open = {message.offset for message in messages}
        return messages

    def _message(self, number: int) -> SourceMessage:
        offset, headers = b"%d-%d" % (self._start, number), {"x-txn-id": str(uuid.uuid4())}
        return SourceMessage(b"%d" % number, offset, headers=headers, metadata=self._metadata())

    def _metadata(self) -> Metadata | None:
        return None

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Forgets the messages."""
        self._open.difference_update(offsets)

    def pending(self) -> int:
        """Returns how many messages are not settled."""
        return len(self._open)


class CountingMetadataSource(CountingSource):
    """Produces 0 to 99, each with a ``txn-id`` in the group ``simple-source`` of its metadata."""

    _end = 100

    def _metadata(self) -> Metadata:
        return {"simple-source": {"txn-id": str(uuid.uuid4()).encode()}}

    @property
    def exhausted(self) -> bool:
        """Whether all numbers have been produced and acknowledged."""
        return self._count >= self._end and not self._open
