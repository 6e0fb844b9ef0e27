"""The JetStream API: which calls are repeated, and which answers are trusted."""

from __future__ import annotations

import pytest

from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.nats import api
from tests.nats.listener import Listener


@pytest.fixture
def call(names):
    """An API call that only the test's own listener answers."""
    return f"STREAM.INFO.{names.dead_letters}.test"


@pytest.fixture
def listener(link, call):
    listener = Listener(link, f"$JS.API.{call}")
    yield listener
    listener.stop()


UNAVAILABLE = (
    b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily '
    b'unavailable"}}'
)
LEADERLESS = (
    b'{"state":{"messages":7,"last_seq":7},"cluster":{"name":"c","replicas":[{"name":"n1"}]}}'
)
OUT_OF_TOUCH = (
    b'{"state":{"messages":7,"last_seq":7},"cluster":{"name":"c","leader":"n1","replicas":'
    b'[{"name":"n2","active":9000000000},{"name":"n3","active":0}]}}'
)
NOT_THE_LEADER = (
    b'{"state":{"messages":7,"last_seq":7},"cluster":{"name":"c","leader":"n1","replicas":'
    b'[{"name":"n1","active":1},{"name":"n3","active":1}]}}'
)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UNAVAILABLE, "JetStream system temporarily unavailable"),
        (LEADERLESS, "it has no leader"),
        (OUT_OF_TOUCH, "it has no leader"),
        (NOT_THE_LEADER, "it has no leader"),
    ],
    ids=["unavailable", "leaderless", "out of touch", "not the leader"],
)
def test_an_answer_that_is_not_from_a_leader_is_not_trusted(link, listener, call, answer, reason):
    requests = listener(answer)
    with pytest.raises(JetStreamUnavailable) as error:
        link.run(api.call(link.client, call, patience=2.0))

    assert len(requests) > 1
    assert str(error.value) == (
        f"JetStream did not carry out {call} within 2 s: {reason}. "
        "See whether NATS is up; in a cluster, most servers have to be."
    )


def test_a_leader_in_touch_with_a_majority_is_trusted(link, listener, call):
    requests = listener(OUT_OF_TOUCH.replace(b'"active":0', b'"active":1000000'))

    assert link.run(api.call(link.client, call))["state"]["last_seq"] == 7
    assert len(requests) == 1


def test_a_call_without_an_answer_is_repeated(link, listener, call):
    requests = listener()
    with pytest.raises(JetStreamUnavailable, match="within 2 s: no answer"):
        link.run(api.call(link.client, call, patience=2.0))

    assert len(requests) == 2
