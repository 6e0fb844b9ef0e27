"""Sources in their own processes, read like any other source.

A function receives a request for a number of messages, sends them one by one and marks the end. The
next request is sent before the last messages have been forwarded, so that the function never waits.
Messages that arrive between reads wait in the connection. A read returns what has arrived within
its time, while the function continues with the request.

A function that breaks during a read, or is gone, is unavailable: the messages that it sent are
forwarded, then it is closed and opened again. A function that fails on an acknowledgement fails its
vertex, as does any source that raises there.
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
"""The seconds that a function may take to confirm settled messages."""

_CALL_LIMIT = 10.0
# Seconds for which a read continues after the first messages: handing many messages to the task
# costs hardly more than handing over a few.
_GATHER = 0.005
_AHEAD = 2
_MESSAGE_FIRST = b"\x0a"


class RemoteSource(RemoteCode, Source):
    """The code of a source that runs as its own function.

    If the function's SDK has no nacks, this class has no ``nack`` either, and Ebbflow keeps nacked
    messages itself. If the SDK has nacks without options, each is sent when its delay is over.
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
        """Returns the messages that arrive in that time; ``Unavailable`` if the function broke."""
        self._raise_if_broken()
        now = time.monotonic()
        self._nack_now(self._held.take_due(now))
        seconds = min(timeout.total_seconds(), self._held.due_in(now))
        try:
            messages, ends = read_messages(self._receive(limit, seconds))
        except (ValueError, DecodeError) as error:
            raise StreamBroken(f"the function sent an undecodable message: {error}") from error
        self._asked -= ends
        # A function that filled a request has more messages, so it gets two requests at a time.
        self._ahead = _AHEAD if messages.num_rows >= self._batch_rows else 1
        if messages.num_rows:
            self._ask(limit, seconds)
        else:
            self._raise_if_broken()
        return messages

    def _receive(self, limit: int, timeout: float) -> list[Arrived]:
        """Returns what arrives until there is enough, or no more for the moment."""
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
        """Waits for responses; returns none if none arrive in time or the stream is broken."""
        try:
            arrived = self._stream(_READ).receive_parts(max(0.0, moment - time.monotonic()))
        except CallTimeout:
            return []
        except StreamBroken as error:
            self._broken = self._session.explain(error)
            return []
        if not arrived:
            self._broken = StreamBroken("the function ended the stream of its messages")
        return arrived

    def _ask(self, limit: int, timeout: float) -> None:
        """Requests messages, unless enough requests are still open."""
        if self._broken or self._asked >= self._ahead:
            return
        read = {
            "num_records": min(limit, self._batch_rows),
            "timeout_in_ms": math.ceil(timeout * 1000),
        }
        request = pack(source_pb2.ReadRequest, request=read)
        self._stream(_READ).send([request] * (self._ahead - self._asked))
        self._asked = self._ahead

    def _count_ends(self, part: Arrived) -> int:
        """Returns how many of the responses mark an end; these hold no message."""
        buffer, edges = part.buffer, iter(part.edges)
        statuses = (
            source_pb2.ReadResponse.FromString(buffer[start:end]).status
            for start, end in zip(edges, edges, strict=True)
            if buffer[start : start + 1] != _MESSAGE_FIRST
        )
        ends = 0
        for status in statuses:
            ends += status.eot
            if status.code != source_pb2.ReadResponse.Status.SUCCESS:
                self._broken = StreamBroken(f"the function could not read: {status.msg}")
        return ends

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the function {self._name}: {self._broken}") from self._broken

    # --- settling -------------------------------------------------------------------------------

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges settled messages to the function and waits until it has confirmed them."""
        requests = [
            pack(source_pb2.AckRequest, request={"offsets": list(map(offset_of, part))})
            for part in _cut(offsets, self._batch_rows)
        ]
        with self._reporting():
            stream = self._stream(_ACK)
            stream.send(requests)
            confirmed = 0
            while confirmed < len(requests):
                confirmed += len(responses := stream.receive(ACK_LIMIT))
                if not responses:
                    raise StreamBroken("the function ended the stream of acknowledgements")

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Makes the function redeliver messages, each not before its delay is over."""
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
        with self._reporting():
            self._session.call("NackFn", request, ACK_LIMIT)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raises ``Unavailable`` if the function is gone, and its own error if it reports one.

        An error of the function is not an outage, because a function that fails on a report would
        fail on it forever. The function is restarted for the next report.
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
        """Returns an answer that nothing depends on; the next read detects a broken function."""
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
