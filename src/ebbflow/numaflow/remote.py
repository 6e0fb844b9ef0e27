"""Functions in their own processes that are given rows and answer: maps, sinks and stores.

A map says how it wants to be called: with a message at a time, of which many are in flight side by
side; with batches; or with a message for which it sends outputs one by one. The outputs of a call
are forwarded together when the last of its messages is answered, also those sent one by one. SDKs
for functions that send outputs one by one mark the outputs of a message as complete also when the
function has failed on it in the middle, and report the failure only then. So what such a function
has answered counts when it is still there afterwards, and nothing of it counts when it breaks off.

A sink is given a batch and an end mark, answers for each message under its id, in as many pieces as
it likes, and marks the end. A message that has no answer or several, or an answer that means
nothing, has failed with a ``ContractViolation``; the others keep their answers.

A store that breaks is opened again and asked once more; if it breaks again, the message whose
answer it was is to blame. One that says that it has not stored an answer is unavailable.
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
from ebbflow.numaflow.function_session import Asking, Failures, RemoteCode, Session, ask_all
from ebbflow.numaflow.grpc import PREFIX, Arrived, GrpcStream
from ebbflow.numaflow.nacks import read_nack_options
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.proto import sink_pb2, store_pb2
from ebbflow.numaflow.services import READY, SERVICES, MapMode, Service, pack
from ebbflow.usercode.contract import UNTRIED

CONCURRENCY = 500
"""The most messages in flight, unless a spec says something else."""

# The SDK for Go sends the outputs of several messages side by side on one stream, which gRPC does
# not allow: once 64 KiB of them wait, they wait for ever. So it gets fewer messages at a time.
_SENDS_SIDE_BY_SIDE, _LEAST_ROOM = "go", 16 * 1024
_END_OF_OUTPUTS = SERVICES["map"].stream.end_of_responses
_SINK_FIX = "A sink answers each message of a batch once, with its id, and then marks the end."
_ROW = 0

RowAnswer = Response | BaseException | object
"""The outcome of a row that was not simply written; an object is ``UNTRIED``."""


# --- maps and transformers ------------------------------------------------------------------------


class RemoteMap(RemoteCode):
    """The code of a map or transformer that runs as its own function.

    ``concurrency`` is the most messages in flight, ``batch_size`` the most of a batch.
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
        """Returns the outputs of the rows, and those that failed with their errors."""
        call = _MapCall(self._session, batch, self._mode, self._concurrency, self._batch_size)
        failures = ask_all(self._session, call, range(batch.num_rows))
        violations = call.answers.violations(self._vertex, failures)
        if violations:  # what is still in flight would be taken for an answer to the next call
            self._session.renew_streams()
        failures |= violations
        return call.answers.columns(failures), failures

    @property
    def _mode(self) -> MapMode | None:
        return None if self._transforms else self._session.process.server_info.map_mode


class _MapCall(Asking):
    """One call: asks for rows of a batch, as the function wants to be asked.

    ``mode`` is that of a map; a transformer has none.
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
        ids = _name_apart(batch.column("id"))
        watermark = batch.column("watermark")[0].as_py() if batch.num_rows else None
        self._requests = encode_requests(batch, ids, session.service, watermark)
        self._in_flight = batch_size if self._batched else concurrency
        if self._streamed and session.process.server_info.language == _SENDS_SIDE_BY_SIDE:
            largest = pc.max(pc.binary_length(self._requests)).as_py()
            self._in_flight = max(1, min(concurrency, _LEAST_ROOM // largest))
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
            self._ask_for_streams(rows)
        else:
            self._ask_side_by_side(rows)

    @override
    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return self.answers.unanswered(rows)

    def _ask_side_by_side(self, rows: Sequence[int]) -> None:
        """Keeps many rows in flight until as many answers have come."""
        sent = answered = 0
        while answered < len(rows):
            # Filled up when a quarter is free: a few rows at a time would be many small writes.
            if sent < len(rows) and 4 * (sent - answered) <= 3 * self._in_flight:
                end = min(len(rows), answered + self._in_flight)
                self._stream.send_packed(_pack(self._requests, rows[sent:end]))
                sent = end
            parts = self._receive()
            answered += sum(map(_count_marks if self._streamed else len, parts))

    def _ask_for_streams(self, rows: Sequence[int]) -> None:
        """Does the same, and believes the answers only if the function is there afterwards."""
        with self.answers.all_or_nothing(rows):
            self._ask_side_by_side(rows)
            self._session.call(READY)
            self._stream.raise_if_ended()

    def _ask_batch(self, rows: Sequence[int]) -> None:
        """Gives the function a batch and waits until it has marked the end of its answers.

        Some SDKs end the stream with each batch; then the next one goes to a new stream.
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


def _name_apart(ids: pa.StringArray) -> pa.StringArray:
    """Returns the ids, copies of a message in one batch with a number behind theirs."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return ids
    seen: dict[str, Any] = {}
    names = [(i, next(seen.setdefault(i, count(1)))) for i in ids.to_pylist()]
    return pa.array([i if number == 1 else f"{i}#{number}" for i, number in names], pa.string())


def _count_marks(part: Arrived) -> int:
    """Returns how many of the messages mark an end; the mark stands last, if anywhere."""
    buffer, ends = part.buffer, iter(part.edges)
    return sum(
        buffer.endswith(_END_OF_OUTPUTS, start, end) for start, end in zip(ends, ends, strict=True)
    )


def _pack(requests: pa.BinaryArray, rows: Sequence[int]) -> bytes | memoryview:
    """Returns the requests of rows that stand one behind the other, or of any others."""
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
        """Has the function write a batch; returns the outcomes of the rows that are not written."""
        if not self._session.is_open or self._is_out_of_step():
            self._session.reopen()
        call = _SinkCall(self._session, rows)
        failures = ask_all(self._session, call, range(rows.num_rows))
        answers: dict[int, RowAnswer] = {
            row: UNTRIED if error is None else error for row, error in failures.items()
        }
        answers |= call.read_answers(self._name, failures)
        if call.strange:  # more may be in flight
            self._reopen()
        return answers or None

    def _is_out_of_step(self) -> bool:
        """Returns whether the function has said something since it marked the end of a batch.

        It may be about any message, and the same one may come again: it must not pass for an
        answer to the next call.
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
        """Opens the function again; if that cannot be done, the next call says so."""
        with contextlib.suppress(Unavailable, SetupError):
            self._session.reopen()


class _SinkCall(Asking):
    """One call: asks for rows of a batch.

    ``strange`` are ids that were answered and not asked about, or answered behind the end mark.
    """

    def __init__(self, session: Session, rows: pa.RecordBatch) -> None:
        watermark = rows.column("watermark")[0].as_py() if rows.num_rows else None
        self._session = session
        self._values = rows.column("value")
        self._ids: list[str] = rows.column("id").to_pylist()
        self._requests = encode_requests(rows, rows.column("id"), session.service, watermark)
        self._results: dict[int, list[Any]] = {}
        self.strange: list[str] = []

    @override
    def ask(self, rows: Sequence[int]) -> None:
        for batch in self._without_copies(rows):
            self._ask_batch(batch)

    @override
    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row not in self._results]

    def _without_copies(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yields batches in which every id is there once, nearly always just one.

        Copies of a message keep their id: a function that writes under it writes the same again.
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
                ended = self._keep(_read(text), {} if ended else by_id) or ended

    def _keep(self, response: Any, by_id: Mapping[str, int]) -> bool:
        """Keeps the results of a response; returns whether it marks the end."""
        for result in response.results:
            row = by_id.get(result.id)
            if row is None:
                self.strange.append(result.id)
            else:
                self._results.setdefault(row, []).append(result)
        return bool(response.status.eot)

    def read_answers(self, name: str, failed: Mapping[int, Any]) -> dict[int, RowAnswer]:
        """Returns the outcomes of the rows that are neither written nor among the failed ones."""
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
                own = result.HasField("serve_response")
                return Response.serve(payload=result.serve_response if own else self._value(row))
            case sink_pb2.ON_SUCCESS:
                given = result.HasField("on_success_msg")
                message = _message(result.on_success_msg) if given else None
                return Response.on_success(message=message)
            case sink_pb2.NACK:
                given = result.HasField("nack_options")
                options = read_nack_options(result.nack_options) if given else None
                return Response.nack(reason=options)
            case unknown:
                what = f"answered with the status {unknown}, which means nothing"
                return ContractViolation(name, what, [self._ids[row]], _SINK_FIX)

    def _value(self, row: int) -> bytes:
        return self._values[row].as_py()  # type: ignore[no-any-return]

    def _violation(self, name: str, wrong: Sequence[int]) -> ContractViolation:
        faulty: dict[str, Sequence[object]] = {
            "no response": [row for row in wrong if row not in self._results],
            "several responses": [row for row in wrong if row in self._results],
            "responses for unknown ids": self.strange,
        }
        problems = [f"{fault} for {len(rows)}" for fault, rows in faulty.items() if rows]
        answers = sum(map(len, self._results.values())) + len(self.strange)
        return ContractViolation(
            name,
            f"answered {answers} responses to {len(self._ids)} messages: {'; '.join(problems)}",
            [*(self._ids[row] for row in wrong), *self.strange],
            _SINK_FIX,
        )


def _read(text: bytes) -> Any:
    try:
        return sink_pb2.SinkResponse.FromString(text)
    except DecodeError as error:
        raise StreamBroken(f"the function answered what cannot be read: {error}") from error


def _message(said: Any) -> Message:
    """Returns what the on-success sink gets: as all that functions send, it inherits nothing."""
    groups = said.metadata.user_metadata.items()
    metadata = {name: dict(group.key_value) for name, group in groups}
    return Message(said.value, list(said.keys), metadata=metadata)


# --- stores ---------------------------------------------------------------------------------------


class RemoteStore(RemoteCode):
    """The code of a store that runs as its own function."""

    def __init__(self, plan: FunctionPlan) -> None:
        super().__init__(plan)
        self._origin = os.environ.get("NUMAFLOW_VERTEX_NAME", "")

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request; raises if the store has not taken them."""
        answers = [{"origin": self._origin, "value": payload} for payload in payloads]
        answer = self._ask("Put", pack(store_pb2.PutRequest, id=id, payloads=answers))
        if not store_pb2.PutResponse.FromString(answer).success:
            raise Unavailable(f"the store {self._name}: it did not store an answer")

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for one that is not known."""
        answer = self._ask("Get", pack(store_pb2.GetRequest, id=id))
        return [said.value for said in store_pb2.GetResponse.FromString(answer).payloads]

    def _ask(self, name: str, request: bytes) -> bytes:
        if not self._session.is_open:
            self._session.reopen()
        call = _StoreCall(self._session, name, request)
        error = ask_all(self._session, call, [_ROW]).get(_ROW)
        if error is not None:
            raise error
        assert call.answer is not None, "one that is not answered has an error"
        return call.answer


class _StoreCall(Asking):
    """One call: its only row is the answer to a request."""

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
