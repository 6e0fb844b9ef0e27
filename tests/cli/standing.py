"""A pipeline that is set up and does not run: its streams and its spec, without any task."""

import itertools

import pytest

from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_subject
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.provision import provision
from ebbflow.runtime.run_setup import store_spec
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore

_numbers = itertools.count()


class Standing:
    """Vertices in, sorted (ordered, two partitions), table (SQL) and out, one after the other."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.names = Names(name)
        pipeline = (
            Pipeline(name)
            .source("in", Generator(messages=1))
            .map("sorted", "json:dumps", partitions=2, ordered=True)
            .map("table", sql="select * from messages")
            .sink("out", Blackhole())
        )
        spec = pipeline.spec
        plans = make_plans(spec, link.server, link.client.max_payload, None)
        link.run(provision(link, plans))
        link.run(store_spec(link.client, self.names, spec))
        for plan in plans:
            for partition in range(plan.partitions):
                store = PositionStore(link.client, self.names, plan.vertex, partition)
                link.run(store.claim())

    def limit(self, stream: str, messages: int) -> None:
        """Lets the stream hold no more messages than this."""
        call = f"STREAM.INFO.{stream}"
        config = self.link.run(api.call(self.link.client, call))["config"] | {"max_msgs": messages}
        self.link.run(api.call(self.link.client, f"STREAM.UPDATE.{stream}", config))

    def stored(self, vertex: str, partition: int = 0) -> list[dict]:
        """The rows in a buffer, or, for a source, those that are due for redelivery."""
        if vertex == "in":
            stream = self.names.redelivery(vertex, partition)
            subject = self.names.due_subject(vertex, partition)
        else:
            stream = self.names.buffer(vertex, partition)
            subject = self.names.buffer_subject(vertex, partition)
        messages = self.link.run(read_subject(self.link.client, stream, subject))
        return [row for m in messages for row in frames.decode(m.payload).to_pylist()]


@pytest.fixture
def standing(link: Link) -> Standing:
    return Standing(link, f"standing-{next(_numbers)}")
