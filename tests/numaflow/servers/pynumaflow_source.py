"""A pynumaflow source of numbered messages; the acks and nacks it receives are lines of a file."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from pynumaflow._metadata import UserMetadata
from pynumaflow.shared.asynciter import NonBlockingIterator
from pynumaflow.sourcer import (
    AckRequest,
    Message,
    NackRequest,
    Offset,
    PartitionsResponse,
    PendingResponse,
    ReadRequest,
    SourceAsyncServer,
    Sourcer,
)

START = datetime(2026, 8, 1, tzinfo=UTC)


class Numbers(Sourcer):
    """Provides as many messages as a variable says, nacked ones first."""

    def __init__(self) -> None:
        self._messages = int(os.environ["MESSAGES"])
        self._next = 0
        self._again: list[int] = []

    async def read_handler(self, datum: ReadRequest, output: NonBlockingIterator) -> None:
        for _ in range(datum.num_records):
            if self._again:
                number = self._again.pop(0)
            elif self._next < self._messages:
                number, self._next = self._next, self._next + 1
            else:
                await asyncio.sleep(min(datum.timeout_in_ms, 50) / 1000)
                return
            await output.put(message(number))

    async def ack_handler(self, ack_request: AckRequest) -> None:
        note(*(f"ack {name(offset)}" for offset in ack_request.offsets))

    async def nack_handler(self, nack_request: NackRequest) -> None:
        note(*(f"nack {name(offset)}" for offset in nack_request.offsets))
        self._again += [int(offset.offset) for offset in nack_request.offsets]

    async def pending_handler(self) -> PendingResponse:
        return PendingResponse(count=self._messages - self._next)

    async def active_partitions_handler(self) -> PartitionsResponse:
        return PartitionsResponse(partitions=[4, 5])


def message(number: int) -> Message:
    return Message(
        payload=b"message %d" % number,
        offset=Offset(b"%d" % number, 4 + number % 2),
        event_time=START + timedelta(seconds=number),
        keys=["key", str(number)],
        headers={"number": str(number)},
        user_metadata=UserMetadata({"group": {"number": b"%d" % number}}),
    )


def name(offset: Offset) -> str:
    return f"{offset.offset.decode()}@{offset.partition_id}"


def note(*lines: str) -> None:
    with open(os.environ["RECORD"], "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    folder = os.environ["EBBFLOW_SOCKETS"]
    SourceAsyncServer(
        Numbers(),
        sock_path=f"{folder}/source.sock",
        server_info_file=f"{folder}/sourcer-server-info",
    ).start()
