"""Reading all that a stream holds: the same from its leader and from a replica."""

from __future__ import annotations

import pytest

from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.publish import publish
from ebbflow.nats.stored import (
    _direct_read,
    _read_last_from_leader,
    read_last,
    read_one,
    read_page,
    read_subject,
    take_snapshot,
)
from ebbflow.streams import provision


@pytest.fixture
def stream(link, names):
    """A stream with a subject for each of several keys; called with keys, it stores them."""
    name = names.dead_letters
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "allow_direct": True}
    link.run(provision.ensure(link.client, config))

    def store(*keys, payload=b"x", headers=None):
        for key in keys:
            link.run(publish(link.client, f"{name}.{key}", payload, headers))

    store.name = name
    return store


def test_the_last_message_of_each_subject_is_read_oldest_first(link, stream):
    stream("a", "b", "a", "c")

    found = link.run(read_last(link.client, stream.name, f"{stream.name}.>"))

    assert [(one.seq, one.subject.rpartition(".")[2]) for one in found] == [
        (2, "b"),
        (3, "a"),
        (4, "c"),
    ]
    assert link.run(read_last(link.client, stream.name, f"{stream.name}.z")) == []
    assert link.run(read_last(link.client, "nothing", "nothing.>")) == []


def test_more_subjects_than_the_server_returns_at_once_are_all_read(link, stream):
    stream(*range(1_100))

    found = link.run(read_last(link.client, stream.name, f"{stream.name}.>"))

    assert [one.seq for one in found] == list(range(1, 1_101))


def test_the_leader_and_a_replica_return_the_same(link, stream):
    stream("a", payload=b"\x00\xff", headers={"colour": "blue: dark", "empty": "-"})
    stream("b", payload=b"")
    subject = f"{stream.name}.>"

    replica = link.run(_direct_read(link.client, stream.name, {"multi_last": [subject]}))[0]
    leader = link.run(
        _read_last_from_leader(link.client, stream.name, [f"{stream.name}.{k}" for k in "ab"])
    )

    assert [(one.seq, one.subject, one.payload) for one in leader] == [
        (one.seq, one.subject, one.payload) for one in replica
    ]
    assert leader[0].headers == {"colour": "blue: dark", "empty": "-"}
    assert leader[0].headers.items() <= replica[0].headers.items()


def test_a_subject_is_read_over_many_pages_without_deleted_messages(link, stream):
    stream(*["a", "b"] * 400)
    call = f"STREAM.MSG.DELETE.{stream.name}"
    for seq in (1, 300, 799):
        link.run(api.call(link.client, call, {"seq": seq}))

    found = link.run(read_subject(link.client, stream.name, f"{stream.name}.a"))

    assert [one.seq for one in found] == [n for n in range(1, 800, 2) if n not in (1, 799)]


def test_messages_stored_after_a_snapshot_are_not_part_of_it(link, stream):
    stream("a", "a")
    snapshot = link.run(take_snapshot(link.client, stream.name))
    stream("a")
    subject = f"{stream.name}.a"

    page = link.run(read_page(link.client, stream.name, subject, 1, snapshot))

    assert [one.seq for one in page] == [1, 2]
    assert not link.run(read_page(link.client, stream.name, subject, 3, snapshot))


def test_a_stream_that_never_held_a_message_is_read_as_empty(link, stream):
    assert link.run(read_subject(link.client, stream.name, f"{stream.name}.a")) == []
    assert link.run(read_one(link.client, stream.name, seq=1)) is None


def test_a_read_without_an_answer_is_reported(link, names, monkeypatch):
    monkeypatch.setattr(api, "PATIENCE", 0.3)
    with pytest.raises(
        JetStreamUnavailable, match=r"did not carry out DIRECT\.GET\.\w+ within 0\.3 s: 503"
    ):
        link.run(_direct_read(link.client, names.dead_letters, {"seq": 1}))
