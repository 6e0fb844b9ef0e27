"""One NATS server and one Spark session for the folder; every test has its own streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from ebbflow.datasource import register
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import NATS_URL
from ebbflow.nats.login import Addresses
from tests.nats.securing import address
from tests.waiting import until

_numbers = count()


def run_to_end(start: Callable[[], StreamingQuery]) -> None:
    """Start a query and wait for its end, with a retry if a Python worker was too slow to connect.

    Spark allows the process that plans a data source only ten seconds, even on a busy machine.
    """
    for attempts_left in (2, 1, 0):
        query = start()
        try:
            assert query.awaitTermination(120)
            return
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or not attempts_left:
                raise
        finally:
            query.stop()


@pytest.fixture(scope="session")
def server(link: Link) -> Addresses:
    return link.server


@pytest.fixture(scope="session")
def url(server: Addresses) -> str:
    """The URL of the server, with the login."""
    return address(server)


@pytest.fixture(scope="session")
def spark(spark: Any, url: str) -> Any:
    """The session; it finds NATS through the environment."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(NATS_URL, url)
        register(spark)
    return spark


class Stream:
    """A stream that a test fills and inspects."""

    def __init__(self, link: Link, name: str, **config: Any) -> None:
        self.link = link
        self.name = name
        self.config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory"} | config
        self.make()

    def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.link.run(api.call(self.link.client, call, body))

    def make(self) -> None:
        self.api(f"STREAM.CREATE.{self.name}", self.config)

    def remove(self) -> None:
        self.api(f"STREAM.DELETE.{self.name}")

    def publish(self, *payloads: Any, on: str = "new", headers: Any = None) -> None:
        """Store messages; numbers and strings are written as text."""
        for payload in payloads:
            data = payload if isinstance(payload, bytes) else str(payload).encode()
            self.link.run(self._confirmed(f"{self.name}.{on}", data, headers))

    async def _confirmed(self, subject: str, data: bytes, headers: Any) -> None:
        await self.link.client.jetstream().publish(subject, data, headers=headers)

    def fill(self, number: int, on: str = "new") -> None:
        """Store that many messages fast, each with its number."""
        self.link.run(self._filled(number, on))

    async def _filled(self, number: int, on: str) -> None:
        last = await self._last() + number
        for one in range(number):
            await self.link.client.publish(f"{self.name}.{on}", str(one).encode())
            if one % 500 == 499:
                await self.link.client.flush()
        while await self._last() < last:
            await asyncio.sleep(0.01)

    async def _last(self) -> int:
        state = await api.read_state(self.link.client, self.name)
        assert state is not None
        return state.last_seq

    def delete(self, *sequences: int) -> None:
        for sequence in sequences:
            self.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": sequence})

    def purge(self, before: int) -> None:
        """Remove everything before a sequence, as limits do."""
        self.api(f"STREAM.PURGE.{self.name}", {"seq": before})

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.api(f"STREAM.INFO.{self.name}")["state"]
        return state

    @property
    def consumers(self) -> int:
        return int(self.state["consumer_count"])

    def has_no_consumers_left(self) -> bool:
        """Wait until no consumer is left; deleting one is asynchronous."""
        until(lambda: not self.consumers)
        return True

    def stored(self) -> list[tuple[str, bytes, dict[str, str]]]:
        """Subject, data and headers of all messages, one by one from the server itself."""
        return self.link.run(self._stored())

    async def _stored(self) -> list[tuple[str, bytes, dict[str, str]]]:
        manager = self.link.client.jsm()
        state = (await manager.stream_info(self.name)).state
        found = []
        for sequence in range(state.first_seq, state.last_seq + 1):
            message = await manager.get_msg(self.name, sequence)
            found.append((message.subject, message.data or b"", message.headers or {}))
        return found


@pytest.fixture
def make(link: Link) -> Callable[..., Stream]:
    """Makes streams that no other test uses."""

    def stream(**config: Any) -> Stream:
        return Stream(link, f"S{next(_numbers)}", **config)

    return stream


@pytest.fixture
def stream(make: Callable[..., Stream]) -> Stream:
    return make()
