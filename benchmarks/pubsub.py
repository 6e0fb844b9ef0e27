"""Pub/Sub to Pub/Sub: a subscription, upper case, another topic.

The server is Google's ``pstest``, which tests use. It keeps messages in memory. Every run has its
own topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks import contest
from benchmarks.outside import check_arrived
from benchmarks.queues import Arrived, NoService, Service
from benchmarks.work import numbered
from ebbflow import connectors

if TYPE_CHECKING:
    from tests.connectors.pubsub.server import Pubsub

LOOP = "bare google-cloud-pubsub loop"
_MANY, _PULLS = 1_000, 10


@contextmanager
def pubsub() -> Iterator[Service]:
    """Yields a server, for as long as the context lasts; ``NoService`` if none is available."""
    from tests.connectors.pubsub.server import Pubsub
    from tests.numaflow.functions.building import NotBuilt, command

    try:
        server = Pubsub(command("pstest"))
    except (ImportError, NotBuilt) as error:
        raise NoService(str(error)) from error
    try:
        yield Service(contest.PUBSUB, LOOP, "pubsub_loop", partial(Topics, server), 30_000)
    finally:
        server.close()


class Topics:
    """The topics of one run, each with a subscription."""

    def __init__(self, server: Pubsub, messages: int, size: int, seed: int) -> None:
        from tests.connectors.pubsub.server import PROJECT

        self._server = server
        self._texts = partial(numbered, messages, size, seed)
        source, self._out = server.make(), server.make()
        address = f"127.0.0.1:{server.port}"
        at = partial(connectors.Pubsub, project=PROJECT, endpoint=f"http://{address}")
        self.source, self.sink = at(subscription=source), at(topic=self._out)
        self.words = (address, PROJECT, source, self._out)
        self._subscription = {"subscription": f"projects/{PROJECT}/subscriptions/{self._out}"}
        self._arrived: list[bytes] = []
        self._different: set[bytes] = set()
        self._times: list[int] = []
        texts = self._texts()
        while some := [{"data": text} for text in islice(texts, _MANY)]:
            server.publish(source, *some)

    def done(self) -> int:
        """Returns how many different messages have arrived in the second topic."""
        for _ in range(_PULLS):  # and not while there are some, which may be until the end
            if not self._take():
                break
        return len(self._different)

    def _take(self) -> bool:
        received = self._pull()
        self._arrived += [one.message.data for one in received]
        self._times += [one.message.publish_time.ToNanoseconds() for one in received]
        self._different.update(one.message.data for one in received)
        return bool(received)

    def _pull(self) -> Sequence[Any]:
        """Returns the next messages, acknowledged; without the client's slow classes."""
        asked = {**self._subscription, "max_messages": _MANY, "return_immediately": True}
        answer = self._server.subscriber.pull(request=asked)
        received: Sequence[Any] = type(answer).pb(answer).received_messages
        if received:
            ids = [one.ack_id for one in received]
            self._server.subscriber.acknowledge({**self._subscription, "ack_ids": ids})
        return received

    def check(self) -> Arrived:
        """Returns the seconds between the first and the last message, by their times."""
        while self._take():  # copies may have come since
            pass
        copies = check_arrived(self._arrived, self._texts(), once=False)
        return Arrived((max(self._times) - min(self._times)) / 1e9, copies)
