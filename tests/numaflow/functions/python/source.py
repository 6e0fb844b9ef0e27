"""A source on pynumaflow that gives the lines of a file."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from behaviour import record, recorded
from pynumaflow.sourcer import (
    AckRequest,
    Message,
    NackRequest,
    Offset,
    PartitionsResponse,
    PendingResponse,
    ReadRequest,
    Sourcer,
    UserMetadata,
    get_default_partitions,
)

_FIRST_EVENT_TIME = datetime.fromtimestamp(1_700_000_000, UTC)


class Lines(Sourcer):
    """Gives again what was nacked, or not acknowledged when it ended."""

    def __init__(self) -> None:
        self.payloads = recorded("FUNCTION_PAYLOADS")
        lines = recorded("FUNCTION_RECORD")
        self.acked = {int(line.split()[1]) for line in lines if line.startswith("ack ")}
        self.waiting = [index for index in range(len(self.payloads)) if index not in self.acked]

    async def read_handler(self, request: ReadRequest, output: Any) -> None:
        taken = self.waiting[: request.num_records]
        del self.waiting[: len(taken)]
        for index in taken:
            await output.put(self._message(index))
        if not taken:
            await self._let_pass(request.timeout_in_ms / 1000)

    async def _let_pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.waiting and time.monotonic() < until:
            await asyncio.sleep(0.005)

    def _message(self, index: int) -> Message:
        metadata = UserMetadata()
        metadata.add_key("source", "index", str(index).encode())
        return Message(
            payload=self.payloads[index].encode(),
            offset=Offset.offset_with_default_partition_id(str(index).encode()),
            event_time=_FIRST_EVENT_TIME + timedelta(seconds=index),
            keys=[f"key-{index}"],
            headers={"index": str(index)},
            user_metadata=metadata,
        )

    async def ack_handler(self, request: AckRequest) -> None:
        indexes = [int(offset.offset) for offset in request.offsets]
        self.acked.update(indexes)
        record([f"ack {index}" for index in indexes])

    async def nack_handler(self, request: NackRequest) -> None:
        indexes = [int(offset.offset) for offset in request.offsets]
        self.waiting[:0] = indexes
        record([f"nack {index}" for index in indexes])

    async def pending_handler(self) -> PendingResponse:
        return PendingResponse(count=len(self.payloads) - len(self.acked))

    async def active_partitions_handler(self) -> PartitionsResponse:
        return PartitionsResponse(partitions=get_default_partitions())
