"""Messages of the protocol on the side of a served function: requests, replies, failures.

Requests are rows, so that functions are called as they are in a pipeline. Protobuf fields are only
decoded if the function reads them. Ebbflow's own runtime also sends how often a message was
delivered and why it was last nacked, in the group ``ebbflow`` of the system metadata; Numaflow's
runtime sends nothing there.

In a pipeline a verdict turns the results of user code into outcomes. A served function only
forwards them: the runtime at the other end counts deliveries, waits, retries and dead-letters.

A reply inherits the keys, metadata and event time that it does not set. They are sent back
explicitly, because Numaflow treats missing fields as empty. A nack or a failure is a single result
with a reserved tag: none of its siblings is forwarded. The error of a failure is sent as the reason
of its options, which Numaflow ignores because it has no such error.

When a function fails on a stream, the stream ends with status, text and the function's stack. The
text begins as with Numaflow's SDKs, whose text the runtime shows to people. The status is INTERNAL
if the function raised on a message, and UNAVAILABLE if a system that it needs is down: then no
message is penalised.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import grpc
import pyarrow as pa

from ebbflow.domain.durations import DEFAULT_ON_ERROR
from ebbflow.domain.message import Message, Metadata, Nack, NackOptions, Status
from ebbflow.domain.outcome import DeadLetter, Dropped, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import AnyOutputs, ColumnOutputs, Outputs
from ebbflow.engine.redelivery import describe_error
from ebbflow.engine.system_errors import retry_after
from ebbflow.engine.verdict import EMPTY, Decisions, Emitter, Verdict
from ebbflow.numaflow.decode import DROP, FAIL, NACK
from ebbflow.numaflow.nacks import write_nack_options
from ebbflow.numaflow.proto import metadata_pb2, rpc_status_pb2, sink_pb2
from ebbflow.numaflow.services import (
    DELIVERIES,
    HISTORY,
    LARGEST,
    NACK_REASON,
    RETRY_COUNT,
    SINK_GROUP,
    Service,
    pack,
)

EPOCH = datetime.fromtimestamp(0, UTC)
# Bytes reserved for keys, tags and ids next to the value.
_RESERVED = 64 * 1024
_FAILED = DeadLetter("failed")
# A response may have 64 MB; answers that are served can be large.
_MOST_BYTES = 16 * 1024 * 1024
_MICROSECOND = EPOCH.resolution
_STATUS = "grpc-status-details-bin"
# Many clients refuse trailers beyond 8 KB. The end of a stack has the error.
_LONGEST_TEXT, _LONGEST_STACK = 1_000, 4_000


# --- requests -------------------------------------------------------------------------------------


class Request(NamedTuple):
    """One message: its id, and the ``Request`` message of its service."""

    id: str
    message: Any

    @classmethod
    def of(cls, message: Any) -> Request:
        """Returns the request in a message of a stream; its id is next to the request or in it."""
        owner = message if hasattr(message, "id") else message.request
        return cls(owner.id, message.request)


def read_time(timestamp: Any) -> datetime:
    """Returns a protobuf timestamp as a time, truncated to microseconds."""
    return EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1_000)


def read_metadata(metadata: Any) -> dict[str, dict[str, bytes]]:
    """Returns the user metadata that earlier functions have set."""
    return {group: dict(entries.key_value) for group, entries in metadata.user_metadata.items()}


def _read_watermark(message: Any) -> datetime | None:
    # A time before 1970 means that there is no watermark.
    known = message.HasField("watermark") and message.watermark.seconds >= 0
    return read_time(message.watermark) if known else None


def _read_system(message: Any, group: str, key: str) -> bytes | None:
    groups = message.metadata.sys_metadata
    return groups[group].key_value.get(key) if group in groups else None


def _read_number(message: Any, group: str, key: str, absent: int) -> int:
    text = _read_system(message, group, key) or b""
    return int(text) if text.isdigit() else absent


def _read_reason(message: Any) -> str | None:
    reason = _read_system(message, HISTORY, NACK_REASON)
    return None if reason is None else reason.decode("utf-8", "replace")


_READ: dict[str, Callable[[Request], Any]] = {
    "id": lambda request: request.id,
    "value": lambda request: request.message.value,
    "keys": lambda request: list(request.message.keys),
    "event_time": lambda request: read_time(request.message.event_time),
    "watermark": lambda request: _read_watermark(request.message),
    "headers": lambda request: dict(request.message.headers),
    "metadata": lambda request: read_metadata(request.message.metadata),
    "deliveries": lambda request: _read_number(request.message, HISTORY, DELIVERIES, 1),
    "retries": lambda request: _read_number(request.message, SINK_GROUP, RETRY_COUNT, 0),
    "nack_reason": lambda request: _read_reason(request.message),
    "failures": lambda request: 0,
}
_IN_BATCH = [name for name in _READ if name != "watermark"]


class RequestRows(Rows):
    """Requests as the rows of a chunk. The record batch is made only if columns are needed."""

    __slots__ = ("_made", "requests")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.watermark = None
        self._columns = {}
        self._made: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def batch(self) -> pa.RecordBatch:
        """The requests as columns."""
        if self._made is None:
            columns = {name: self.column(name) for name in _IN_BATCH}
            columns["headers"] = [list(headers.items()) or None for headers in columns["headers"]]
            columns["metadata"] = [
                [(group, list(entries.items())) for group, entries in metadata.items()] or None
                for metadata in columns["metadata"]
            ]
            self._made = frames.batch_of(columns, len(self))
        return self._made

    def _convert(self, name: str) -> list[Any]:
        read = _READ[name]
        return [read(request) for request in self.requests]


# --- replies: the results of the function ---------------------------------------------------------


def rules_of(name: str) -> Rules:
    """Returns the rules for a function of that name: any status, limited only by message size."""
    return Rules(name, DEFAULT_ON_ERROR, LARGEST - _RESERVED, frozenset(Status))


class _TimedDecisions(Decisions):
    """Decisions that also keep the event times of inputs that are not forwarded."""

    def __init__(self) -> None:
        super().__init__()
        self._unclaimed: list[datetime] = []
        self.times: dict[int, datetime] = {}

    def note_event_times(self, times: Iterable[datetime]) -> None:
        """Keeps the times for the input that is decided next."""
        self._unclaimed += times

    def claim_times(self, index: int) -> None:
        """Uses the earliest time noted since the last decision as the time of this input."""
        if self._unclaimed:
            self.times[index] = min(self._unclaimed)
            self._unclaimed = []

    def drop(self, index: int, rule: Dropped = EMPTY) -> None:
        """Drops the input, with the event time of the drop."""
        self.claim_times(index)
        super().drop(index, rule)


class Replies(Verdict):
    """The replies to the requests of one call.

    ``nacked`` has the options of nacked inputs, ``errors`` the exceptions that the function raised
    on inputs, ``unavailable`` the reasons for inputs that need a system that is down. An input in
    none of these, and without an entry in ``decisions``, is done.
    """

    def __init__(self, rows: RequestRows, rules: Rules, emitter: Emitter | None = None) -> None:
        self._timed = _TimedDecisions()
        super().__init__(rows, rules, emitter, self._timed)
        self.requests = rows.requests
        self.nacked: dict[int, NackOptions | None] = {}
        self.errors: dict[int, BaseException] = {}
        self.unavailable: dict[int, str] = {}

    @property
    def times(self) -> dict[int, datetime]:
        """The event times of drops, nacks and failures, by input."""
        return self._timed.times

    @property
    def dropped(self) -> list[int]:
        """The inputs that are dropped."""
        return [at for at, end in self.outcomes.items() if isinstance(end, Dropped)]

    def nack(self, index: int, options: NackOptions | None) -> None:
        """Nacks the input; the runtime applies the options."""
        self._timed.claim_times(index)
        self.nacked[index] = options
        self.decisions.finish(index, Redeliver(0, None, 0, options))

    def fail(self, index: int, error: str) -> None:
        """Fails the input, with the event time of the failure."""
        self._timed.claim_times(index)
        super().fail(index, error)

    def record_error(self, index: int, error: BaseException) -> None:
        """Keeps the exception that the function raised on the input."""
        if isinstance(error, Nack):
            self.nack(index, error.options)
        else:
            self.errors[index] = error
            self.decisions.finish(index, _FAILED)

    def postpone(self, index: int, delay: int, why: str) -> None:
        """Leaves the input unanswered, because a system that the function needs is down."""
        self.errors.pop(index, None)
        self.unavailable[index] = why
        self.decisions.finish(index, Retry(delay, why, 0, 0))


class Output(NamedTuple):
    """One output; ``None`` means that it inherits the field from its input."""

    parent: int
    value: bytes
    keys: Sequence[str] | None
    tags: Sequence[str]
    event_time: datetime | None
    metadata: Metadata | None


def list_outputs(outputs: AnyOutputs | None) -> Iterator[Output]:
    """Yields every output."""
    assert outputs is not None, "a function forwards no inputs as they are"
    if isinstance(outputs, ColumnOutputs):
        yield from _list_columns(outputs)
        return
    assert isinstance(outputs, Outputs)
    facts = (outputs.keys, outputs.tags, outputs.event_times, outputs.metadata)
    yield from map(Output, outputs.parents, outputs.values, *facts)


def _list_columns(outputs: ColumnOutputs) -> Iterator[Output]:
    row = 0
    for piece in outputs.pieces:
        count = len(piece["value"])
        parents, tags = (facts[row : row + count] for facts in (outputs.parents, outputs.tags))
        columns = {name: column.to_pylist() for name, column in piece.items()}
        names = ("keys", "event_time", "metadata")
        keys, times, metadata = (columns.get(name, [None] * count) for name in names)
        groups = map(_as_groups, metadata)
        yield from map(Output, parents, columns["value"], keys, tags, times, groups)
        row += count


def _as_groups(
    metadata: Sequence[tuple[str, Sequence[tuple[str, bytes]]]] | None,
) -> Metadata | None:
    if metadata is None:
        return None
    return {group: dict(entries) for group, entries in metadata}


# --- results: replies as messages -----------------------------------------------------------------


class MapResults:
    """Makes the responses of a map or a transformer; each result of a transformer has a time.

    A drop by a transformer is a result as well: Numaflow treats an empty list as an error, and the
    event time of the drop counts.
    """

    def __init__(self, service: Service) -> None:
        self._response = service.stream.response
        self._has_times = "event_time" in self._response.Result.DESCRIPTOR.fields_by_name

    def responses(self, reply: Replies) -> Iterator[bytes]:
        """Yields a response for each request that the function has answered."""
        results = self._gather(reply)
        for index, request in enumerate(reply.requests):
            if index not in reply.errors and index not in reply.unavailable:
                yield self._pack(request.id, results.get(index, []))

    def pieces(self, requests: Sequence[Request], outputs: AnyOutputs | None) -> list[bytes]:
        """Returns a response for each output, as a stream map sends them."""
        return [
            self._pack(requests[out.parent].id, [self._result(requests[out.parent], out)])
            for out in list_outputs(outputs)
        ]

    def _gather(self, reply: Replies) -> Mapping[int, list[Any]]:
        results: defaultdict[int, list[Any]] = defaultdict(list)
        for out in list_outputs(reply.outputs):
            results[out.parent].append(self._result(reply.requests[out.parent], out))
        for index, options in reply.nacked.items():
            packed = None if options is None else write_nack_options(options)
            results[index] = [self._signal(reply, index, NACK, packed)]
        for index, failure in reply.decisions.failed.items():
            reason = {"reason": failure.error}
            results[index] = [self._signal(reply, index, FAIL, reason)]
        for index in reply.dropped:
            results[index] = [self._signal(reply, index, DROP)] if self._has_times else []
        return results

    def _pack(self, id: str, results: list[Any]) -> bytes:
        return pack(self._response, id=id, results=results)

    def _result(self, request: Request, out: Output) -> Any:
        return self._response.Result(
            keys=request.message.keys if out.keys is None else out.keys,
            value=out.value,
            tags=out.tags,
            metadata=_metadata_of(request, out.metadata),
            **self._timed(request, out.event_time),
        )

    def _signal(
        self, reply: Replies, index: int, tag: str, options: Mapping[str, Any] | None = None
    ) -> Any:
        time = self._timed(reply.requests[index], reply.times.get(index))
        return self._response.Result(tags=[tag], nack_options=options, **time)

    def _timed(self, request: Request, own: datetime | None) -> dict[str, Any]:
        """Returns the event time field, if results have one."""
        if not self._has_times:
            return {}
        return {"event_time": request.message.event_time if own is None else write_time(own)}


def responses_of(service: Service) -> Callable[[Replies], Iterator[bytes]]:
    """Returns the function that makes the responses of a service from replies."""
    return sink_responses if service.proto == "sink" else MapResults(service).responses


def sink_responses(reply: Replies) -> Iterator[bytes]:
    """Yields the responses of a sink, each with many results."""
    response, size = sink_pb2.SinkResponse(), 0
    for index, request in enumerate(reply.requests):
        if index in reply.errors or index in reply.unavailable:
            continue
        result = _sink_result(reply, index, request)
        response.results.append(result)
        size += result.ByteSize()
        if size > _MOST_BYTES:
            yield response.SerializeToString()
            response, size = sink_pb2.SinkResponse(), 0
    if response.results:
        yield response.SerializeToString()


def _sink_result(reply: Replies, index: int, request: Request) -> Any:
    decisions, result = reply.decisions, sink_pb2.SinkResponse.Result(id=request.id)
    if index in reply.nacked:
        result.status = sink_pb2.NACK
        if (options := reply.nacked[index]) is not None:
            result.MergeFrom(sink_pb2.SinkResponse.Result(nack_options=write_nack_options(options)))
    elif index in decisions.failed:
        result.status, result.err_msg = sink_pb2.FAILURE, decisions.failed[index].error
    elif index in decisions.fallback:
        result.status = sink_pb2.FALLBACK
    elif index in decisions.served:
        result.status, result.serve_response = sink_pb2.SERVE, decisions.served[index]
    elif index in decisions.on_success:
        result.status = sink_pb2.ON_SUCCESS
        if (message := decisions.on_success[index]) is not None:
            result.on_success_msg.CopyFrom(_on_success_message(request, message))
    return result


def _on_success_message(request: Request, message: Message) -> Any:
    return sink_pb2.SinkResponse.Result.Message(
        value=message.value,
        keys=request.message.keys if message.keys is None else message.keys,
        metadata=_metadata_of(request, message.metadata),
    )


def write_time(time: datetime) -> dict[str, int]:
    """Returns a time as the fields of a timestamp, to the microsecond."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    seconds, rest = divmod((aware - EPOCH) // _MICROSECOND, 1_000_000)
    return {"seconds": seconds, "nanos": rest * 1_000}


def write_metadata(metadata: Mapping[str, Mapping[str, bytes]]) -> Any:
    """Returns user metadata as a message of the protocol."""
    groups = {group: {"key_value": entries} for group, entries in metadata.items()}
    return metadata_pb2.Metadata(user_metadata=groups)


def _metadata_of(request: Request, own: Mapping[str, Mapping[str, bytes]] | None) -> Any:
    if own is not None:
        return write_metadata(own)
    if not request.message.HasField("metadata"):
        return None
    return metadata_pb2.Metadata(user_metadata=request.message.metadata.user_metadata)


# --- failures -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionFailure:
    """The failure of a function. ``wait`` is in milliseconds, if the function set one."""

    text: str
    stack: str
    unavailable: bool = False
    wait: int | None = None

    @classmethod
    def of(cls, container: str, error: BaseException, unavailable: bool = False) -> FunctionFailure:
        """Returns the failure for an exception; ``unavailable`` if a system is down."""
        stack = "".join(traceback.format_exception(error))
        text = f"UDF_EXECUTION_ERROR({container}): {describe_error(error)}"
        return cls(text, stack, unavailable, retry_after(error) if unavailable else None)

    @classmethod
    def of_outage(cls, container: str, what: str, wait: int | None) -> FunctionFailure:
        """Returns the failure for a system that is down, without an exception."""
        return cls(f"UDF_EXECUTION_ERROR({container}): {what}", "", True, wait)

    @property
    def code(self) -> grpc.StatusCode:
        """The status of the stream."""
        return grpc.StatusCode.UNAVAILABLE if self.unavailable else grpc.StatusCode.INTERNAL

    @property
    def details(self) -> str:
        """The text of the status."""
        return self.text[:_LONGEST_TEXT]

    @property
    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """The trailers of the stream: the status again, with stack and wait."""
        status = rpc_status_pb2.Status(code=self.code.value[0], message=self.details)
        if self.stack:
            stack = self.stack.encode("utf-8", "replace")[-_LONGEST_STACK:]
            status.details.add().Pack(rpc_status_pb2.DebugInfo(detail=stack))
        if self.wait is not None:
            info = rpc_status_pb2.RetryInfo()
            info.retry_delay.FromMilliseconds(self.wait)
            status.details.add().Pack(info)
        return ((_STATUS, status.SerializeToString()),)
