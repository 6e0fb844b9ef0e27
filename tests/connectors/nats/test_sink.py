"""The sinks that publish to NATS, against a real server: one response for each message."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ebbflow import Datum, Response
from ebbflow.connectors.nats import spec
from ebbflow.connectors.nats.messages import (
    PublishSettings,
    read_keys_and_headers,
    write_keys_and_headers,
)
from ebbflow.connectors.nats.sink import JetStreamSink, NatsSink
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import Status
from ebbflow.engine import frames
from ebbflow.engine.position import LINEAGE
from ebbflow.nats.login import Addresses
from ebbflow.usercode.columns import COLUMNS
from tests.nats.outside import Outside, Stream
from tests.nats.securing import nats_server
from tests.waiting import until


@pytest.fixture
def stream(outside: Outside) -> Stream:
    return outside.stream()


class Answering:
    """A sink that takes messages and returns a response for each of them."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def __call__(self, messages: list[Datum]) -> list[Response]:
        columns = {
            "id": [datum.id for datum in messages],
            "value": [datum.value for datum in messages],
            "keys": [list(datum.keys) or None for datum in messages],
            "headers": [list(datum.headers.items()) or None for datum in messages],
        }
        rows = frames.batch_of(columns, len(messages)).select(COLUMNS)
        answers = self._sink(rows) or {}
        return [
            replace(answers[row], id=datum.id) if row in answers else Response.ok(datum.id)
            for row, datum in enumerate(messages)
        ]


@pytest.fixture
def opened():
    with ExitStack() as stack:

        def make(kind, server, subject="a.b", header=None, ack_wait=5.0):
            sink = Answering(kind(PublishSettings(server, subject, header, ack_wait)))
            sink.open()
            stack.callback(sink.close)
            return sink

        yield make


@pytest.fixture
def storing(stream, opened):
    def make(subject=stream.subject, **options):
        return opened(JetStreamSink, stream.outside.server, subject, **options)

    return make


def data(*values, **fields):
    return [Datum(value, id=f"m{n}", **fields) for n, value in enumerate(values)]


def subscribed(outside, subject):
    received = []

    async def record(message):
        received.append(message)

    link = outside.link
    subscription = link.run(link.client.subscribe(subject, cb=record))
    link.flush()
    return received, lambda: link.run(subscription.unsubscribe())


# --- to a stream ----------------------------------------------------------------------------------


def test_ok_means_that_the_message_is_stored_with_headers_and_keys(stream, storing):
    given = data(b"1", b"2", keys=["a", "ü\n"], headers={"Colour": "blau"})

    assert storing()(given) == [Response.ok("m0"), Response.ok("m1")]

    stored = stream.stored()
    assert [value for _, value, _ in stored] == [b"1", b"2"]
    assert stored[0][2]["Colour"] == "blau"
    assert read_keys_and_headers("", stored[0][2])[0] == ["a", "ü\n"]


def test_thousands_are_stored_in_one_call(stream, storing):
    given = data(*(b"%d" % n for n in range(3_000)))
    assert {one.status for one in storing()(given)} == {Status.OK}
    assert {value for _, value, _ in stream.stored()} == {b"%d" % n for n in range(3_000)}


@pytest.mark.guarantee("jetstream-sink-stores-once")
def test_a_redelivered_message_is_stored_once(stream, storing):
    storing()(data(b"1", b"2"))
    assert storing()(data(b"1", b"2", b"3")) == [Response.ok(f"m{n}") for n in range(3)]
    assert len(stream.stored()) == 3


@pytest.mark.guarantee("jetstream-sink-stores-once")
def test_a_pipeline_that_was_started_over_stores_the_same_ids_again(stream, storing, monkeypatch):
    monkeypatch.setenv(LINEAGE, "first")
    storing()(data(b"1"))
    monkeypatch.setenv(LINEAGE, "second")
    storing()(data(b"1"))
    assert len(stream.stored()) == 2


def test_headers_that_instruct_jetstream_are_not_forwarded(stream, storing):
    storing()(data(b"0"))
    headers = {"Nats-Rollup": "all", "Nats-Msg-Id": "x", "nats-expected-stream": "other", "A": "b"}

    assert storing()([Datum(b"1", id="one", headers=headers)]) == [Response.ok("one")]

    assert [value for _, value, _ in stream.stored()] == [b"0", b"1"]
    kept = stream.stored()[1][2]
    assert (kept["A"], kept["Nats-Msg-Id"]) == ("b", "/one")
    assert not {"Nats-Rollup", "nats-expected-stream"} & kept.keys()


def test_a_header_may_name_the_subject(stream, storing):
    base = stream.subject.removesuffix("x")
    given = [
        Datum(b"1", id="1", headers={"To": f"{base}other"}),
        Datum(b"2", id="2"),
        Datum(b"3", id="3", headers={"To": "no subject at all"}),
    ]

    first, second, third = storing(header="To")(given)

    assert (first, second) == (Response.ok("1"), Response.ok("2"))
    assert third.status is Status.FAILURE
    assert "without spaces" in str(third.error)
    assert sorted((subject, value) for subject, value, _ in stream.stored()) == [
        (f"{base}other", b"1"),
        (stream.subject, b"2"),
    ]


def test_a_message_without_any_subject_is_a_failure(storing):
    (answer,) = storing(None, header="To")(data(b"1"))
    assert answer == Response.failure("m0", "it has no header To, and there is no subject")


@pytest.mark.guarantee("jetstream-sink-stores-once")
def test_a_message_rejected_by_the_server_fails_with_its_error(outside, opened):
    stream = outside.stream(max_msg_size=100)
    sink = opened(JetStreamSink, outside.server, stream.subject)

    fine, long, longest = sink(data(b"1", b"x" * 200, b"x" * 2_000_000))

    assert fine == Response.ok("m0")
    assert long.status is longest.status is Status.FAILURE
    assert "message size exceeds maximum allowed" in str(long.error)
    assert "message of 2,000,0" in str(longest.error)


def test_a_full_stream_counts_as_unavailable_after_a_wait(outside, opened):
    stream = outside.stream(max_msgs=1, discard="new")
    sink = opened(JetStreamSink, outside.server, stream.subject, ack_wait=0.5)
    assert sink(data(b"1")) == [Response.ok("m0")]

    (answer,) = sink([Datum(b"2", id="two", deliveries=3)])

    assert answer.status is Status.UNAVAILABLE
    assert "found it full" in str(answer.error)
    stream.outside.api(f"STREAM.PURGE.{stream.name}")
    assert sink([Datum(b"2", id="two", deliveries=4)]) == [Response.ok("two")]


def test_a_message_is_stored_when_a_full_stream_gets_room_in_time(outside, opened):
    stream = outside.stream(max_msgs=1, discard="new")
    sink = opened(JetStreamSink, outside.server, stream.subject)
    sink(data(b"1"))
    link = outside.link

    async def purge_later():
        import asyncio

        from ebbflow.nats import api

        await asyncio.sleep(0.5)
        await api.call(link.client, f"STREAM.PURGE.{stream.name}")

    purged = link.submit(purge_later())
    assert sink([Datum(b"2", id="two")]) == [Response.ok("two")]
    purged.result(120)


def test_a_subject_without_a_stream_counts_as_unavailable(outside, opened):
    sink = opened(JetStreamSink, outside.server, "nobody.has.this", ack_wait=0.6)
    (answer,) = sink(data(b"1"))
    assert answer.status is Status.UNAVAILABLE
    assert "found no stream" in str(answer.error)


@pytest.mark.guarantee("jetstream-sink-stores-once")
def test_an_outage_of_the_server_loses_nothing(tmp_path, opened):
    with Outside.running(tmp_path) as outside:
        stream = outside.stream(subjects=["kept.>"])
        port = int(outside.url.rpartition(":")[2])
        sink = opened(JetStreamSink, outside.server, "kept.x", ack_wait=0.5)
        assert sink(data(b"1")) == [Response.ok("m0")]
    until(lambda: not sink._link.client.is_connected)
    (answer,) = sink([Datum(b"2", id="two")])
    assert answer.status is Status.UNAVAILABLE
    assert "there was no connection" in str(answer.error)
    with Outside.running(tmp_path, port) as outside:
        until(lambda: sink([Datum(b"2", id="two")]) == [Response.ok("two")])
        stream = Stream(outside, stream.name, "kept")
        assert [value for _, value, _ in stream.stored()] == [b"1", b"2"]


# --- to a subject ---------------------------------------------------------------------------------


def test_a_subscriber_receives_every_message_with_headers_and_keys(outside, opened):
    received, stop = subscribed(outside, "plain.>")
    sink = opened(NatsSink, outside.server, "plain.a")
    given = data(*(b"%d" % n for n in range(1_000)), keys=["k"], headers={"A": "b"})

    assert {one.status for one in sink(given)} == {Status.OK}

    until(lambda: len(received) == 1_000)
    stop()
    assert [message.data for message in received] == [datum.value for datum in given]
    keys, headers = read_keys_and_headers(received[0].subject, received[0].headers)
    assert (keys, headers["A"], headers["Nats-Subject"]) == (["k"], "b", "plain.a")


class Wire:
    """A proxy that forwards everything and records what the client sends."""

    def __init__(self, port: int) -> None:
        self.sent = b""
        self._target = socket.create_connection(("127.0.0.1", port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._door.accept()
        threading.Thread(target=self._pass_on, args=(self._target, client), daemon=True).start()
        self._pass_on(client, self._target)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.sent += data if target is self._target else b""
                target.sendall(data)

    def close(self) -> None:
        self._door.close()
        self._target.close()


@pytest.fixture
def wire(outside):
    with contextlib.closing(Wire(int(outside.url.rpartition(":")[2]))) as wire:
        yield wire


def test_the_sink_pings_the_server_after_it_has_sent_the_messages(wire, opened):
    sink = opened(NatsSink, Addresses.of(f"nats://127.0.0.1:{wire.port}"), "plain.a")
    assert sink(data(b"1", b"2")) == [Response.ok("m0"), Response.ok("m1")]
    assert wire.sent.rindex(b"PING") > wire.sent.rindex(b"HPUB plain.a") > 0


@pytest.mark.guarantee("jetstream-sink-stores-once")
def test_a_lost_connection_counts_as_unavailable(tmp_path, opened):
    with Outside.running(tmp_path) as outside:
        port = int(outside.url.rpartition(":")[2])
        sink = opened(NatsSink, outside.server, "plain.a")
        assert sink(data(b"1")) == [Response.ok("m0")]
    until(lambda: not sink._link.client.is_connected)
    (answer,) = sink(data(b"2"))
    assert answer.status is Status.UNAVAILABLE
    assert "there is no connection" in str(answer.error)
    with Outside.running(tmp_path, port) as outside:
        received, _ = subscribed(outside, "plain.a")
        until(lambda: sink(data(b"3")) == [Response.ok("m0")])
        until(lambda: [message.data for message in received] == [b"3"])


def test_a_message_to_a_forbidden_subject_is_a_failure(tmp_path, opened):
    users = """authorization { users: [
      { user: me, password: m, permissions: { publish: ["open.>"] } } ] }"""
    with nats_server(tmp_path, users) as port:
        server = Addresses.of(f"nats://me:m@127.0.0.1:{port}")
        sink = opened(NatsSink, server, "open.a", header="To")
        given = [Datum(b"1", id="1"), Datum(b"2", id="2", headers={"To": "shut.a"})]
        assert sink(given) == [
            Response.ok("1"),
            Response.failure("2", "the login may not publish to shut.a"),
        ]


def test_a_message_over_the_limit_fails_alone(outside, opened):
    sink = opened(NatsSink, outside.server, "plain.a")
    connections = sink._link.client.stats["reconnects"]

    fine, large = sink(data(b"1", b"x" * 1_048_576))

    assert fine == Response.ok("m0")
    assert large.status is Status.FAILURE
    assert sink._link.client.stats["reconnects"] == connections


@pytest.mark.parametrize("kind", [JetStreamSink, NatsSink])
def test_an_unreachable_server_is_reported_with_what_to_correct(kind):
    section = spec.JetStreamSinkSpec(url="nats://127.0.0.1:1", subject="a")
    began = time.monotonic()
    with pytest.raises(SetupError, match=r"that url, auth and tls of the .* sink are right"):
        kind(section.settings()).open()
    assert time.monotonic() - began < 10


def test_a_message_with_an_invalid_header_value_is_a_failure(outside, opened):
    (answer,) = opened(NatsSink, outside.server)(data(b"1", headers={"A": "two\nlines"}))
    assert answer.status is Status.FAILURE
    assert "one line" in str(answer.error)


def test_keys_are_read_back_as_they_were_written():
    for keys in (["a"], ["a,b", "", "\n"], []):
        assert read_keys_and_headers("s", write_keys_and_headers(keys, {})) == (
            keys,
            {"Nats-Subject": "s"},
        )
