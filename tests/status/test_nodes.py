"""Which nodes of a NATS cluster are down, according to the leader of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.status.nodes import NodeWatch, describe_change, find_down

SECOND = 1_000_000_000
WELL = {"name": "n2", "current": True, "active": SECOND // 2}
GONE = {"name": "n3", "current": False, "active": 7 * SECOND}


def cluster(*replicas: dict[str, Any]) -> dict[str, Any]:
    return {"leader": "n1", "replicas": [*replicas]}


@pytest.fixture
def watch(link: Link) -> NodeWatch:
    return NodeWatch(link.client, "S")


@pytest.mark.parametrize(
    ("replica", "down"),
    [
        (WELL, set()),
        (GONE, {"n3"}),
        (WELL | {"offline": True}, {"n2"}),
        ({"name": "n2"}, {"n2"}),
    ],
)
def test_a_node_that_its_leader_has_lost_touch_with_is_down(replica, down) -> None:
    assert find_down(cluster(replica)) == down


def test_a_node_that_is_down_twice_in_a_row_is_reported_with_a_next_step(watch: NodeWatch) -> None:
    watch.note(cluster(WELL, GONE))
    assert watch.list_concerns() == ()
    watch.note(cluster(WELL, GONE))
    (concern,) = watch.list_concerns()
    assert (concern.level, concern.what) == ("warning", "NATS node n3 is down")
    assert concern.next_step == "Start it again; until then, streams have 2 of 3 replicas."


def test_a_newly_elected_leader_makes_no_node_look_down(watch: NodeWatch) -> None:
    new = {"name": "n2", "active": 0}
    for replicas in ((WELL, GONE), (new, GONE), (WELL, GONE), (WELL, GONE)):
        watch.note(cluster(*replicas))
    assert watch.down == {"n3"}


def test_a_node_that_is_back_up_is_reported() -> None:
    one, none = frozenset({"n3"}), frozenset[str]()
    assert describe_change(none, one) == [
        "NATS node n3 is down; streams continue on the nodes that are left"
    ]
    assert describe_change(one, none) == ["NATS node n3 is back"]
    assert describe_change(one, one) == []


def test_a_single_server_is_not_queried(link: Link) -> None:
    client: SecuredClient = link.client
    watch = NodeWatch(client, "NO_SUCH_STREAM")
    link.run(watch.look())
    assert watch.list_concerns() == ()
