"""Maps and transformers in processes of their own, called as columnar maps are.

A function says how it wants to be called: with a message at a time, of which many are in flight
side by side; with batches; or with a message for which it sends outputs one by one. The outputs of
a call are forwarded together when the last of its messages is answered, also those sent one by one.

SDKs for functions that send outputs one by one mark the outputs of a message as complete also when
the function has failed on it in the middle, and tell only then. So what such a function has
answered counts when it is still there afterwards, and nothing of it counts when it breaks off.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import StreamBroken
from ebbflow.engine.frames import join_bytes
from ebbflow.numaflow.answers import Answers
from ebbflow.numaflow.breaks import Failures, ask_all
from ebbflow.numaflow.function import FunctionPlan, FunctionProcess
from ebbflow.numaflow.proto import map_pb2
from ebbflow.numaflow.requests import MAP, TRANSFORM, Shape, encode_requests
from ebbflow.numaflow.responses import MAP_RESULT, TRANSFORM_RESULT, ResultShape
from ebbflow.numaflow.server_info import MapMode
from ebbflow.numaflow.session import Service, Session
from ebbflow.numaflow.stream import PREFIX, Arrived, GrpcStream

CONCURRENCY = 500
"""The most messages in flight, unless a spec says something else."""

_HANDSHAKE, _SECOND_HANDSHAKE = b"\x1a\x02\x08\x01", b"\x12\x02\x08\x01"
_MAP_FN, _TRANSFORM_FN = "MapFn", "SourceTransformFn"
MAP_SERVICE = Service("map.v1.Map", (_MAP_FN,), _HANDSHAKE, _HANDSHAKE)
TRANSFORM_SERVICE = Service(
    "sourcetransformer.v1.SourceTransform", (_TRANSFORM_FN,), _SECOND_HANDSHAKE, _HANDSHAKE
)

# The SDK for Go sends the outputs of several messages side by side on one stream, which gRPC does
# not allow: once 64 KiB of them wait, they wait for ever. So it gets fewer messages at a time.
_SENDS_SIDE_BY_SIDE, _LEAST_ROOM = "go", 16 * 1024

_EOT = map_pb2.MapRequest(status={"eot": True}).SerializeToString()
_EOT_MARK = b"\x22\x02\x08\x01"


class RemoteMap:
    """The code of a map or transformer that runs as a function of its own.

    ``concurrency`` is the most messages in flight, ``batch_size`` the most of a batch.
    """

    def __init__(
        self,
        plan: FunctionPlan,
        vertex: str = "map",
        concurrency: int = CONCURRENCY,
        batch_size: int = CONCURRENCY,
    ) -> None:
        self._transforms = plan.container == "transformer"
        service = TRANSFORM_SERVICE if self._transforms else MAP_SERVICE
        self._session = Session(FunctionProcess(plan), service)
        self._vertex = vertex
        self._concurrency = concurrency
        self._batch_size = batch_size

    def open(self) -> None:
        """Starts the function and opens its stream; ``Unavailable`` if that cannot be done."""
        self._session.open()

    def close(self) -> None:
        """Ends the function."""
        self._session.close()

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Failures]:
        """Returns the outputs of the rows, and those that failed with their errors."""
        call = MapCall(self._session, batch, self._mode, self._concurrency, self._batch_size)
        failures = ask_all(self._session, call, range(batch.num_rows))
        violations = call.answers.violations(self._vertex, failures)
        if violations:  # what is still on its way would be taken for an answer to the next call
            self._session.renew_streams()
        failures |= violations
        return call.answers.columns(failures), failures

    @property
    def _mode(self) -> MapMode | None:
        return None if self._transforms else self._session.process.server_info.map_mode


class MapCall:
    """One call: asks for rows of a batch, as the function wants to be asked. ``Asking``.

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
        shape, result = _SHAPES[mode is None]
        watermark = batch.column("watermark")[0].as_py() if batch.num_rows else None
        self._requests = encode_requests(batch, ids, shape, watermark)
        self._in_flight = batch_size if self._batched else concurrency
        if self._streamed and session.process.server_info.language == _SENDS_SIDE_BY_SIDE:
            largest = pc.max(pc.binary_length(self._requests)).as_py()
            self._in_flight = max(1, min(concurrency, _LEAST_ROOM // largest))
        self.answers = Answers(ids, result, self._streamed)

    @property
    def _stream(self) -> GrpcStream:
        (stream,) = self._session.streams.values()
        return stream

    def ask(self, rows: Sequence[int]) -> None:
        """As in ``Asking``."""
        if self._batched:
            for start in range(0, len(rows), self._in_flight):
                self._ask_batch(rows[start : start + self._in_flight])
        elif self._streamed:
            self._ask_for_streams(rows)
        else:
            self._ask_side_by_side(rows)

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """As in ``Asking``."""
        return self.answers.unanswered(rows)

    def _ask_side_by_side(self, rows: Sequence[int]) -> None:
        """Keeps many rows in flight until as many answers have come."""
        sent = answered = 0
        while answered < len(rows):
            # Filled up when a quarter is free: a few rows at a time would be many small writes.
            if sent < len(rows) and 4 * (sent - answered) <= 3 * self._in_flight:
                end = min(len(rows), answered + self._in_flight)
                self._stream.send_packed(self._pack(rows[sent:end]))
                sent = end
            parts = self._receive()
            answered += sum(map(_count_marks if self._streamed else len, parts))

    def _ask_for_streams(self, rows: Sequence[int]) -> None:
        """Does the same, and believes the answers only if the function is there afterwards."""
        with self.answers.all_or_nothing(rows):
            self._ask_side_by_side(rows)
            self._session.call("IsReady")
            self._stream.raise_if_ended()

    def _ask_batch(self, rows: Sequence[int]) -> None:
        """Gives the function a batch and waits until it has marked the end of its answers.

        Some SDKs end the stream with each batch; then the next one goes to a new stream.
        """
        packed = self._pack(rows) + PREFIX.pack(0, len(_EOT)) + _EOT
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

    def _pack(self, rows: Sequence[int]) -> bytes:
        """Returns the requests of rows that stand one behind the other, or of any others."""
        if isinstance(rows, range):
            return bytes(join_bytes(self._requests.slice(rows.start, len(rows))))
        return b"".join(self._requests.take(pa.array(rows, pa.int64())).to_pylist())


_SHAPES: dict[bool, tuple[Shape, ResultShape]] = {
    False: (MAP, MAP_RESULT),
    True: (TRANSFORM, TRANSFORM_RESULT),
}


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
        buffer.endswith(_EOT_MARK, start, end) for start, end in zip(ends, ends, strict=True)
    )
