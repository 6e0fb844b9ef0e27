"""Functions for Numaflow, written with pynumaflow alone: a source and all that follows it.

Each would be an image of its own in Numaflow, with a server at the end of its file. Here
``pipeline.yaml`` names the functions themselves.
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from datetime import datetime, timedelta

from pynumaflow import batchmapper, mapstreamer, sourcetransformer
from pynumaflow.mapper import Datum, Mapper, MapServer, Message, Messages
from pynumaflow.shared.asynciter import NonBlockingIterator
from pynumaflow.sinker import Datum as SinkDatum
from pynumaflow.sinker import Response, Responses, Sinker
from pynumaflow.sourcer import (
    AckRequest,
    NackRequest,
    Offset,
    PartitionsResponse,
    PendingResponse,
    ReadRequest,
    Sourcer,
    get_default_partitions,
)
from pynumaflow.sourcer import Message as Reading

FIRST = datetime(2026, 8, 1, 12)
READINGS = 400


class Readings(Sourcer):
    """Four hundred readings of five thermometers."""

    def __init__(self) -> None:
        self.next = 0
        self.unsettled: set[int] = set()
        self.again: list[int] = []

    async def read_handler(self, datum: ReadRequest, output: NonBlockingIterator) -> None:
        """Gives nacked readings first, then the next ones."""
        for _ in range(datum.num_records):
            if self.again:
                number = self.again.pop(0)
            elif self.next < READINGS:
                number, self.next = self.next, self.next + 1
            else:
                await asyncio.sleep(datum.timeout_in_ms / 1000)
                return
            self.unsettled.add(number)
            text = f"{number % 5};{number % 40};{number}"
            offset = Offset.offset_with_default_partition_id(str(number).encode())
            await output.put(Reading(text.encode(), offset, FIRST))

    async def ack_handler(self, ack_request: AckRequest) -> None:
        """Forgets what is done."""
        for offset in ack_request.offsets:
            self.unsettled.discard(int(offset.offset))

    async def nack_handler(self, nack_request: NackRequest) -> None:
        """Gives these again."""
        self.again += [int(offset.offset) for offset in nack_request.offsets]

    async def pending_handler(self) -> PendingResponse:
        """Says how many are left."""
        return PendingResponse(count=READINGS - self.next + len(self.again))

    async def active_partitions_handler(self) -> PartitionsResponse:
        """Says which partition this is."""
        return PartitionsResponse(partitions=get_default_partitions())


def set_time(keys: list[str], datum: sourcetransformer.Datum) -> sourcetransformer.Messages:
    """Takes the event time from the reading, and drops those of the fifth thermometer."""
    thermometer, _, seconds = datum.value.decode().split(";")
    at = FIRST + timedelta(seconds=int(seconds))
    if thermometer == "4":
        return sourcetransformer.Messages(sourcetransformer.Message.to_drop(at))
    message = sourcetransformer.Message(datum.value, at, keys=[thermometer])
    return sourcetransformer.Messages(message)


class Judge(Mapper):
    """Says of each reading whether it is hot."""

    def __init__(self, limit: int = 30) -> None:
        self.limit = limit

    def handler(self, keys: list[str], datum: Datum) -> Messages:
        """Tags it, so that hot ones go another way."""
        thermometer, celsius, _ = datum.value.decode().split(";")
        record = {"of": thermometer, "celsius": int(celsius), "at": datum.event_time.isoformat()}
        tag = "hot" if int(celsius) >= self.limit else "mild"
        return Messages(Message(json.dumps(record).encode(), keys=keys, tags=[tag]))


judge = MapServer(Judge())


async def convert(datums: AsyncIterable[batchmapper.Datum]) -> batchmapper.BatchResponses:
    """Adds the degrees Fahrenheit to many readings at once."""
    responses = batchmapper.BatchResponses()
    async for datum in datums:
        record = json.loads(datum.value)
        record["fahrenheit"] = record["celsius"] * 9 // 5 + 32
        message = batchmapper.Message(json.dumps(record).encode(), keys=datum.keys)
        responses.append(batchmapper.BatchResponse.with_msgs(datum.id, [message]))
    return responses


async def warn(keys: list[str], datum: mapstreamer.Datum) -> AsyncIterator[mapstreamer.Message]:
    """Sends two warnings for each hot reading, one after the other."""
    for number in (1, 2):
        yield mapstreamer.Message(b"warning %d: " % number + datum.value, keys=keys)


class Report(Sinker):
    """Prints what arrives, and leaves warnings about the first thermometer to the fallback."""

    def handler(self, datums: Iterator[SinkDatum]) -> Responses:
        """Answers for each."""
        responses = Responses()
        for datum in datums:
            if datum.value.startswith(b"warning") and datum.keys == ["0"]:
                responses.append(Response.as_fallback(datum.id))
            else:
                print(datum.value.decode())
                responses.append(Response.as_success(datum.id))
        return responses


async def keep(datums: AsyncIterable[SinkDatum]) -> Responses:
    """Takes what the report has left."""
    responses = Responses()
    async for datum in datums:
        print("kept", datum.value.decode())
        responses.append(Response.as_success(datum.id))
    return responses
