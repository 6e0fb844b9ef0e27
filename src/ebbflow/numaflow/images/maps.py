"""Maps that do what the map images of Numaflow's examples do.

Most take and return columns. Those that read JSON or keep counts are called with single messages,
so that one message on which they fail is nobody else's affair.

An output of an image says all about itself: without keys it has none, without metadata it has none.
Outputs of Ebbflow's own code would have those of their input, so they are told to have none.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Datum, Message
from ebbflow.usercode.columns import TYPES

_PARITY_KEYS = pa.array([["even"], ["odd"]], TYPES["keys"])
_PARITY_TAGS = pa.array([["even-tag"], ["odd-tag"]], TYPES["tags"])
_WHOLE_NUMBER, _ODD_NUMBER = r"^[+-]?[0-9]+$", r"^[+-]?[0-9]*[13579]$"

_ROUNDS = 3
"""So many times ``RetryRounds`` sees a value before it lets it pass."""

_BYPASS_WORDS = {
    "fallback": (b"fallback", b"Fallback"),
    "onSuccess": (b"onSuccess", b"OnSuccess", b"on_success", b"on-success"),
    "sink": (b"primary",),
}


def without(rows: int, *names: str) -> dict[str, pa.Array]:
    """Returns columns that say of so many outputs that they have no keys, or no metadata."""
    return {name: pa.array([[]] * rows, TYPES[name]) for name in names}


def cat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Forwards every message with its keys."""
    values = batch.column("value")
    return pa.RecordBatch.from_pydict({"value": values, **without(len(values), "metadata")})


def even_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Gives whole numbers the key and the tag of their parity; drops everything else."""
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
    """Gives every message the key of its parity and no tag; what is no number counts as even."""
    values = batch.column("value")
    parity = pc.match_substring_regex(values, _ODD_NUMBER).cast(pa.int8())
    columns = {"value": values, "keys": _PARITY_KEYS.take(parity)}
    return pa.RecordBatch.from_pydict(columns | without(len(values), "metadata"))


def even_odd_bytes(datum: Datum) -> Message:
    """Takes the bytes for a number, lowest first; gives it the key and the tag of its parity."""
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
        raise ValueError(f"the payload is no JSON object but a {type(record).__name__}")
    return record


def filter_small_ids(datum: Datum) -> Message:
    """Forwards JSON objects whose ``id`` is below 100, without keys; drops the others."""
    return _bare(datum) if has_small_id(datum.value) else Message.to_drop()


def filter_greetings(datum: Datum) -> Message:
    """Forwards JSON objects that are a good greeting, without keys; drops the others.

    Such a one has an ``id`` below 100, "hello" as ``msg`` and "good" in its ``desc``.
    """
    return _bare(datum) if is_good_greeting(datum.value) else Message.to_drop()


def _bare(datum: Datum, *tags: str) -> Message:
    return Message(datum.value, keys=[], tags=tags, metadata={})


class RetryRounds:
    """Tags a value ``retry`` the first two times that it comes, and lets it pass the third time.

    For a map that an edge with this tag leads back to. It counts in memory, for one partition.
    """

    def __init__(self) -> None:
        self._rounds: Counter[bytes] = Counter()

    def __call__(self, datum: Datum) -> Message:
        """Returns the message, to be sent round again or not."""
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
    """Forwards the message with the tags of the sinks that its payload speaks of."""
    return Message(datum.value, tags=tags_by_words(datum.value), metadata={})
