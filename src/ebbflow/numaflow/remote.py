"""Maps, sinks and stores that run as functions in their own processes.

A map chooses how it is called: with one message at a time, many of them in flight concurrently;
with batches; or with one message whose outputs it streams. The outputs of a call are forwarded
together once its last message is answered, streamed ones included. If a streaming function fails on
a message halfway, its SDK still marks the outputs of that message as complete and reports the
failure only afterwards. So the answers of a streaming function count only if it is still up after
the call; otherwise all of them are discarded.

A sink receives a batch and an end mark, responds to each message by id, in as many pieces as it
likes, and marks the end. A message with no response, several responses or an unknown status fails
with a ``ContractViolation``; the others keep their responses.

A store that breaks is restarted and called once more; if it breaks again, the message whose answer
was to be stored is to blame. A store that reports that it did not store an answer is unavailable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from typing_extensions import override

from ebbflow.domain.errors import (
    CallTimeout,
    ContractViolation,
    SetupError,
    StreamBroken,
    Unavailable,
)
from ebbflow.domain.message import Message, Response, Status
from ebbflow.engine.frames import join_bytes
from ebbflow.numaflow.decode import Answers
from ebbflow.numaflow.encode import encode_requests
from ebbflow.numaflow.function_session import Failures, FunctionCall, RemoteCode, Session, ask_all
from ebbflow.numaflow.grpc import PREFIX, Arrived, GrpcStream
from ebbflow.numaflow.nacks import read_nack_options
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.proto import sink_pb2, store_pb2
from ebbflow.numaflow.services import READY, SERVICES, MapMode, Service, pack
from ebbflow.usercode.contract import UNTRIED

CONCURRENCY = 500
"""The default for the most messages in flight."""

# The Go SDK sends the outputs of several messages on one stream concurrently, which gRPC forbids:
# once 64 KiB of them are unsent, it blocks forever. So it gets fewer messages at a time.
_SENDS_CONCURRENTLY, _SAFE_BYTES = "go", 16 * 1024
_END_OF_OUTPUTS = SERVICES["map"].stream.end_of_responses
_SINK_FIX = "A sink answers each message of a batch once, with its id, and then marks the end."
_ROW = 0

RowAnswer = Response | BaseException | object
"""The outcome of a row that was not simply written; the only plain object is ``UNTRIED``."""


# --- maps and transformers ------------------------------------------------------------------------


class RemoteMap(RemoteCode):
    """The code of a map or transformer that runs as its own function.

    ``concurrency`` is the most messages in flight, ``batch_size`` the most in a batch.
    """

    def __init__(
        self,
        plan: FunctionPlan,
        vertex: str = "map",
        concurrency: int = CONCURRENCY,
        batch_size: int = CONCURRENCY,
    ) -> None:
        super().__init__(plan)
        self._transforms = plan.container == "transformer"
        self._vertex = vertex
        self._concurrency = concurrency
        self._batch_size = batch_size

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        """Returns the outputs of the rows, and the rows that failed with their errors."""
        call = _MapCall(self._session, batch, self._mode, self._concurrency, self._batch_size)
        failures = ask_all(self._session, call, range(batch.num_rows))
        violations = call.answers.violations(self._vertex, failures)
        if violations:  # a late response would be taken for an answer to the next call
            self._session.renew_streams()
        failures |= violations
        return call.answers.columns(failures), failures

    @property
    def _mode(self) -> MapMode | None:
        return None if self._transforms else self._session.process.server_info.map_mode


class _MapCall(FunctionCall):
    """One call: sends the rows of a batch in the way that the function's mode requires.

    ``mode`` is the mode of a map; a transformer has none.
    """

    def __init__(
        self,
        session: Session,
        batch: pa.RecordBatch,
        mode: MapMode | None,
        concurrency: int,
        batch_size: int,
    ) -> None:
        self._session = session
        self._batched = mode == "batch-map"
        self._streamed = mode == "stream-map"
        ids = _make_distinct(batch.column("id"))
        watermark = batch.column("watermark")[0].as_py() if batch.num_rows else None
        self._requests = encode_requests(batch, ids, session.service, watermark)
        self._in_flight = batch_size if self._batched else concurrency
        if self._streamed and session.process.server_info.language == _SENDS_CONCURRENTLY:
            largest = pc.max(pc.binary_length(self._requests)).as_py() or 1
            self._in_flight = max(1, min(concurrency, _SAFE_BYTES // largest))
        self.answers = Answers(ids, session.service, self._streamed)

    @property
    def _stream(self) -> GrpcStream:
        (stream,) = self._session.streams.values()
        return stream

    @override
    def ask(self, rows: Sequence[int]) -> None:
        if self._batched:
            for start in range(0, len(rows), self._in_flight):
                self._ask_batch(rows[start : start + self._in_flight])
        elif self._streamed:
            self._ask_streaming(rows)
        else:
            self._ask_concurrently(rows)

    @override
    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return self.answers.unanswered(rows)

    def _ask_concurrently(self, rows: Sequence[int]) -> None:
        """Keeps many rows in flight until every row is answered."""
        sent = answered = 0
        while answered < len(rows):
            # Refilled once a quarter is free, because adding rows singly means many small writes.
            if sent < len(rows) and 4 * (sent - answered) <= 3 * self._in_flight:
                end = min(len(rows), answered + self._in_flight)
                self._stream.send_packed(_pack(self._requests, rows[sent:end]))
                sent = end
            parts = self._receive()
            answered += sum(map(_count_marks if self._streamed else len, parts))

    def _ask_streaming(self, rows: Sequence[int]) -> None:
        """Does the same, but keeps the answers only if the function is still up afterwards."""
        with self.answers.all_or_nothing(rows):
            self._ask_concurrently(rows)
            self._session.call(READY)
            self._stream.raise_if_ended()

    def _ask_batch(self, rows: Sequence[int]) -> None:
        """Sends the function a batch and waits until it has marked the end of its answers.

        Some SDKs end the stream with each batch; the next batch then needs a new stream.
        """
        packed = b"".join((_pack(self._requests, rows), _end_of_batch(self._session.service)))
        self._stream.send_packed(packed)
        parts = self._stream.receive_parts()
        if not parts:
            self._session.renew_streams()
            self._stream.send_packed(packed)
        self.answers.keep(parts)
        while not any(map(_count_marks, parts)):
            parts = self._receive()

    def _receive(self) -> list[Arrived]:
        parts = self._stream.receive_parts()
        if not parts:
            raise StreamBroken("the function ended the stream before it had answered")
        self.answers.keep(parts)
        return parts


def _make_distinct(ids: pa.StringArray) -> pa.StringArray:
    """Returns the ids; a repeated id gets a number appended, so that all are distinct."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return ids
    seen: dict[str, Any] = {}
    names = [(i, next(seen.setdefault(i, count(1)))) for i in ids.to_pylist()]
    return pa.array([i if number == 1 else f"{i}#{number}" for i, number in names], pa.string())


def _count_marks(part: Arrived) -> int:
    """Returns how many of the messages carry an end mark, which comes last in a message."""
    buffer, ends = part.buffer, iter(part.edges)
    return sum(
        buffer.endswith(_END_OF_OUTPUTS, start, end) for start, end in zip(ends, ends, strict=True)
    )


def _pack(requests: pa.BinaryArray, rows: Sequence[int]) -> bytes | memoryview:
    """Returns the requests of the rows as one byte string; faster for a contiguous range."""
    if isinstance(rows, range):
        return join_bytes(requests.slice(rows.start, len(rows)))
    return b"".join(requests.take(pa.array(rows, pa.int64())).to_pylist())


def _end_of_batch(service: Service) -> bytes:
    mark = service.stream.end_of_requests
    return PREFIX.pack(0, len(mark)) + mark


# --- sinks ----------------------------------------------------------------------------------------


class RemoteSink(RemoteCode):
    """The code of a sink that runs as its own function: primary, fallback or on-success."""

    def __call__(self, rows: pa.RecordBatch) -> dict[int, RowAnswer] | None:
        """Asks the function to write a batch; returns the outcomes of rows that are not written."""
        if not self._session.is_open or self._has_stray_responses():
            self._session.reopen()
        call = _SinkCall(self._session, rows)
        failures = ask_all(self._session, call, range(rows.num_rows))
        answers: dict[int, RowAnswer] = {
            row: UNTRIED if error is None else error for row, error in failures.items()
        }
        answers |= call.read_answers(self._name, failures)
        if call.unknown_ids:  # more may be in flight
            self._reopen()
        return answers or None

    def _has_stray_responses(self) -> bool:
        """Returns whether the function sent anything, or ended, after the end mark of a batch.

        Such a response may name a message that is sent again later. It must not be taken for a
        response to the next call.
        """
        (stream,) = self._session.streams.values()
        try:
            stream.receive(0)
        except CallTimeout:
            return False
        except StreamBroken:
            pass
        return True

    def _reopen(self) -> None:
        """Restarts the function; if that fails, the next call raises the error."""
        with contextlib.suppress(Unavailable, SetupError):
            self._session.reopen()


class _SinkCall(FunctionCall):
    """One call with the rows of a batch.

    ``unknown_ids`` are ids in responses that were not in the batch or came after the end mark.
    """

    def __init__(self, session: Session, rows: pa.RecordBatch) -> None:
        watermark = rows.column("watermark")[0].as_py() if rows.num_rows else None
        self._session = session
        self._values = rows.column("value")
        self._ids: list[str] = rows.column("id").to_pylist()
        self._requests = encode_requests(rows, rows.column("id"), session.service, watermark)
        self._results: dict[int, list[Any]] = {}
        self.unknown_ids: list[str] = []

    @override
    def ask(self, rows: Sequence[int]) -> None:
        for batch in self._without_copies(rows):
            self._ask_batch(batch)

    @override
    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row not in self._results]

    def _without_copies(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yields batches without repeated ids, nearly always a single one.

        Copies of a message keep their id, so a function that writes by id overwrites the message.
        """
        while rows:
            first = {self._ids[row]: row for row in reversed(rows)}
            if len(first) == len(rows):
                yield rows
                return
            chosen = set(first.values())
            yield sorted(chosen)
            rows = [row for row in rows if row not in chosen]

    def _ask_batch(self, rows: Sequence[int]) -> None:
        (stream,) = self._session.streams.values()
        end = _end_of_batch(self._session.service)
        stream.send_packed(b"".join((_pack(self._requests, rows), end)))
        by_id = {self._ids[row]: row for row in rows}
        ended = False
        while not ended:
            responses = stream.receive()
            if not responses:
                raise StreamBroken("the function ended the stream before it had answered")
            for text in responses:
                ended = self._keep(_decode(text), {} if ended else by_id) or ended

    def _keep(self, response: Any, by_id: Mapping[str, int]) -> bool:
        """Keeps the results of a response; returns whether it marks the end."""
        for result in response.results:
            row = by_id.get(result.id)
            if row is None:
                self.unknown_ids.append(result.id)
            else:
                self._results.setdefault(row, []).append(result)
        return bool(response.status.eot)

    def read_answers(self, name: str, failed: Mapping[int, Any]) -> dict[int, RowAnswer]:
        """Returns the outcomes of the rows that were neither written nor failed."""
        answers: dict[int, RowAnswer] = {}
        wrong: list[int] = []
        for row in range(len(self._ids)):
            results = self._results.get(row, ())
            if row in failed:
                continue
            if len(results) != 1:
                wrong.append(row)
            elif results[0].status != sink_pb2.SUCCESS:
                answers[row] = self._read_result(name, row, results[0])
        return answers | dict.fromkeys(wrong, self._violation(name, wrong))

    def _read_result(self, name: str, row: int, result: Any) -> RowAnswer:
        match result.status:
            case sink_pb2.FAILURE:
                return Response("", Status.FAILURE, error=result.err_msg or "failed")
            case sink_pb2.FALLBACK:
                return Response.fallback()
            case sink_pb2.SERVE:
                sent = result.HasField("serve_response")
                return Response.serve(payload=result.serve_response if sent else self._value(row))
            case sink_pb2.ON_SUCCESS:
                has_message = result.HasField("on_success_msg")
                message = _to_message(result.on_success_msg) if has_message else None
                return Response.on_success(message=message)
            case sink_pb2.NACK:
                has_options = result.HasField("nack_options")
                options = read_nack_options(result.nack_options) if has_options else None
                return Response.nack(reason=options)
            case unknown:
                what = f"answered with the unknown status {unknown}"
                return ContractViolation(name, what, [self._ids[row]], _SINK_FIX)

    def _value(self, row: int) -> bytes:
        return self._values[row].as_py()  # type: ignore[no-any-return]

    def _violation(self, name: str, wrong: Sequence[int]) -> ContractViolation:
        faulty: dict[str, Sequence[object]] = {
            "no response": [row for row in wrong if row not in self._results],
            "several responses": [row for row in wrong if row in self._results],
            "responses for unknown ids": self.unknown_ids,
        }
        problems = [f"{fault} for {len(rows)}" for fault, rows in faulty.items() if rows]
        answers = sum(map(len, self._results.values())) + len(self.unknown_ids)
        return ContractViolation(
            name,
            f"answered {answers} responses to {len(self._ids)} messages: {'; '.join(problems)}",
            [*(self._ids[row] for row in wrong), *self.unknown_ids],
            _SINK_FIX,
        )


def _decode(text: bytes) -> Any:
    try:
        return sink_pb2.SinkResponse.FromString(text)
    except DecodeError as error:
        raise StreamBroken(f"the function sent an undecodable response: {error}") from error


def _to_message(sent: Any) -> Message:
    """Returns the message for the on-success sink. Output of functions inherits nothing."""
    groups = sent.metadata.user_metadata.items()
    metadata = {name: dict(group.key_value) for name, group in groups}
    return Message(sent.value, list(sent.keys), metadata=metadata)


# --- stores ---------------------------------------------------------------------------------------


class RemoteStore(RemoteCode):
    """The code of a store that runs as its own function."""

    def __init__(self, plan: FunctionPlan) -> None:
        super().__init__(plan)
        self._origin = os.environ.get("NUMAFLOW_VERTEX_NAME", "")

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request; raises if the store does not accept them."""
        answers = [{"origin": self._origin, "value": payload} for payload in payloads]
        answer = self._ask("Put", pack(store_pb2.PutRequest, id=id, payloads=answers))
        if not store_pb2.PutResponse.FromString(answer).success:
            raise Unavailable(f"the store {self._name}: it did not store an answer")

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for an unknown request."""
        answer = self._ask("Get", pack(store_pb2.GetRequest, id=id))
        return [stored.value for stored in store_pb2.GetResponse.FromString(answer).payloads]

    def _ask(self, name: str, request: bytes) -> bytes:
        if not self._session.is_open:
            self._session.reopen()
        call = _StoreCall(self._session, name, request)
        error = ask_all(self._session, call, [_ROW]).get(_ROW)
        if error is not None:
            raise error
        assert call.answer is not None, "a call without an answer has an error"
        return call.answer


class _StoreCall(FunctionCall):
    """One call; its only row represents the answer to its request."""

    def __init__(self, session: Session, name: str, request: bytes) -> None:
        self.answer: bytes | None = None
        self._session = session
        self._name = name
        self._request = request

    @override
    def ask(self, rows: Sequence[int]) -> None:
        self.answer = self._session.call(self._name, self._request)

    @override
    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return list(rows)  # a call that broke has no answer
