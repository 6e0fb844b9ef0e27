"""A pull consumer against a simulated server: batches, gaps, statuses and silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import pytest

from ebbflow.nats.pull import Deliveries, PullConsumer, PullState, PullStatus
from ebbflow.nats.wire import Parcel


@dataclass
class Message:
    subject: str
    reply: str = ""
    data: bytes = b""
    headers: bytes = b""


class Subscription:
    closed = False

    async def unsubscribe(self) -> None:
        self.closed = True


@dataclass
class Server:
    """Stands in for the client: records requests, and sends what the test wants it to send."""

    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    listener: Any = None

    def new_inbox(self) -> str:
        return "inbox"

    async def listen(self, subject: str, take: Any) -> Subscription:
        self.listener = take
        return Subscription()

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        self.requests.append((reply, json.loads(payload)))

    @asynccontextmanager
    async def unless_denied(self, subject: str):
        yield

    async def deliver(self, *numbers: int, first: str = "$JS.ACK.s.c.1", last: str = "") -> None:
        self.listener(
            parcel(
                Message(
                    "a.b",
                    f"{first}.{number + 100}.{number}.{number * 1_000_000}.{9 - number}{last}",
                    b"%d" % number,
                )
                for number in numbers
            )
        )

    async def send_status(self, code: str, text: str, request: int = 1, **more: str) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in more.items())
        headers = f"NATS/1.0 {code} {text}\r\n{lines}\r\n".encode()
        self.listener(parcel([Message(f"inbox.{request}", headers=headers)]))


def parcel(messages: Iterable[Message]) -> Parcel:
    """The messages as the parser returns them."""
    made, buffer = Parcel(b""), b""
    for message in messages:
        made.subjects.append(message.subject.encode())
        made.replies.append(message.reply.encode())
        edges = accumulate((len(message.headers), len(message.data)), initial=len(buffer))
        made.edges += edges
        buffer += message.headers + message.data
    return replace(made, buffer=buffer)


@dataclass
class Reader:
    server: Server = field(default_factory=Server)
    batches: list[Deliveries] = field(default_factory=list)
    statuses: list[PullStatus] = field(default_factory=list)

    async def open(self, **options: Any) -> PullConsumer:
        pull = PullConsumer(
            self.server, "s", "c", self.batches.append, self.statuses.append, **options
        )
        await pull.open()
        return pull

    @property
    def numbers(self) -> list[list[int]]:
        return [batch.numbers for batch in self.batches]


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_a_burst_is_passed_on_as_one_batch_of_columns(reader):
    async def scenario():
        await reader.open()
        await reader.server.deliver(1, 2, 3)
        await asyncio.sleep(0)
        await reader.server.deliver(4)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    first, second = reader.batches
    assert (first.seqs, first.numbers) == ([101, 102, 103], [1, 2, 3])
    assert first.parcel.payloads().to_pylist() == [b"1", b"2", b"3"]
    assert first.nanos == [1_000_000, 2_000_000, 3_000_000]
    assert (first.pending, second.seqs) == (6, [104])


def test_a_reply_subject_with_a_jetstream_domain_is_parsed(reader):
    async def scenario():
        await reader.open()
        await reader.server.deliver(1, first="$JS.ACK.domain.hash.s.c.1", last=".x7Kq")
        await asyncio.sleep(0)

    asyncio.run(scenario())
    batch = reader.batches[0]
    assert (batch.seqs, batch.numbers, batch.pending) == ([101], [1], 8)


def test_no_message_is_accepted_after_a_gap_and_the_status_reports_it(reader):
    async def scenario():
        pull = await reader.open()
        await reader.server.deliver(1, 2)
        await asyncio.sleep(0)
        await reader.server.deliver(3, 5)
        await asyncio.sleep(0)
        await reader.server.deliver(6)
        await asyncio.sleep(0)
        return (await pull.fetch({"batch": 1})).state

    assert asyncio.run(scenario()) is PullState.GAP
    assert reader.numbers == [[1, 2]]
    assert [status.state for status in reader.statuses] == [PullState.GAP]


def test_a_consumer_shared_by_processes_reports_no_gaps(reader):
    async def scenario():
        await reader.open(is_exclusive=False)
        await reader.server.deliver(2, 7)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert reader.numbers == [[2, 7]]


def test_messages_that_arrive_after_close_are_ignored(reader):
    async def scenario():
        pull = await reader.open()
        await pull.close()
        await reader.server.deliver(1)

    asyncio.run(scenario())
    assert reader.batches == []


def test_a_status_is_passed_on_after_the_deliveries_before_it(reader):
    order: list[str] = []

    async def scenario():
        server = Server()
        pull = PullConsumer(
            server,
            "s",
            "c",
            lambda batch: order.append(f"{len(batch)} messages"),
            lambda status: order.append(status.state.name),
        )
        await pull.open()
        await server.deliver(1, 2)
        await server.send_status("408", "Request Timeout", **{"Nats-Pending-Messages": "5"})

    asyncio.run(scenario())
    assert order == ["2 messages", "EXPIRED"]


@pytest.mark.parametrize(
    ("code", "text", "state"),
    [
        ("100", "Idle Heartbeat", PullState.HEARTBEAT),
        ("404", "No Messages", PullState.DRY),
        ("408", "Request Timeout", PullState.EXPIRED),
        ("409", "Batch Completed", PullState.FULL),
        ("409", "Message Size Exceeds MaxBytes", PullState.TOO_LARGE),
        ("409", "Consumer Deleted", PullState.GONE),
        ("409", "Leadership Change", PullState.GONE),
        ("503", "", PullState.ABSENT),
        ("400", "Bad Request", PullState.REFUSED),
    ],
)
def test_each_status_of_the_server_maps_to_one_state(code, text, state):
    status = PullStatus.of({"Status": code, "Description": text, "Nats-Last-Consumer": "7"})
    assert (status.state, status.delivered, status.left) == (state, 7, 0)


def test_a_fetch_ends_when_all_messages_have_arrived(reader):
    async def scenario():
        pull = await reader.open()
        fetching = asyncio.create_task(pull.fetch({"batch": 2, "no_wait": True}))
        await asyncio.sleep(0)
        await reader.server.deliver(1, 2)
        return await fetching

    assert asyncio.run(scenario()).state is PullState.FULL
    assert reader.server.requests == [("inbox.1", {"batch": 2, "no_wait": True})]


def test_a_late_status_of_an_earlier_request_does_not_end_the_next(reader):
    async def scenario():
        pull = await reader.open()
        first = await pull.fetch({"batch": 2}, within=0.01)
        fetching = asyncio.create_task(pull.fetch({"batch": 2}))
        await asyncio.sleep(0)
        await reader.server.send_status("408", "Request Timeout", request=1)
        await reader.server.deliver(1)
        await reader.server.send_status("404", "No Messages", request=2)
        return first.state, (await fetching).state

    assert asyncio.run(scenario()) == (PullState.SILENCE, PullState.DRY)
    assert reader.numbers == [[1]]


def test_a_fetch_continues_as_long_as_messages_arrive(reader):
    async def scenario():
        pull = await reader.open()
        fetching = asyncio.create_task(pull.fetch({"batch": 99}, silence=0.5))
        for number in range(1, 25):
            await asyncio.sleep(0.05)
            assert not fetching.done()
            await reader.server.deliver(number)
        return (await fetching).state

    assert asyncio.run(scenario()) is PullState.SILENCE
    assert [n for batch in reader.numbers for n in batch] == list(range(1, 25))


def test_a_batch_can_be_cut_by_sequence():
    message = [Message("a", f"$JS.ACK.s.c.1.{seq}.{seq}.0.0", b"") for seq in (3, 5, 8)]
    batch = Deliveries.of(parcel(message))
    assert (batch.after(5).seqs, batch.up_to(5).seqs) == ([8], [3, 5])
    assert batch.after(2) is batch
    assert batch.up_to(8) is batch
    assert not batch.after(8)
