"""A follower that really lags behind, and is queried before it has caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ebbflow.nats import stored
from ebbflow.nats.link import Link
from tests.cluster.cluster import Cluster
from tests.waiting import let_time_pass

ROUNDS = 20
READS = 4
# What the follower has to store before it receives anything from the test.
BACKLOG, LARGE = 60, b"x" * 1_000_000


class Lagging:
    """A node that is halted during an action and queried as soon as it continues.

    ``acting`` is a link to the leader, ``reading`` one to the node. Next to our own reads, plain
    direct reads are sent there, to prove that stale answers are possible.
    """

    def __init__(self, cluster: Cluster, stream: str, acting: Link, reading: Link) -> None:
        self.acting = acting
        self.reading = reading
        self._cluster = cluster
        self._stream = stream
        self._node = cluster.followers_of(stream)[0]
        self._rounds = self._stale = 0
        cluster.wait_for_direct_reads(stream)

    def after(
        self,
        act: Callable[[], Any],
        read: Callable[[], Coroutine[Any, Any, Any]],
        backlog: str | None = None,
        large: bytes = LARGE,
    ) -> list[Any]:
        """Returns what is read through the node; reads are sent after the act, before it continues.

        ``backlog`` is a subject of the stream for something large that keeps the node busy.
        """
        with self._cluster.halted(self._node):
            if backlog is not None:
                self.acting.run(self._fill(backlog, large))
            act()
            plain = [self.reading.submit(self._plain()) for _ in range(READS)]
            ours = [self.reading.submit(read()) for _ in range(READS)]
            let_time_pass(0.02)  # on their way into the node
        found = [one.result(120) for one in ours]
        self._rounds += 1
        self._stale += sum(self._is_stale(one.result(120)) for one in plain)
        return found

    async def _fill(self, subject: str, large: bytes) -> None:
        sent = (self.acting.client.request(subject, large, 20) for _ in range(BACKLOG))
        await asyncio.gather(*sent)

    async def _plain(self) -> int:
        """The last sequence known to the node that answers."""
        _, end = await stored._ask(self.reading.client, self._stream, {"multi_last": [">"]}, 5)
        return int(end.get("Nats-UpTo-Sequence", 0))

    def _is_stale(self, last: int) -> bool:
        return last < self._cluster.info(self._stream)["state"]["last_seq"]

    def rounds(self, least: int = 2) -> Iterator[int]:
        """A few rounds, and more until a plain read was stale, which a fast node may never show."""
        while self._rounds < least or (not self._stale and self._rounds < ROUNDS):
            yield self._rounds
        print(f"of {self._rounds * READS} plain reads {self._stale} were stale, and none of ours")


@contextmanager
def lagging(cluster: Cluster, stream: str) -> Iterator[Lagging]:
    """A follower of the stream that is halted repeatedly."""
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]
    with cluster.linked(leader) as acting, cluster.linked(follower) as reading:
        yield Lagging(cluster, stream, acting, reading)
