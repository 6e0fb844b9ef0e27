"""Sinks in processes of their own, called as columnar sinks are.

A sink is given a batch and an end mark, answers for each message under its id, in as many pieces
as it likes, and marks the end. A message that has no answer or several, or an answer that means
nothing, has failed with a ``ContractViolation``; the others keep their answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from ebbflow.domain.errors import (
    CallTimeout,
    ContractViolation,
    SetupError,
    StreamBroken,
    Unavailable,
)
from ebbflow.domain.message import Message, RowResponse, Status
from ebbflow.engine.frames import join_bytes
from ebbflow.numaflow.breaks import ask_all
from ebbflow.numaflow.function import FunctionPlan, FunctionProcess
from ebbflow.numaflow.nack_options import read_options
from ebbflow.numaflow.proto import sink_pb2
from ebbflow.numaflow.requests import SINK, encode_requests
from ebbflow.numaflow.session import Service, Session
from ebbflow.numaflow.stream import PREFIX
from ebbflow.usercode.contract import UNTRIED

SINK_SERVICE = Service(
    "sink.v1.Sink",
    ("SinkFn",),
    sink_pb2.SinkRequest(handshake={"sot": True}).SerializeToString(),
    sink_pb2.SinkResponse(handshake={"sot": True}).SerializeToString(),
)

_EOT = sink_pb2.SinkRequest(status={"eot": True}).SerializeToString()
_END = PREFIX.pack(0, len(_EOT)) + _EOT

_FIX = "A sink answers each message of a batch once, with its id, and then marks the end."

RowAnswer = RowResponse | BaseException | object
"""What becomes of a row that was not simply written; an object is ``UNTRIED``."""


class RemoteSink:
    """The code of a sink that runs as a function of its own: primary, fallback or on-success."""

    def __init__(self, plan: FunctionPlan) -> None:
        self._name = plan.name
        self._session = Session(FunctionProcess(plan), SINK_SERVICE)

    def open(self) -> None:
        """Starts the function and opens its stream; ``Unavailable`` if that cannot be done."""
        self._session.open()

    def close(self) -> None:
        """Ends the function."""
        self._session.close()

    def __call__(self, rows: pa.RecordBatch) -> dict[int, RowAnswer] | None:
        """Has the function write a batch; returns what becomes of the rows that are not written."""
        if not self._session.is_open or self._is_out_of_step():
            self._session.reopen()
        call = SinkCall(self._session, rows)
        failures = ask_all(self._session, call, range(rows.num_rows))
        answers: dict[int, RowAnswer] = {
            row: UNTRIED if error is None else error for row, error in failures.items()
        }
        answers |= call.read_answers(self._name, failures)
        if call.strange:  # more may be on its way
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
        """Opens the function anew; if that cannot be done, the next call says so."""
        with contextlib.suppress(Unavailable, SetupError):
            self._session.reopen()


class SinkCall:
    """One call: asks for rows of a batch. ``Asking``.

    ``strange`` are ids that were answered and not asked about, or answered behind the end mark.
    """

    def __init__(self, session: Session, rows: pa.RecordBatch) -> None:
        watermark = rows.column("watermark")[0].as_py() if rows.num_rows else None
        self._session = session
        self._values = rows.column("value")
        self._ids: list[str] = rows.column("id").to_pylist()
        self._requests = encode_requests(rows, rows.column("id"), SINK, watermark)
        self._results: dict[int, list[Any]] = {}
        self.strange: list[str] = []

    def ask(self, rows: Sequence[int]) -> None:
        """As in ``Asking``."""
        for batch in self._without_copies(rows):
            self._ask_batch(batch)

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """As in ``Asking``."""
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
        stream.send_packed(b"".join((self._pack(rows), _END)))
        by_id = {self._ids[row]: row for row in rows}
        ended = False
        while not ended:
            responses = stream.receive()
            if not responses:
                raise StreamBroken("the function ended the stream before it had answered")
            for text in responses:
                ended = self._keep(_read(text), {} if ended else by_id) or ended

    def _keep(self, response: sink_pb2.SinkResponse, by_id: Mapping[str, int]) -> bool:
        """Keeps the results of a response; returns whether it marks the end."""
        for result in response.results:
            row = by_id.get(result.id)
            if row is None:
                self.strange.append(result.id)
            else:
                self._results.setdefault(row, []).append(result)
        return response.status.eot

    def _pack(self, rows: Sequence[int]) -> bytes | memoryview:
        if isinstance(rows, range):
            return join_bytes(self._requests.slice(rows.start, len(rows)))
        return b"".join(self._requests.take(pa.array(rows, pa.int64())).to_pylist())

    def read_answers(self, name: str, failed: Mapping[int, Any]) -> dict[int, RowAnswer]:
        """Returns what becomes of the rows that are neither written nor among the failed ones."""
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
                return RowResponse(Status.FAILURE, error=result.err_msg or "failed")
            case sink_pb2.FALLBACK:
                return RowResponse.fallback()
            case sink_pb2.SERVE:
                own = result.HasField("serve_response")
                return RowResponse.serve(result.serve_response if own else self._value(row))
            case sink_pb2.ON_SUCCESS:
                given = result.HasField("on_success_msg")
                return RowResponse.on_success(_message(result.on_success_msg) if given else None)
            case sink_pb2.NACK:
                given = result.HasField("nack_options")
                return RowResponse.nack(read_options(result.nack_options) if given else None)
            case unknown:
                what = f"answered with the status {unknown}, which means nothing"
                return ContractViolation(name, what, [self._ids[row]], _FIX)

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
            _FIX,
        )


def _read(text: bytes) -> sink_pb2.SinkResponse:
    try:
        return sink_pb2.SinkResponse.FromString(text)
    except DecodeError as error:
        raise StreamBroken(f"the function answered what cannot be read: {error}") from error


def _message(said: Any) -> Message:
    """Returns what the on-success sink gets: as all that functions send, it inherits nothing."""
    groups = said.metadata.user_metadata.items()
    metadata = {name: dict(group.key_value) for name, group in groups}
    return Message(said.value, list(said.keys), metadata=metadata)
