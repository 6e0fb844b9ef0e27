"""Decodes what functions send into columns: responses of maps and transformers, source messages.

A response of a map names its request and holds any number of results. The columns are those that a
columnar map returns (``usercode.columns``). An output without keys or metadata has none, as in
Numaflow, because SDKs omit empty fields. An output without an event time has that of its input.
Reserved tags become ``drop``, ``nack`` and ``error``. The text of an error is the ``reason`` of the
nack options, if set, because no other field could hold it.

``Answers`` matches the responses to one batch with its rows. Every row must have exactly one
answer, under the id of its request. A row with no answer or several fails with a
``ContractViolation``; the others keep their answers. The outputs are in the order of the inputs,
whatever the order of the answers, so that a replay makes the same frames.

The offset of a source's message in the columns combines the function's offset and partition, since
two partitions may have the same offsets. ``offset_of`` splits it again, also for messages that an
earlier process of the function read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from ebbflow.domain.errors import CallTimeout, ContractViolation, StreamBroken
from ebbflow.domain.message import Signal
from ebbflow.domain.user_source import SourceMessage
from ebbflow.engine.frames import FEW
from ebbflow.engine.source_columns import columns_of
from ebbflow.numaflow.function_session import Failures
from ebbflow.numaflow.grpc import Arrived
from ebbflow.numaflow.nacks import OPTIONS, read_option
from ebbflow.numaflow.proto import nack_options_pb2, source_pb2
from ebbflow.numaflow.protobuf import (
    Fields,
    Messages,
    Numbers,
    Places,
    join_parts,
    list_texts,
    map_groups,
    map_texts,
    read_times,
    timestamp_to_time,
)
from ebbflow.numaflow.services import Service
from ebbflow.usercode.columns import TYPES

DROP, NACK, FAIL = Signal.DROP.tag, Signal.NACK.tag, Signal.FAIL.tag
"""The tags with which a function of any language drops, nacks or fails a message."""

Flags = NDArray[np.bool_]
FAILED = "failed"
"""The error of a message that a function fails without a reason."""

_FIX = "A function answers each request once, with the id of that request."
_UNKNOWN = -1
_RESULTS, _ID, _STATUS, _EOT = 1, 2, 4, 1
_RESULT, _READ_STATUS = 1, 2
_PAYLOAD, _OFFSET, _EVENT_TIME, _KEYS, _HEADERS, _METADATA = range(1, 7)
_NAME, _PARTITION = 1, 2
_NO_OFFSET = "the function sent a message without an offset"


# --- responses of maps and transformers -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultShape:
    """A service's response, and the numbers of the fields of a result in it."""

    response: Any
    keys: int
    value: int
    tags: int
    metadata: int
    nack_options: int
    event_time: int | None


@cache
def _shape_of(service: Service) -> ResultShape:
    response = service.stream.response
    numbers = {field.name: field.number for field in response.Result.DESCRIPTOR.fields}
    names = ("keys", "value", "tags", "metadata", "nack_options")
    fields = {name: numbers[name] for name in names}
    return ResultShape(response, **fields, event_time=numbers.get("event_time"))


class Responses:
    """Responses to requests, in the order of their arrival; ``ValueError`` if one is malformed.

    ``ids`` name the requests, ``last`` flags the responses with the mark that ends a transmission.
    """

    def __init__(self, places: Places, service: Service) -> None:
        self._shape = _shape_of(service)
        messages = Messages(places)
        self.ids: pa.StringArray = messages.field(_ID).last(places).texts()
        self.last: Flags = _marked(messages.field(_STATUS), len(places))
        results = messages.field(_RESULTS)
        self.owners: Numbers = results.owners
        self._results = Messages(results.places)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def have_ids(self) -> bool:
        """Whether any of the responses names its request."""
        return bool(pc.max(pc.binary_length(self.ids)).as_py())

    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns of all results; ``owners`` has the response of each."""
        results, shape = self._results, self._shape
        columns = {
            "value": results.field(shape.value).last(results.places).column(),
            "keys": list_texts(results.field(shape.keys), len(results), nulls=False),
            "metadata": self._metadata(),
        }
        if len(tags := results.field(shape.tags)):
            columns |= self._tagged(tags)
        if shape.event_time is not None and len(times := results.field(shape.event_time)):
            columns["event_time"] = read_times(times, len(results))
        return columns

    def _metadata(self) -> pa.MapArray:
        fields, count = self._results.field(self._shape.metadata), len(self._results)
        if fields.places.has_content:
            return map_groups(fields, count, nulls=False)
        none, offsets = pa.array([], TYPES["metadata"]), pa.array(np.zeros(count + 1, np.int32))
        return pa.MapArray.from_arrays(offsets, none.keys, none.items)

    def _tagged(self, tags: Fields) -> dict[str, pa.Array]:
        """Returns the column of tags, and the columns that reserved tags require."""
        texts, count = tags.places.texts(), len(self._results)

        def having(tag: str) -> Numbers:
            rows: Numbers = tags.owners[np.flatnonzero(pc.equal(texts, tag).to_numpy(False))]
            return rows

        columns = {"tags": list_texts(tags, count)}
        if len(dropped := having(DROP)):
            columns["drop"] = _flags(dropped, count)
        if len(failed := having(FAIL)):
            reasons = self._nack_options(count)["nack_reason"].to_pylist()
            texts_of = {row: reasons[row] or FAILED for row in failed.tolist()}
            columns["error"] = pa.array([texts_of.get(row) for row in range(count)], pa.string())
        if len(nacked := having(NACK)):
            columns |= {"nack": _flags(nacked, count), **self._nack_options(count)}
        return columns

    def _nack_options(self, count: int) -> dict[str, pa.Array]:
        asked: dict[str, list[Any]] = {name: [None] * count for name in OPTIONS}
        fields = self._results.field(self._shape.nack_options)
        for row, packed in zip(fields.owners, fields.places.column().to_pylist(), strict=True):
            options = nack_options_pb2.NackOptions.FromString(packed)
            for name, column in asked.items():
                column[row] = read_option(options, name)
        kinds = {"delay": pa.int64(), "max_deliveries": pa.int64(), "reason": pa.string()}
        return {f"nack_{name}": pa.array(column, kinds[name]) for name, column in asked.items()}


def _marked(statuses: Fields, count: int) -> Flags:
    """Returns which of the messages have the end mark."""
    marks = np.zeros(count, bool)
    if len(statuses):
        ends = Messages(statuses.places).field(_EOT).last_numbers(len(statuses))
        marks[statuses.owners] = ends != 0
    return marks


def _flags(rows: Numbers, count: int) -> pa.BooleanArray:
    flags = np.zeros(count, bool)
    flags[rows] = True
    return pa.array(flags)


class FewResponses:
    """Does the same as ``Responses`` with protobuf's own classes.

    They are faster for a few messages than code that is made for thousands.
    """

    def __init__(self, messages: Sequence[bytes], service: Service) -> None:
        self._shape = shape = _shape_of(service)
        try:
            responses = [shape.response.FromString(message) for message in messages]
        except DecodeError as error:
            raise ValueError(str(error)) from error
        marked = shape.event_time is None
        self.ids: pa.StringArray = pa.array([r.id for r in responses], pa.string())
        self.last: Flags = np.array([marked and r.status.eot for r in responses], bool)
        owners = [owner for owner, response in enumerate(responses) for _ in response.results]
        self.owners: Numbers = np.array(owners, np.int64)
        self._results = [result for response in responses for result in response.results]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def have_ids(self) -> bool:
        """Whether any of the responses names its request."""
        return any(self.ids.to_pylist())

    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns of all results; ``owners`` has the response of each."""
        results = self._results
        columns: dict[str, list[Any]] = {
            "value": [result.value for result in results],
            "keys": [list(result.keys) for result in results],
            "metadata": [_read_groups(result.metadata) for result in results],
        }
        if any(result.tags for result in results):
            columns |= self._tagged()
        if self._shape.event_time is not None:
            columns["event_time"] = [
                timestamp_to_time(result.event_time) if result.HasField("event_time") else None
                for result in results
            ]
        return {name: pa.array(column, TYPES[name]) for name, column in columns.items()}

    def _tagged(self) -> dict[str, list[Any]]:
        tags = [list(result.tags) for result in self._results]
        columns: dict[str, list[Any]] = {"tags": [texts or None for texts in tags]}
        reserved = {text for texts in tags for text in texts}.intersection((DROP, FAIL, NACK))
        if DROP in reserved:
            columns["drop"] = [DROP in texts for texts in tags]
        if FAIL in reserved:
            reasons = [result.nack_options.reason or FAILED for result in self._results]
            pairs = zip(tags, reasons, strict=True)
            columns["error"] = [reason if FAIL in texts else None for texts, reason in pairs]
        if NACK in reserved:
            columns["nack"] = [NACK in texts for texts in tags]
            asked = [result.nack_options for result in self._results]
            columns |= {
                f"nack_{name}": [read_option(options, name) for options in asked]
                for name in OPTIONS
            }
        return columns


def _read_groups(metadata: Any) -> list[tuple[str, list[tuple[str, bytes]]]]:
    groups = metadata.user_metadata
    return [(name, list(groups[name].key_value.items())) for name in groups]


# --- matching responses with rows -----------------------------------------------------------------


class Answers:
    """The responses to the requests with these ids.

    ``streamed`` if a request may have several responses, the last one with a mark. SDKs that answer
    such requests one after the other leave out the ids; then the order decides.
    """

    def __init__(self, ids: pa.StringArray, service: Service, streamed: bool) -> None:
        self._ids = ids
        self._service = service
        self._streamed = streamed
        self._parts: list[Arrived] = []
        self._asked: list[int] = []
        self._read: _Matched | None = None

    def keep(self, parts: Sequence[Arrived]) -> None:
        """Keeps responses as they arrive; they are decoded later, all at once."""
        self._parts += parts
        self._read = None

    @contextmanager
    def all_or_nothing(self, rows: Sequence[int]) -> Iterator[None]:
        """Discards the responses that arrive in this context if the call for these rows breaks."""
        mark = len(self._parts)
        try:
            yield
        except (StreamBroken, CallTimeout):
            del self._parts[mark:]
            self._read = None
            raise
        self._asked += rows

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """Returns the rows that have no answer."""
        answered = self._matched.counts
        return [row for row in rows if not answered[row]]

    def violations(self, vertex: str, failures: Failures) -> Failures:
        """Returns the rows without exactly one answer, except those in ``failures``."""
        matched = self._matched
        wrong = [row for row in np.flatnonzero(matched.counts != 1).tolist() if row not in failures]
        if not wrong:
            return {}
        twice = pc.take(self._ids, pa.array(np.flatnonzero(matched.counts > 1))).to_pylist()
        ids = self._ids.take(pa.array(wrong, pa.int64())).to_pylist()
        what = _describe(twice, matched.unknown)
        return dict.fromkeys(wrong, ContractViolation(vertex, what, ids, fix=_FIX))

    def columns(self, failures: Failures) -> pa.RecordBatch:
        """Returns the outputs of all rows that did not fail; ``row`` has the input of each."""
        matched, columns = self._matched, self._matched.responses.columns()
        rows = matched.result_rows
        keep = rows != _UNKNOWN
        if failures:
            keep &= ~np.isin(rows, list(failures))
        chosen = np.flatnonzero(keep)
        order = chosen[np.argsort(rows[chosen], kind="stable")]
        if not _is_range(order, len(rows)):
            taken = pa.array(order)
            columns = {name: column.take(taken) for name, column in columns.items()}
        if not (len(order) == len(self._ids) and _is_range(rows[order], len(order))):
            columns["row"] = pa.array(rows[order])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    @property
    def _matched(self) -> _Matched:
        if self._read is None:
            self._read = _Matched(self._ids, self._responses(), self._streamed, self._asked)
        return self._read

    def _responses(self) -> Responses | FewResponses:
        try:
            if sum(map(len, self._parts)) <= FEW:
                messages = [message for part in self._parts for message in part.messages()]
                return FewResponses(messages, self._service)
            return Responses(join_parts(self._parts), self._service)
        except ValueError as error:
            raise StreamBroken(f"the function sent an undecodable response: {error}") from error


class _Matched:
    """Responses with the rows they answer; ``counts`` has the number of answers to each row."""

    def __init__(
        self,
        ids: pa.StringArray,
        responses: Responses | FewResponses,
        streamed: bool,
        asked: Sequence[int],
    ) -> None:
        self.responses = responses
        rows = _find_rows(responses.ids, ids)
        if streamed and (rows == _UNKNOWN).all() and not responses.have_ids:
            rows = _rows_by_order(responses.last, asked)
        ends: Flags = responses.last if streamed else ~responses.last
        # The mark at the end of a batch is not an answer, and has no id.
        self._unmatched: Flags = (rows == _UNKNOWN) & (ends | ~responses.last)
        self.counts = np.bincount(rows[ends & (rows != _UNKNOWN)], minlength=len(ids))
        self.result_rows: Numbers = rows[responses.owners]

    @property
    def unknown(self) -> list[str]:
        """The ids of responses that belong to no row."""
        ids: list[str] = self.responses.ids.filter(pa.array(self._unmatched)).to_pylist()
        return ids


def _find_rows(named: pa.StringArray, ids: pa.StringArray) -> Numbers:
    """Returns the row whose id each response has."""
    if len(named) <= FEW:
        rows = {row_id: row for row, row_id in enumerate(ids.to_pylist())}
        return np.array([rows.get(row_id, _UNKNOWN) for row_id in named.to_pylist()], np.int64)
    places = pc.index_in(named, value_set=ids).fill_null(_UNKNOWN)
    numbers: Numbers = places.to_numpy().astype(np.int64)
    return numbers


def _rows_by_order(last: Flags, asked: Sequence[int]) -> Numbers:
    """Returns the rows of responses without ids: each end mark moves on to the next row."""
    turns: Numbers = np.cumsum(last) - last
    return np.append(np.array(asked, np.int64), _UNKNOWN)[np.minimum(turns, len(asked))]


def _is_range(numbers: Numbers, count: int) -> bool:
    return len(numbers) == count and bool((numbers == np.arange(count)).all())


def _describe(twice: Sequence[str], unknown: Sequence[str]) -> str:
    if unknown:
        return f"answered the unknown id {unknown[0]!r}"
    if twice:
        return f"answered the id {twice[0]!r} more than once"
    return "did not answer all requests of a batch"


# --- messages of sources --------------------------------------------------------------------------


def offset_of(name: bytes) -> dict[str, Any]:
    """Returns the function's offset and partition of a message."""
    offset, _, partition = name.rpartition(b".")
    return {"offset": offset, "partition_id": int(partition)}


def read_messages(parts: Sequence[Arrived]) -> tuple[pa.RecordBatch, int]:
    """Returns the messages in some responses, and how many of the responses mark an end.

    ``ValueError`` if a response cannot be read or a message has no offset.
    """
    if sum(map(len, parts)) <= FEW:
        return _read_few([text for part in parts for text in part.messages()])
    messages = Messages(join_parts(parts))
    ends = np.count_nonzero(_marked(messages.field(_READ_STATUS), len(messages)))
    return _read_many(messages.field(_RESULT)), int(ends)


def _read_few(texts: Sequence[bytes]) -> tuple[pa.RecordBatch, int]:
    responses = [source_pb2.ReadResponse.FromString(text) for text in texts]
    messages = [_read_one(each.result) for each in responses if each.HasField("result")]
    return columns_of(messages), sum(each.status.eot for each in responses)


def _read_one(result: Any) -> SourceMessage:
    if not result.offset.offset:
        raise ValueError(_NO_OFFSET)
    partition = result.offset.partition_id
    return SourceMessage(
        result.payload,
        b"%b.%d" % (result.offset.offset, partition),
        timestamp_to_time(result.event_time) if result.HasField("event_time") else None,
        list(result.keys),
        dict(result.headers),
        partition,
        metadata={
            name: dict(group.key_value) for name, group in result.metadata.user_metadata.items()
        },
    )


def _read_many(fields: Fields) -> pa.RecordBatch:
    results = Messages(fields.places)
    count = len(results)
    offsets, partitions = _read_offsets(results)
    columns = {
        "value": results.field(_PAYLOAD).last(results.places).column(),
        "offset": offsets,
        "partition": pa.array(partitions.astype(np.int32)),
        "event_time": read_times(results.field(_EVENT_TIME), count),
        "keys": list_texts(results.field(_KEYS), count),
        "headers": map_texts(results.field(_HEADERS), count),
        "metadata": map_groups(results.field(_METADATA), count),
    }
    return pa.RecordBatch.from_pydict(columns)


def _read_offsets(results: Messages) -> tuple[pa.BinaryArray, Numbers]:
    places = results.field(_OFFSET).last(results.places)
    offsets = Messages(places)
    names = offsets.field(_NAME).last(places)
    if (names.ends == names.starts).any():
        raise ValueError(_NO_OFFSET)
    partitions = offsets.field(_PARTITION).last_numbers(len(places))
    texts = pa.array(partitions).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(names.column(), texts, b"."), partitions
