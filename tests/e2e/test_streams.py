"""From one stream of the user to another, with all processes killed on the way."""

from __future__ import annotations

import json

import pytest

from tests.chaos.kill_and_restart import kill_tree

pytestmark = pytest.mark.slow

STEPS = """
import time

from ebbflow import Message, nack

def every_tenth(datum):
    time.sleep(0.001)
    if int(datum.value) % 10 == 0 and datum.deliveries < 3:
        nack(delay="200ms", max_deliveries=2, reason="wait")
    return Message(datum.value)
"""


def pipeline(source, target):
    url = source.outside.url
    vertices = [
        {
            "name": "in",
            "partitions": 2,
            "limits": {"readBatchSize": 50},
            "source": {
                "jetstream": {"url": url, "stream": source.name, "consumer": "c", "ackWait": "3s"},
                "transformer": {"python": "stream_steps:every_tenth"},
            },
        },
        {
            "name": "out",
            "partitions": 2,
            "sink": {"jetstream": {"url": url, "subject": target.subject}},
        },
    ]
    spec = {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]}
    header = {"apiVersion": "numaflow.numaproj.io/v1alpha1", "kind": "Pipeline"}
    return json.dumps(header | {"metadata": {"name": "copy"}, "spec": spec})


@pytest.mark.guarantee("jetstream-sink-stores-once")
@pytest.mark.long
def test_a_run_that_is_killed_halfway_copies_every_message_once(whole, outside):
    source, target = outside.stream(), outside.stream()
    source.fill([b"%d" % n for n in range(2_000)], producers=2)
    (whole.folder / "stream_steps.py").write_text(STEPS)
    (whole.folder / "pipeline.yaml").write_text(pipeline(source, target))

    def stored():
        return outside.api(f"STREAM.INFO.{target.name}")["state"]["messages"]

    process = whole.start("--drain")
    whole.wait_until(lambda: stored() > 300, process)
    kill_tree(process.pid)
    assert stored() < 2_000

    process = whole.start("--drain", "--timeout", "240s")
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 0, output
    # Redelivered messages keep their ids, so that the target stream recognises duplicates.
    values = [int(value) for _, value, _ in target.stored()]
    assert sorted(values) == list(range(2_000))
    info = source.info()
    assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)
