"""Sources and stores that are served to the runtime.

A source with its own ``nack`` receives every nack with its options. For a source without one,
unsettled messages are kept here: a nacked message is redelivered when its delay is over, and the
source only receives the final acknowledgement. If the process ends before that, the source
redelivers the message, as it does in a pipeline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from ebbflow.domain.user_source import NackOffset, SourceMessage, redelivers
from ebbflow.engine.source_columns import check_columns, columns_of
from ebbflow.numaflow.nacks import HeldNacks, read_nack_options
from ebbflow.numaflow.proto import source_pb2, store_pb2
from ebbflow.numaflow.serve.function import ServedFunction
from ebbflow.numaflow.serve.messages import write_metadata, write_time
from ebbflow.numaflow.serve.streams import EOF, Fail, greet, write_all
from ebbflow.numaflow.services import SERVICES, pack

_METHODS = SERVICES["source"].methods
_SUCCESS: dict[str, Any] = {"success": {}}
_GREETING = pack(source_pb2.ReadResponse, handshake={"sot": True}, status={})
_ACK_GREETING = pack(source_pb2.AckResponse, handshake={"sot": True}, result=_SUCCESS)
_ACKED = pack(source_pb2.AckResponse, result=_SUCCESS)
_NACKED = pack(source_pb2.NackResponse, result=_SUCCESS)
_END = _METHODS["ReadFn"].end_of_responses
_STORED = pack(store_pb2.PutResponse, success=True)
# All calls share one thread, so a read must end soon while messages wait to be settled.
_SETTLE_SOON = 0.25
# Not zero, which some clients interpret as "forever".
_NO_WAIT = 0.001


class ServedObject:
    """A user's object whose methods are called. An exception of a method fails the call."""

    def __init__(self, function: ServedFunction, fail: Fail) -> None:
        self._function = function
        self._fail = fail

    async def _try(self, context: Any, call: Any, *arguments: Any) -> Any:
        try:
            return await self._function.run(call, *arguments)
        except (Exception, SystemExit) as error:
            await self._fail(context, self._function.failure_of(error))


class ServedSource(ServedObject):
    """The calls of a source; private methods run on the source's thread."""

    def __init__(self, function: ServedFunction, fail: Fail) -> None:
        super().__init__(function, fail)
        self._partition = int(os.environ.get("NUMAFLOW_REPLICA", "0") or 0)
        self._unsettled: dict[bytes, bytes] = {}
        self._held = HeldNacks()

    @property
    def handlers(self) -> dict[str, Any]:
        """The handler of each method of the service."""
        return {
            "ReadFn": self.read_stream,
            "AckFn": self.ack_stream,
            "NackFn": self.nack,
            "PendingFn": self.pending,
            "PartitionsFn": self.partitions,
        }

    # --- streams and calls ----------------------------------------------------------------------

    async def read_stream(self, _: Any, context: Any) -> None:
        """Answers each read with messages and an end mark."""
        await greet(context, _METHODS["ReadFn"], _GREETING)
        while (raw := await context.read()) is not EOF:
            read = source_pb2.ReadRequest.FromString(raw).request
            messages = await self._try(context, self._read, read.num_records, read.timeout_in_ms)
            await write_all(context, messages)
            await context.write(_END)

    async def ack_stream(self, _: Any, context: Any) -> None:
        """Acknowledges settled messages to the source, and confirms each request."""
        await greet(context, _METHODS["AckFn"], _ACK_GREETING)
        while (raw := await context.read()) is not EOF:
            request = source_pb2.AckRequest.FromString(raw).request
            offsets = [offset.offset for offset in request.offsets]
            await self._try(context, self._ack, offsets)
            await context.write(_ACKED)

    async def nack(self, raw: bytes, context: Any) -> bytes:
        """Nacks messages to the source, or keeps them here if it has no nacks."""
        await self._try(context, self._nack, list(_read_nacks(raw)))
        return _NACKED

    async def pending(self, _: bytes, context: Any) -> bytes:
        """Returns how many messages wait to be read; a negative number if that is not known."""
        count = await self._try(context, self._call, "pending")
        return pack(source_pb2.PendingResponse, result={"count": -1 if count is None else count})

    async def partitions(self, _: bytes, context: Any) -> bytes:
        """Returns the partitions of the outside system, or else the number of this replica."""
        partitions = list(await self._try(context, self._call, "partitions") or ())
        result = {"partitions": partitions or [self._partition]}
        return pack(source_pb2.PartitionsResponse, result=result)

    # --- on the source's thread -----------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        is_defined = hasattr(self._function.handler.instance, name)
        return self._function.call(name, *arguments) if is_defined else None

    def _read(self, limit: int, timeout: int) -> list[bytes]:
        redelivered = list(self._take_due(limit))
        if len(redelivered) == limit:
            return redelivered
        seconds = _NO_WAIT if redelivered else timeout / 1_000
        if self._unsettled:
            seconds = min(seconds, _SETTLE_SOON)
        result = self._function.call("read", limit - len(redelivered), timedelta(seconds=seconds))
        return redelivered + [self._keep(message) for message in _list_messages(result)]

    def _take_due(self, limit: int) -> Iterator[bytes]:
        now = time.monotonic()
        while limit > 0 and (due := self._held.take_due(now, 1)):
            packed = self._unsettled.get(due[0].offset)
            if packed is not None:  # not acknowledged meanwhile
                limit -= 1
                yield packed

    def _keep(self, message: SourceMessage) -> bytes:
        packed = self._pack(message)
        # For a source with its own nack, only the presence of unsettled messages matters.
        self._unsettled[message.offset] = b"" if self._redelivers else packed
        return packed

    def _pack(self, message: SourceMessage) -> bytes:
        partition = self._partition if message.partition is None else message.partition
        result = {
            "payload": message.value,
            "offset": {"offset": message.offset, "partition_id": partition},
            "event_time": write_time(message.event_time or datetime.now(UTC)),
            "keys": message.keys,
            "headers": message.headers,
            "metadata": write_metadata(message.metadata) if message.metadata else None,
        }
        return pack(source_pb2.ReadResponse, result=result, status={})

    def _ack(self, offsets: Sequence[bytes]) -> None:
        if hasattr(self._function.handler.instance, "ack_columns"):
            self._function.call("ack_columns", pa.array(offsets, pa.binary()))
        else:
            self._function.call("ack", list(offsets))
        self._forget(offsets)

    def _nack(self, nacks: Sequence[NackOffset]) -> None:
        if self._redelivers:
            self._function.call("nack", nacks)
            self._forget([nack.offset for nack in nacks])
        else:
            self._held.hold(nacks, time.monotonic())

    @property
    def _redelivers(self) -> bool:
        return redelivers(self._function.handler.instance)

    def _forget(self, offsets: Sequence[bytes]) -> None:
        for offset in offsets:
            self._unsettled.pop(offset, None)


def _read_nacks(raw: bytes) -> Iterator[NackOffset]:
    for entry in source_pb2.NackRequest.FromString(raw).request:
        for offset in entry.offsets:
            yield NackOffset(offset.offset, read_nack_options(entry.nack_options))


def _list_messages(result: Any) -> Iterator[SourceMessage]:
    """Yields the result of ``read`` as messages; columns are checked as in a pipeline."""
    if not isinstance(result, pa.RecordBatch):
        messages = list(result or ())
        columns_of(messages)  # raises the same errors as in a pipeline
        yield from messages
        return
    rows = check_columns(result).to_pylist()
    for row in rows:
        yield SourceMessage(
            row["value"],
            row["offset"],
            row["event_time"],
            row["keys"] or (),
            dict(row["headers"] or ()),
            row["partition"],
            metadata={group: dict(entries) for group, entries in row["metadata"] or ()},
        )


# --- stores ---------------------------------------------------------------------------------------


class ServedStore(ServedObject):
    """The calls of a store; the runtime repeats a call that failed."""

    @property
    def handlers(self) -> dict[str, Any]:
        """The handler of each method of the service."""
        return {"Put": self.put, "Get": self.get}

    async def put(self, raw: bytes, context: Any) -> bytes:
        """Stores the answers to one request."""
        request = store_pb2.PutRequest.FromString(raw)
        payloads = [payload.value for payload in request.payloads]
        await self._try(context, self._function.call, "put", request.id, payloads)
        return _STORED

    async def get(self, raw: bytes, context: Any) -> bytes:
        """Returns the answers to one request."""
        request = store_pb2.GetRequest.FromString(raw)
        answers = await self._try(context, self._function.call, "get", request.id)
        payloads = [{"value": answer} for answer in answers]
        return pack(store_pb2.GetResponse, id=request.id, payloads=payloads)
