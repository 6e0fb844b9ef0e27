"""Pulsar to Pulsar on a real broker: a topic, upper case, another topic.

The broker is the standalone one that tests use, in a separate folder. Every run has its own
topics without partitions. A contestant that doubles a message has no rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contest
from benchmarks.outside import check_arrived
from benchmarks.queues import Arrived, NoService, Service
from benchmarks.work import numbered
from ebbflow import connectors

if TYPE_CHECKING:
    from tests.connectors.pulsar.broker import PulsarBroker

LOOP = "bare pulsar-client loop"


@contextmanager
def pulsar() -> Iterator[Service]:
    """Yields a broker, for as long as the context lasts; ``NoService`` if none is available."""
    try:
        from tests.connectors.kafka.jars import NoBroker
        from tests.connectors.pulsar.broker import PulsarBroker
    except ImportError as error:
        raise NoService(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="ebbflow-pulsar-") as folder:
        try:
            broker = PulsarBroker(Path(folder)).start()
        except NoBroker as error:
            raise NoService(str(error)) from error
        try:
            yield Service(contest.PULSAR, LOOP, "pulsar_loop", partial(Topics, broker), 15_000)
        finally:
            broker.stop()


class Topics:
    """The topics of one run."""

    def __init__(self, broker: PulsarBroker, messages: int, size: int, seed: int) -> None:
        self._broker = broker
        self._messages = messages
        self._texts = partial(numbered, messages, size, seed)
        source, self._out = broker.topic(), broker.topic()
        self.source = connectors.Pulsar(server_addr=broker.address, topic=source)
        self.sink = connectors.Pulsar(server_addr=broker.address, topic=self._out)
        self.words = (broker.address, source, self._out)
        broker.fill(source, self._texts())

    def done(self) -> int:
        """Returns how many messages the second topic has received."""
        stats = self._broker.ask("GET", f"persistent/public/default/{self._out}/stats")
        return int(stats["msgInCounter"])

    def check(self) -> Arrived:
        """Returns the seconds between the first and the last message, by their times.

        ``NotOnce`` if a message has not arrived once, in upper case.
        """
        found = self._broker.messages(self._out, self._messages)
        check_arrived([message.data() for message in found], self._texts(), once=True)
        times: list[int] = [message.publish_timestamp() for message in found]
        return Arrived((max(times) - min(times)) / 1000)
