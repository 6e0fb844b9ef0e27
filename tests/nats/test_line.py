"""Messages in bulk over a line that is cut in the middle of one, or whose server does not read."""

from __future__ import annotations

import asyncio
import random

import pytest

from ebbflow.nats import api
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.client import _WINDOW_BYTES, SecuredClient
from ebbflow.nats.link import connect
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import PublishRetry
from ebbflow.nats.pull import Deliveries, Follower
from ebbflow.nats.wire import Publishes, write_headers
from tests.nats.proxy import Line
from tests.nats.securing import nats_server

PATIENT = PublishRetry(wait=0.05, attempts=-1, ack_wait=60.0, attempt_timeout=0.5)


@pytest.fixture
def port(tmp_path):
    with nats_server(tmp_path / "nats", "") as port:
        yield port


def numbered(count: int, size: int = 100) -> Publishes:
    ids = [write_headers({"Nats-Msg-Id": str(n)}) for n in range(count)]
    return Publishes([b"s"] * count, ids, [b"%d " % n + b"x" * size for n in range(count)])


async def make_stream(client: SecuredClient) -> None:
    await api.call(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})


async def read_all(client: SecuredClient, count: int) -> list[int]:
    numbers: list[int] = []
    complete = asyncio.Event()

    def take(deliveries: Deliveries) -> None:
        parcel = deliveries.parcel
        numbers.extend(int(parcel.payload(row).split()[0]) for row in range(len(parcel)))
        if len(numbers) >= count:
            complete.set()

    follower = Follower(client, "S", "s", 0, take=take, fail=print, waiting=lambda: 0)
    await follower.open()
    await asyncio.wait_for(complete.wait(), 60)
    await follower.close()
    return numbers


def test_publishes_and_reads_survive_connections_cut_in_the_middle_of_a_message(port):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)

    async def scenario() -> tuple[int, list[int], int]:
        line = Line(port)
        async with line.listen() as own:
            client = await connect(Addresses.of(f"nats://127.0.0.1:{own}"), "test")
            await make_stream(client)

            async def cut_now_and_then() -> None:
                while line.cuts < 5:
                    line.cut_after = chance.randrange(1, 40_000)
                    await asyncio.sleep(0.05)

            cutting = asyncio.create_task(cut_now_and_then())
            failures = await publish_all(client, numbered(6_000), PATIENT)
            numbers = await read_all(client, 6_000)
            cutting.cancel()
            stored = (await api.read_state(client, "S")).messages
            await client.close()
            assert line.cuts > 0
            return len(failures), numbers, stored

    failed, numbers, stored = asyncio.run(scenario())
    assert (failed, stored) == (0, 6_000)
    assert sorted(numbers) == list(range(6_000))


def test_a_server_that_does_not_read_blocks_the_sender_within_its_window(port):
    async def scenario() -> tuple[int, int, int]:
        line = Line(port)
        async with line.listen() as own:
            client = await connect(Addresses.of(f"nats://127.0.0.1:{own}"), "test")
            await make_stream(client)
            line.open.clear()
            rows = numbered(20_000, size=2_000)
            publishing = asyncio.create_task(publish_all(client, rows, PATIENT))
            most = 0
            for _ in range(15):
                await asyncio.sleep(0.02)
                waiting = client._transport._io_writer.transport.get_write_buffer_size()
                most = max(most, waiting + client.pending_data_size)
            line.open.set()
            failures = await publishing
            stored = (await api.read_state(client, "S")).messages
            await client.close()
            return most, len(failures), stored

    most, failed, stored = asyncio.run(scenario())
    assert 0 < most < 2 * _WINDOW_BYTES
    assert (failed, stored) == (0, 20_000)
