"""Sources in their own processes, read from as any source is.

A function is asked for a number of messages, sends them one by one and marks the end. It is asked
for the next ones before the last ones have been handed on, so that it never waits for us. What it
sends between reads waits in the connection; a read returns whatever has arrived in its time,
and the function continues with what it was asked for.

A function that breaks while it is read from, or is gone, is unavailable: what it gave is handed on,
then it is closed and opened again. One that fails on an acknowledgement fails its vertex, as any
source does that raises there.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from typing_extensions import override

from ebbflow.domain.errors import CallTimeout, StreamBroken, Unavailable
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset, Source
from ebbflow.numaflow.decode import offset_of, read_messages
from ebbflow.numaflow.function_session import RemoteCode
from ebbflow.numaflow.grpc import UNAVAILABLE, Arrived, GrpcStream
from ebbflow.numaflow.nacks import HeldNacks, write_nack_options
from ebbflow.numaflow.process import BATCH_ROWS, FunctionPlan
from ebbflow.numaflow.proto import source_pb2
from ebbflow.numaflow.services import pack

_READ, _ACK = "ReadFn", "AckFn"
ACK_LIMIT = 60.0
"""The seconds that a function may take to learn of messages that are settled."""

_CALL_LIMIT = 10.0
# Seconds for which a read continues once the first messages have come: a word to the task costs
# hardly more with many than with few.
_GATHER = 0.005
_AHEAD = 2
_MESSAGE_FIRST = b"\x0a"


class RemoteSource(RemoteCode, Source):
    """The code of a source that runs as its own function.

    A function whose SDK has no nacks looks like a source without them: Ebbflow then keeps the
    messages itself. One whose SDK tells no options learns of a nack when its delay is over.
    """

    def __init__(self, plan: FunctionPlan) -> None:
        super().__init__(plan)
        self._batch_rows = int(os.environ.get("NUMAFLOW_READ_BATCH_SIZE") or BATCH_ROWS)
        self._asked = 0
        self._ahead = 1
        self._broken: StreamBroken | None = None
        self._held = HeldNacks()

    @override
    def open(self) -> None:
        super().open()
        if not self._session.process.server_info.takes_nacks:
            self.nack = None  # type: ignore[assignment,method-assign]

    # --- reading --------------------------------------------------------------------------------

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns what arrives in that time, as columns; ``Unavailable`` if the function broke."""
        self._raise_if_broken()
        now = time.monotonic()
        self._nack_now(self._held.take_due(now))
        seconds = min(timeout.total_seconds(), self._held.due_in(now))
        try:
            messages, ends = read_messages(self._receive(limit, seconds))
        except (ValueError, DecodeError) as error:
            raise StreamBroken(f"the function gave what cannot be read: {error}") from error
        self._asked -= ends
        # One that has given as many as it was asked for has more, and need not wait to be asked.
        self._ahead = _AHEAD if messages.num_rows >= self._batch_rows else 1
        if messages.num_rows:
            self._ask(limit, seconds)
        else:
            self._raise_if_broken()
        return messages

    def _receive(self, limit: int, timeout: float) -> list[Arrived]:
        """Returns what arrives until there is enough, or nothing more for the moment."""
        parts: list[Arrived] = []
        self._ask(limit, timeout)
        until, ends = time.monotonic() + timeout, 0
        while not self._broken and (arrived := self._receive_until(until)):
            if not parts:
                until = min(until, time.monotonic() + _GATHER)
            parts += arrived
            ends += sum(map(self._count_ends, arrived))
            count = sum(map(len, parts)) - ends
            if count >= limit or (ends and count < ends * self._batch_rows):
                break
        return parts

    def _receive_until(self, moment: float) -> list[Arrived]:
        """Waits until something arrives; returns nothing if nothing does, or if it is broken."""
        try:
            arrived = self._stream(_READ).receive_parts(max(0.0, moment - time.monotonic()))
        except CallTimeout:
            return []
        except StreamBroken as error:
            self._broken = self._session.explain(error)
            return []
        if not arrived:
            self._broken = StreamBroken("the function ended the stream that it is read from")
        return arrived

    def _ask(self, limit: int, timeout: float) -> None:
        """Asks for messages, unless the function still has enough to do."""
        if self._broken or self._asked >= self._ahead:
            return
        wish = {
            "num_records": min(limit, self._batch_rows),
            "timeout_in_ms": math.ceil(timeout * 1000),
        }
        request = pack(source_pb2.ReadRequest, request=wish)
        self._stream(_READ).send([request] * (self._ahead - self._asked))
        self._asked = self._ahead

    def _count_ends(self, part: Arrived) -> int:
        """Returns how many of the responses mark an end; those begin with no message."""
        buffer, edges = part.buffer, iter(part.edges)
        others = (
            source_pb2.ReadResponse.FromString(buffer[start:end]).status
            for start, end in zip(edges, edges, strict=True)
            if buffer[start : start + 1] != _MESSAGE_FIRST
        )
        ends = 0
        for status in others:
            ends += status.eot
            if status.code != source_pb2.ReadResponse.Status.SUCCESS:
                self._broken = StreamBroken(f"the function could not read: {status.msg}")
        return ends

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the function {self._name}: {self._broken}") from self._broken

    # --- settling -------------------------------------------------------------------------------

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Tells the function of settled messages and waits until it has heard of them."""
        requests = [
            pack(source_pb2.AckRequest, request={"offsets": list(map(offset_of, part))})
            for part in _cut(offsets, self._batch_rows)
        ]
        with self._telling():
            stream = self._stream(_ACK)
            stream.send(requests)
            heard = 0
            while heard < len(requests):
                heard += len(responses := stream.receive(ACK_LIMIT))
                if not responses:
                    raise StreamBroken("the function ended the stream of acknowledgements")

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Has the function give messages again, each not before its delay is over."""
        if self._session.process.server_info.takes_nack_options:
            self._nack_now(nacks)
        else:
            now = time.monotonic()
            self._held.hold(nacks, now)
            self._nack_now(self._held.take_due(now))

    def _nack_now(self, nacks: Sequence[NackOffset]) -> None:
        if not nacks:
            return
        request = pack(source_pb2.NackRequest, request=list(map(_write_nack, nacks)))
        with self._telling():
            self._session.call("NackFn", request, ACK_LIMIT)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Has a function that is gone be unavailable; raises what it says about what it was told.

        What it said is not an outage: a function that breaks on what it hears would do so for ever.
        It is started again, for what it is told next.
        """
        try:
            yield
        except CallTimeout as error:
            raise Unavailable(f"the function {self._name}: {error}") from error
        except StreamBroken as error:
            why = self._session.explain(error)
            if error.code in (None, UNAVAILABLE):
                raise Unavailable(f"the function {self._name}: {why}") from error
            self._asked, self._broken = 0, None
            self._held.forget()
            self._session.reopen()
            raise why from error

    # --- for people -----------------------------------------------------------------------------

    def pending(self) -> int | None:
        """Returns how many messages wait, if the function knows."""
        answer = self._call_if_possible("PendingFn")
        if answer is None:
            return None
        count = source_pb2.PendingResponse.FromString(answer).result.count
        return count if count >= 0 else None

    def partitions(self) -> Sequence[int]:
        """Returns the partitions that the function reads."""
        answer = self._call_if_possible("PartitionsFn")
        if answer is None:
            return ()
        return list(source_pb2.PartitionsResponse.FromString(answer).result.partitions)

    def _call_if_possible(self, name: str) -> bytes | None:
        """Returns an answer that nothing depends on; of a break the next read will hear."""
        with contextlib.suppress(StreamBroken, CallTimeout):
            return self._session.call(name, timeout=_CALL_LIMIT)
        return None

    def _stream(self, name: str) -> GrpcStream:
        return self._session.streams[name]


def _cut(offsets: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (offsets[start : start + size] for start in range(0, len(offsets), size))


def _write_nack(nack: NackOffset) -> dict[str, Any]:
    options = None if nack.options == NackOptions() else write_nack_options(nack.options)
    return {"offsets": [offset_of(nack.offset)], "nack_options": options}
