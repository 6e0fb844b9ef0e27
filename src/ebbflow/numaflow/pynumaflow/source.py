"""Sources that are written for pynumaflow, in the shape of Ebbflow's.

pynumaflow's source hears of a nack without its options, so this one waits until the delay is over
and only then hands the nack on: a delay means the same on every source. Until then the message is
neither acknowledged nor nacked, so it is not lost if the process ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from ebbflow.domain.source import NackOffset, Source, SourceMessage
from ebbflow.numaflow.held_nacks import HeldNacks
from ebbflow.numaflow.pynumaflow.answers import read_metadata
from ebbflow.usercode.targets import is_class

_PARTITION_BYTES = 4
# Putting a message never waits; without a pause now and then nothing else would ever run.
_PUTS_IN_A_ROW = 100


class ReadOutput:
    """Takes what a read handler puts into its output."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def put(self, message: Any) -> None:
        """Takes one message."""
        self.messages.append(message)
        if len(self.messages) % _PUTS_IN_A_ROW == 0:
            await asyncio.sleep(0)


class PynumaflowSource(Source):
    """A ``Sourcer`` of pynumaflow's, in the process of a source."""

    def __init__(self, code: Any) -> None:
        self._sourcer = code() if is_class(code) else code
        self._types = sys.modules["pynumaflow.sourcer"]

    async def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Reads once."""
        request = self._types.ReadRequest(num_records=limit, timeout_in_ms=int(timeout * 1000))
        output = ReadOutput()
        await self._sourcer.read_handler(request, output)
        return [_read_message(message) for message in output.messages]

    async def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges."""
        named = [self._offset(offset) for offset in offsets]
        await self._sourcer.ack_handler(self._types.AckRequest(offsets=named))

    async def pending(self) -> int | None:
        """Returns how many messages wait; pynumaflow says below zero where that is not known."""
        count = (await self._sourcer.pending_handler()).count
        return None if count < 0 else int(count)

    async def partitions(self) -> Sequence[int]:
        """Returns the partitions."""
        older = getattr(self._sourcer, "partitions_handler", None)
        handler = getattr(self._sourcer, "active_partitions_handler", older)
        return [] if handler is None else list((await handler()).partitions)

    def _offset(self, offset: bytes) -> Any:
        partition = int.from_bytes(offset[:_PARTITION_BYTES], "big", signed=True)
        return self._types.Offset(offset[_PARTITION_BYTES:], partition)


class NackablePynumaflowSource(PynumaflowSource):
    """A ``Sourcer`` with a ``nack_handler``: one of pynumaflow 0.11 or newer."""

    def __init__(self, code: Any) -> None:
        super().__init__(code)
        self._held = HeldNacks()

    async def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Hands on the nacks whose delays are over, and reads until the next one is due."""
        now = time.monotonic()
        await self._nack_now(self._held.take_due(now))
        return await super().read(limit, min(timeout, self._held.due_in(now)))

    async def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Nacks what has no delay, and keeps the others until theirs is over."""
        now = time.monotonic()
        self._held.hold(nacks, now)
        await self._nack_now(self._held.take_due(now))

    async def _nack_now(self, nacks: Sequence[NackOffset]) -> None:
        if nacks:
            named = [self._offset(nacked.offset) for nacked in nacks]
            await self._sourcer.nack_handler(self._types.NackRequest(offsets=named))


def _read_message(message: Any) -> SourceMessage:
    """Returns a message whose offset says the partition, too: both together name it."""
    partition = message.offset.partition_id
    event_time = message.event_time
    return SourceMessage(
        message.payload,
        partition.to_bytes(_PARTITION_BYTES, "big", signed=True) + message.offset.offset,
        event_time if event_time.tzinfo else event_time.replace(tzinfo=UTC),  # as pynumaflow does
        keys=message.keys,
        headers=message.headers,
        partition=partition,
        metadata=read_metadata(getattr(message, "user_metadata", None)),
    )
