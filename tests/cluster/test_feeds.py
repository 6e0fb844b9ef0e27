"""A cluster knows which frames of a feed are stored, whichever node leads the buffer."""

from __future__ import annotations

import pytest

from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.streams import catalogue
from ebbflow.streams.feed import Buffers

pytestmark = pytest.mark.slow


@pytest.mark.guarantee("http-200-means-stored")
def test_looking_up_a_frame_stores_nothing_and_still_works_with_a_new_leader(cluster, names):
    stream = cluster.make(catalogue.buffer_config(names, "in", 0, 2, replicas=3))
    link = cluster.link
    buffers = Buffers(link, names, "in", 1)
    rows = frames.batch_of({"id": ["a"], "value": [b"x"]}, 1)

    assert not link.run(buffers.has_stored("f1"))
    link.run(buffers.put(rows, "f1"))
    assert link.run(buffers.has_stored("f1"))
    link.run(buffers.put(rows, "f2"))
    link.run(api.purge_subject(link.client, stream, names.buffer_subject("in", 0), 1))
    cluster.kill(cluster.leader_of(stream))

    assert [link.run(buffers.has_stored(frame)) for frame in ("f1", "f2", "f3")] == [
        True,
        True,
        False,
    ]
    state = link.run(api.read_info(link.client, stream))
    assert (state["messages"], state["last_seq"]) == (1, 2)
