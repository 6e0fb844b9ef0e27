"""Creating streams on a cluster: what is waited for, and what is reported."""

from __future__ import annotations

import pytest

from ebbflow.domain.errors import JetStreamUnavailable, SetupError
from ebbflow.nats import api
from ebbflow.streams import catalogue, provision
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_more_replicas_than_servers_are_rejected_with_a_next_step(cluster, names, monkeypatch):
    monkeypatch.setattr(provision, "_JOINING", 0.3)
    config = catalogue.dead_letter_config(names, replicas=5)
    with pytest.raises(SetupError) as refused:
        cluster.link.run(provision.ensure(cluster.link.client, config))

    name = names.dead_letters
    assert refused.value.what.startswith(
        f"The NATS cluster has no 5 servers that can keep stream {name}: no suitable peers"
    )
    assert refused.value.next_step == (
        "Start those that are missing, see whether they have room, "
        "or set interStepBuffer.replicas to 1."
    )


def test_the_number_of_replicas_of_an_existing_stream_can_be_changed(cluster, names):
    name = names.dead_letters

    def others():
        return len(cluster.info(name)["cluster"].get("replicas", ()))

    for replicas in (1, 3, 1):
        cluster.make(catalogue.dead_letter_config(names, replicas))
        until(lambda replicas=replicas: others() == replicas - 1)


def test_a_cluster_without_a_majority_is_reported_and_waited_for(cluster, names):
    """No leader can be elected while two of three nodes are halted."""
    name = cluster.make(catalogue.dead_letter_config(names, replicas=3))
    alive, *others = cluster.all
    with cluster.linked(alive) as link:
        config = catalogue.redelivery_config(names, "v", 0, replicas=3)
        with cluster.halted(*others):
            making = link.submit(provision.ensure(link.client, config))
            with pytest.raises(
                JetStreamUnavailable, match=r"STREAM\.PURGE\.\w+ within 2 s: .*most servers"
            ):
                link.run(api.call(link.client, f"STREAM.PURGE.{name}", patience=2))
        making.result(120)

    assert cluster.info(names.redelivery("v", 0))["config"]["num_replicas"] == 3


def test_streams_deleted_while_leaders_change_stay_deleted(cluster, names):
    made = [
        cluster.make(catalogue.redelivery_config(names, "v", number, replicas=3))
        for number in range(3)
    ]
    for name in made:
        cluster.step_down(name)
    cluster.link.run(api.delete(cluster.link.client, [*made, made[0]]))

    assert cluster.link.run(api.list_streams(cluster.link.client, made[0][:-1])) == []
