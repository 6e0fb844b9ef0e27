"""Ranges of a replicated stream are read completely, or fail, while nodes are killed or lag."""

from __future__ import annotations

import pytest

from ebbflow.datasource import readers
from ebbflow.datasource.planning import Leader, Range
from ebbflow.datasource.readers import Blocks
from ebbflow.nats import api
from tests.cluster.lagging import READS, lagging

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def stream(cluster, names):
    config = {"name": f"{names.pipeline}-orders", "subjects": [f"{names.pipeline}.>"]}
    return cluster.make(config | {"storage": "file", "num_replicas": 3, "allow_direct": True})


async def publish(link, subject, number):
    for one in range(number):
        await link.client.request(subject, b"%d" % one, 10)


async def planned(link, stream, subject=None, ahead=0):
    """A range as the driver plans it, plus that many messages that are not yet published."""
    now = await Leader(link.client, stream).read_facts()
    until = now.last + ahead
    return Range(stream, now.created, subject, now.first - 1, until, fail_on_loss=True)


async def rest(reader):
    found = []
    while block := await reader.read_block():
        found += block.seqs
    await reader.close()
    return found


def node_of(cluster, reader):
    """The node that the reader's consumer is on."""
    call = f"CONSUMER.INFO.{reader._wanted.stream}.{reader._pull.name}"
    name = cluster.link.run(api.call(cluster.link.client, call))["cluster"]["leader"]
    return next(node for node in cluster.all if node.name == name)


def begun(cluster, link, wanted, node):
    """A reader that has read a first block, with a consumer on the node."""
    while True:
        reader = readers.RangeReader(link, wanted, Blocks(100, 100, silence=1.0))
        link.run(reader.open())
        found = link.run(reader.read_block()).seqs
        if node in (None, node_of(cluster, reader)):
            return reader, found
        link.run(reader.close())


@pytest.mark.guarantee("data-source-reads-all")
def test_a_range_is_read_completely_from_a_lagging_node(cluster, stream, names):
    """The range ends with a message of another subject: only the leader knows that all is read."""
    mine, other = f"{names.pipeline}.mine", f"{names.pipeline}.other"
    node = cluster.followers_of(stream)[0]
    with lagging(cluster, stream) as behind:
        behind.acting.run(publish(behind.acting, mine, 100))
        cluster.wait_until_current(stream)
        for _ in behind.rounds():
            wanted = behind.acting.run(planned(behind.acting, stream, mine, ahead=51))
            readers = [begun(cluster, behind.reading, wanted, node)[0] for _ in range(READS)]

            def act():
                behind.acting.run(publish(behind.acting, mine, 50))
                behind.acting.run(publish(behind.acting, other, 1))

            found = behind.after(act, lambda readers=readers: rest(readers.pop()))
            left = [n for n in range(101, wanted.until + 1) if (n - 100) % 51]
            assert found == [left] * READS


@pytest.mark.guarantee("data-source-reads-all")
@pytest.mark.parametrize("lost", ["the node of the consumer", "the leader"])
def test_a_range_is_read_completely_when_a_node_is_killed(cluster, stream, names, lost):
    cluster.link.run(publish(cluster.link, f"{names.pipeline}.new", 1_000))
    with cluster.linked() as link:
        reader, found = begun(cluster, link, link.run(planned(link, stream)), None)
        leads = lost == "the leader"
        cluster.kill(cluster.leader_of(stream) if leads else node_of(cluster, reader))
        found += link.run(rest(reader))
    assert found == list(range(1, 1_001))
