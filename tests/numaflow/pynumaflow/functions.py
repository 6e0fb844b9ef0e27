"""Code as users of pynumaflow write it; nothing here knows of Ebbflow."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from datetime import datetime

from pynumaflow import batchmapper, mapstreamer, sinker, sourcetransformer
from pynumaflow.mapper import Datum, MapAsyncServer, Mapper, MapServer, Message, Messages
from pynumaflow.shared.asynciter import NonBlockingIterator
from pynumaflow.sinker import Response, Responses, Sinker, SinkServer
from pynumaflow.sourcer import (
    AckRequest,
    NackRequest,
    Offset,
    PartitionsResponse,
    PendingResponse,
    ReadRequest,
    SourceAsyncServer,
    Sourcer,
    UserMetadata,
)
from pynumaflow.sourcer import Message as SourceMessage

NEW_YEAR = datetime(2022, 1, 1)
NACK, FAIL = "U+005C__NACK__", "U+005C__FAIL__"


def shout(keys: list[str], datum: Datum) -> Messages:
    """Changes the value, and gives no keys."""
    return Messages(Message(datum.value.upper()))


def pass_keys(keys: list[str], datum: Datum) -> Messages:
    """Gives the keys that it got."""
    return Messages(Message(datum.value, keys=keys))


async def shout_later(keys: list[str], datum: Datum) -> Messages:
    """Waits in between."""
    await asyncio.sleep(0)
    return Messages(Message(datum.value.upper(), keys=keys))


def obey(keys, datum):
    """Does what the value says; it has no annotations."""
    word, _, rest = datum.value.decode().partition(" ")
    messages = Messages()
    if word == "drop":
        messages.append(Message.to_drop())
    elif word == "nack":
        messages.append(Message(b"sibling"))
        messages.append(Message(b"", tags=[NACK]))
    elif word == "fail":
        messages.append(Message(b"", tags=[FAIL]))
    elif word == "tags":
        messages.append(Message(b"tagged", tags=rest.split(",")))
    elif word == "flat":
        for part in rest.split(","):
            messages.append(Message(part.encode(), keys=[part]))
    elif word == "raise":
        raise ValueError(rest)
    elif word == "bytes":
        return b"no messages"
    elif word == "nothing":
        return None
    return messages


def describe(keys: list[str], datum: Datum) -> Messages:
    """Describes everything that it received."""
    metadata = datum.user_metadata
    facts = {
        "keys": (keys, datum.keys),
        "event_time": datum.event_time,
        "watermark": datum.watermark,
        "headers": datum.headers,
        "metadata": {group: metadata[group] for group in metadata.groups()},
        "system": datum.system_metadata.groups(),
    }
    return Messages(Message(repr(facts).encode()))


def change_metadata(keys: list[str], datum: Datum) -> Messages:
    """Adds to the metadata that it got, and passes it on."""
    datum.user_metadata.add_key("own", "seen", b"yes")
    return Messages(Message(datum.value, user_metadata=datum.user_metadata))


class Counting(Mapper):
    """Keeps state, and says which object it is."""

    def __init__(self) -> None:
        self.calls = 0

    def handler(self, keys: list[str], datum: Datum) -> Messages:
        """Counts."""
        self.calls += 1
        return Messages(Message(b"%d" % self.calls))


class AsyncCounting(Mapper):
    """The same, with ``async``."""

    def __init__(self, start: int = 0) -> None:
        self.calls = start

    async def handler(self, keys: list[str], datum: Datum) -> Messages:
        """Counts."""
        self.calls += 1
        return Messages(Message(b"%d" % self.calls))


server = MapServer(shout)
async_server = MapAsyncServer(AsyncCounting(10))


# --- batch and stream maps ----------------------------------------------------------------------


async def batch(datums: AsyncIterable[batchmapper.Datum]) -> batchmapper.BatchResponses:
    """Answers each message, except one that asks for no answer."""
    responses = batchmapper.BatchResponses()
    async for datum in datums:
        response = batchmapper.BatchResponse.from_id(datum.id)
        for part in datum.value.split(b","):
            response.append(batchmapper.Message(part, keys=datum.keys))
        if datum.value != b"forget":
            responses.append(response)
    return responses


class Batching(batchmapper.BatchMapper):
    """The same as a class."""

    async def handler(self, datums: AsyncIterable[batchmapper.Datum]) -> batchmapper.BatchResponses:
        """Answers for each."""
        return await batch(datums)


async def split(keys: list[str], datum: mapstreamer.Datum) -> AsyncIterator[mapstreamer.Message]:
    """Yields part by part."""
    for part in datum.value.split(b","):
        if part == b"raise":
            raise ValueError("in the middle")
        yield mapstreamer.Message(part, keys=keys)


class Splitting(mapstreamer.MapStreamer):
    """The same as a class."""

    async def handler(
        self, keys: list[str], datum: mapstreamer.Datum
    ) -> AsyncIterable[mapstreamer.Message]:
        """Yields part by part."""
        async for message in split(keys, datum):
            yield message


# --- transformers -------------------------------------------------------------------------------


def date_it(keys: list[str], datum: sourcetransformer.Datum) -> sourcetransformer.Messages:
    """Drops what is old, as in pynumaflow's own example, and dates all else."""
    if datum.event_time < NEW_YEAR:
        return sourcetransformer.Messages(sourcetransformer.Message.to_drop(datum.event_time))
    return sourcetransformer.Messages(
        sourcetransformer.Message(datum.value, NEW_YEAR, keys=keys, tags=["dated"])
    )


class Dating(sourcetransformer.SourceTransformer):
    """The same as a class."""

    def handler(
        self, keys: list[str], datum: sourcetransformer.Datum
    ) -> sourcetransformer.Messages:
        """Dates it."""
        return date_it(keys, datum)


# --- sinks --------------------------------------------------------------------------------------


def answer(datums: Iterator[sinker.Datum]) -> Responses:
    """Answers as the value says."""
    responses = Responses()
    for datum in datums:
        word, _, rest = datum.value.decode().partition(" ")
        match word:
            case "failure":
                responses.append(Response.as_failure(datum.id, rest))
            case "fallback":
                responses.append(Response.as_fallback(datum.id))
            case "on_success":
                message = sinker.Message(rest.encode(), keys=["on"]) if rest else None
                responses.append(Response.as_on_success(datum.id, message))
            case "forget":
                pass
            case _:
                responses.append(Response.as_success(datum.id))
    return responses


async def answer_later(datums: AsyncIterable[sinker.Datum]) -> Responses:
    """Iterates over them with ``async for``."""
    responses = Responses()
    async for datum in datums:
        responses.append(Response.as_success(datum.id))
    return responses


def count_retries(datums):
    """Succeeds on the second retry; it has no annotations."""
    responses = Responses()
    for datum in datums:
        retries = int(datum.system_metadata.value("sink", "retry_count"))
        ok = retries >= 2
        responses.append(
            Response.as_success(datum.id) if ok else Response.as_failure(datum.id, f"try {retries}")
        )
    return responses


class Answering(Sinker):
    """A sink as a class."""

    def handler(self, datums: Iterator[sinker.Datum]) -> Responses:
        """Answers."""
        return answer(datums)


sink_server = SinkServer(Answering())


# --- a source -----------------------------------------------------------------------------------


class Numbers(Sourcer):
    """Gives numbers, remembers what is not acknowledged, and redelivers what is nacked."""

    def __init__(self, last: int = 20) -> None:
        self.last = last
        self.next = 0
        self.open: set[int] = set()
        self.nacked: list[int] = []
        self.acked: list[int] = []

    async def read_handler(self, datum: ReadRequest, output: NonBlockingIterator) -> None:
        """Gives nacked ones first."""
        for _ in range(datum.num_records):
            if self.nacked:
                number = self.nacked.pop(0)
            elif self.next < self.last:
                number, self.next = self.next, self.next + 1
            else:
                break
            self.open.add(number)
            await output.put(
                SourceMessage(
                    b"%d" % number,
                    Offset(b"%d" % number, number % 2),
                    datetime(2026, 8, 1, 12, 0, number),
                    keys=[f"k{number}"],
                    headers={"n": str(number)},
                    user_metadata=UserMetadata({"own": {"n": b"%d" % number}}),
                )
            )
        await asyncio.sleep(datum.timeout_in_ms / 1000 if not self.open else 0)

    async def ack_handler(self, ack_request: AckRequest) -> None:
        """Forgets what is done."""
        for offset in ack_request.offsets:
            assert offset.partition_id == int(offset.offset) % 2
            self.open.discard(int(offset.offset))
            self.acked.append(int(offset.offset))

    async def nack_handler(self, nack_request: NackRequest) -> None:
        """Redelivers them."""
        self.nacked += [int(offset.offset) for offset in nack_request.offsets]

    async def pending_handler(self) -> PendingResponse:
        """Says what is left."""
        return PendingResponse(count=self.last - self.next)

    async def active_partitions_handler(self) -> PartitionsResponse:
        """Says its partitions."""
        return PartitionsResponse(partitions=[0, 1])


source_server = SourceAsyncServer(Numbers(3))


seen: set[bytes] = set()


def nack_once(keys: list[str], datum: sourcetransformer.Datum) -> sourcetransformer.Messages:
    """Nacks every third number when it sees it for the first time; passes all else on."""
    first = datum.value not in seen
    seen.add(datum.value)
    tags = [NACK] if first and int(datum.value) % 3 == 0 else []
    message = sourcetransformer.Message(
        datum.value, datum.event_time, keys, tags, user_metadata=datum.user_metadata
    )
    return sourcetransformer.Messages(message)


class Tell(Mapper):
    """Describes each message; it fails on number 7."""

    async def handler(self, keys: list[str], datum: Datum) -> Messages:
        """Says it in a text."""
        if datum.value == b"7":
            raise ValueError("seven")
        own = datum.user_metadata.value("own", "n")
        text = f"{datum.value.decode()} {keys} {datum.event_time.second} {datum.headers} {own!r}"
        return Messages(Message(text.encode(), keys=keys))


def print_all(datums: Iterator[sinker.Datum]) -> Responses:
    """Prints each."""
    responses = Responses()
    for datum in datums:
        print(datum.value.decode())
        responses.append(Response.as_success(datum.id))
    return responses
