"""Publishing a settlement with the bounds of a spec: room is waited for, nothing else is."""

from __future__ import annotations

import concurrent.futures
from dataclasses import replace

import pytest

from ebbflow.buffers import streams
from ebbflow.buffers.carry_out import publish_all
from ebbflow.core.publications import Publication, Stage
from ebbflow.core.settlement import Settlement
from ebbflow.errors import NoStreamResponse
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.outcome import Counts

HASTY = replace(BUFFER, wait=0.01, attempts=3, ack_wait=0.2)


def settlement_of(*ids, discards=False):
    outputs = [Publication(Stage.OUTPUT, "out", 0, i, b"frame", discards=discards) for i in ids]
    return Settlement(outputs, Counts(read=len(ids), done=len(ids)), {})


@pytest.fixture
def publish(link, names):
    """Begin to publish a settlement; what it meets with is counted in the tally."""

    def begin(settlement, tally):
        return link.submit(publish_all(link.client, names, settlement, HASTY, tally))

    return begin


@pytest.fixture
def buffer_of_one(link, names, ensure):
    ensure(streams.buffer_config(names, "out", 0, max_frames=1))


def test_a_bound_ends_the_attempts_when_there_is_no_stream(publish):
    tally = Tally()

    with pytest.raises(NoStreamResponse, match="after 4 attempts"):
        publish(settlement_of("a"), tally).result(5)
    assert (tally.attempts, tally.no_responders, tally.full) == (4, 4, 0)


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_room_is_waited_for_however_little_time_there_is_to_publish(
    link, names, publish, buffer_of_one
):
    tally = Tally()
    publish(settlement_of("first"), tally).result(5)
    waiting = publish(settlement_of("second"), tally)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(3 * HASTY.ack_wait)

    subject = names.buffer_subject("out", 0)
    link.run(api.purge(link.client, names.buffer("out", 0), subject, 1))

    assert waiting.result(5) == []
    assert tally.full > 3
    assert tally.attempts == tally.full + 2


def test_what_may_be_discarded_does_not_wait(publish, buffer_of_one):
    tally = Tally()
    publish(settlement_of("first"), tally).result(5)

    (gone,) = publish(settlement_of("second", discards=True), tally).result(5)

    assert gone.msg_id == "second"
    assert (tally.attempts, tally.full) == (2, 1)
