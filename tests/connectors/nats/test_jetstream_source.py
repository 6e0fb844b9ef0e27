"""The JetStream source against a real server: what it reads, holds, returns and rejects."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.connectors.nats import spec
from ebbflow.connectors.nats.durable import Durable
from ebbflow.connectors.nats.jetstream_source import JetStreamSettings, JetStreamSource
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset, SourceMessage
from ebbflow.engine.source_columns import columns_of, ids_of
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import publish
from ebbflow.publishing import Publisher
from tests.nats.outside import Outside, Stream
from tests.nats.securing import Authority, Nkey, nats_server, reload
from tests.waiting import until


@pytest.fixture
def stream(outside: Outside) -> Stream:
    return outside.stream()


@pytest.fixture
def source(stream):
    """Sources on the test's stream, open until the test ends."""
    with ExitStack() as stack:

        def make(of: Stream = stream, bounds=None, **wanted):
            durable = Durable(of.name, "c", **wanted)
            settings = JetStreamSettings(of.outside.server, durable, **bounds or {})
            made = JetStreamSource(settings)
            made.open()
            stack.callback(lambda: made._link.client.is_closed or made.close())
            return made

        yield make


def read(source, limit, timeout) -> list[SourceMessage]:
    """What the source returns, as messages."""
    rows = source.read(limit, timedelta(seconds=timeout)).to_pylist()
    return [SourceMessage(**_without_nulls(row)) for row in rows]


def _without_nulls(row):
    facts = {name: value for name, value in row.items() if value is not None}
    return facts | {"headers": dict(facts["headers"])}


def read_all(source, number, limit=500):
    found = []
    deadline = time.monotonic() + 120
    while len(found) < number:
        assert time.monotonic() < deadline, f"only {len(found)} messages arrived"
        found += read(source, limit, 0.5)
    return found


def nack(source, message, **options):
    source.nack([NackOffset(message.offset, NackOptions(**options))])


# --- reading --------------------------------------------------------------------------------------


def test_a_message_has_its_subject_headers_keys_time_and_sequence(stream, source):
    before = datetime.now(UTC)
    with Publisher(stream.outside.url) as publisher:
        headers = {"Colour": "blue", "Ebbflow-Keys": '["a", "b"]'}
        publisher.publish(stream.subject, b"value", headers=headers, msg_id="m1")

    (message,) = read(source(), 10, 1.0)

    assert message.value == b"value"
    assert ids_of(columns_of([message]), "in", 3).to_pylist() == [
        "in-0-1"
    ]  # whatever the partition
    assert list(message.keys) == ["a", "b"]
    assert message.headers == {
        "Colour": "blue",
        "Nats-Msg-Id": "m1",
        "Nats-Subject": stream.subject,
    }
    assert message.event_time is not None
    assert before <= message.event_time <= datetime.now(UTC)


@pytest.mark.parametrize("keys", ["", "a,b", '{"a": 1}', "[1]"])
def test_an_invalid_keys_header_stays_a_header(stream, source, keys):
    with Publisher(stream.outside.url) as publisher:
        publisher.publish(stream.subject, b"", headers={"Ebbflow-Keys": keys})

    (message,) = read(source(), 10, 1.0)

    assert (list(message.keys), message.headers["Ebbflow-Keys"]) == ([], keys)


def test_one_request_fetches_a_whole_batch(stream, source):
    stream.fill([b"%d" % n for n in range(1_200)])
    asked = []

    async def record(message):
        asked.append(message.data)

    link = stream.outside.link
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.c"
    subscription = link.run(link.client.subscribe(subject, cb=record))
    link.flush()
    reading = source()

    assert len(read_all(reading, 1_200)) == 1_200

    until(lambda: len(asked) >= 1)
    assert len(asked) <= 3
    link.run(subscription.unsubscribe())


def test_a_read_waits_for_the_first_message_and_returns_what_is_available(stream, source):
    reading = source()
    began = time.monotonic()
    assert read(reading, 10, 0.3) == []
    assert time.monotonic() - began >= 0.3

    stream.fill([b"1", b"2"])
    began = time.monotonic()
    assert read(reading, 10, 30)
    assert time.monotonic() - began < 10


def test_large_messages_arrive_within_the_memory_limit(stream, source):
    stream.fill([b"x" * 1_000_000 for _ in range(12)])
    # An answer has at least twice the largest message.
    reading = source(bounds={"most_bytes": 4_000_000, "answer_bytes": 1})
    found, in_flight = [], read_all(reading, 4)
    while some := read(reading, 500, 0.2):
        in_flight += some
    assert len(in_flight) <= 6
    while len(found) < 12:
        reading.ack([one.offset for one in in_flight])
        found += in_flight
        in_flight = read(reading, 500, 0.2)

    assert {int(one.offset) for one in found} == set(range(1, 13))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("all", b"0"),
        ("last", b"4"),
        ("by_start_sequence 3", b"2"),
        ("by_start_time 0", b"0"),
        ("last_per_subject", b"4"),
        ("new", None),
    ],
)
def test_a_new_consumer_starts_where_the_policy_says(stream, source, start, first):
    stream.fill([b"%d" % n for n in range(5)])

    found = read(source(start=start), 1, 0.2)

    assert [one.value for one in found] == ([] if first is None else [first])
    # Another process with the same settings accepts the consumer.
    source(start=start)


def test_only_the_requested_subjects_are_read(stream, source):
    base = stream.subject.removesuffix("x")
    with Publisher(stream.outside.url) as publisher:
        publisher.publish_many([(f"{base}{name}", name.encode()) for name in "abc"])

    found = read_all(source(subjects=(f"{base}c", f"{base}a")), 2)

    assert [one.value for one in found] == [b"a", b"c"]


def test_the_request_limits_of_a_consumer_are_respected(stream, source):
    stream.fill([b"%d" % n for n in range(40)])
    stream.consumer(max_batch=7, max_expires=100_000_000, max_bytes=1_000)

    found = read_all(source(), 40)

    assert {one.value for one in found} == {b"%d" % n for n in range(40)}


def test_a_message_over_the_byte_limit_of_the_consumer_is_reported(stream, source):
    stream.fill([b"x" * 2_000])
    stream.consumer(max_bytes=1_000)
    reading = source()

    with pytest.raises(SetupError, match="409 Message Size Exceeds MaxBytes"):
        read(reading, 10, 0.5)


def test_settings_that_are_left_out_follow_the_existing_consumer(stream, source):
    stream.fill([b"%d" % n for n in range(5)])
    stream.consumer(deliver_policy="by_start_sequence", opt_start_seq=4)

    assert [one.value for one in read_all(source(), 2)] == [b"3", b"4"]


# --- acks and nacks -------------------------------------------------------------------------------


def test_acks_are_confirmed_when_the_source_has_nothing_in_flight(stream, source):
    stream.fill([b"%d" % n for n in range(2_000)])
    reading = source()
    found = read_all(reading, 2_000)
    assert stream.info()["num_ack_pending"] == 2_000

    reading.ack([one.offset for one in found])
    reading.ack([one.offset for one in found[:10]])  # before the server has confirmed the first

    until(lambda: reading.exhausted)
    info = stream.info()
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 2_000)
    reading.ack([one.offset for one in found[:10]])  # repeating it changes nothing


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_a_nack_reaches_the_server_with_exactly_its_delay(stream, source):
    stream.fill([b"1"])
    reading = source()
    (message,) = read_all(reading, 1)
    with stream.advisories("MSG_NAKED") as naked:
        asked = time.time()
        nack(reading, message, delay="700ms", max_deliveries=3, reason="not yet")
        info = stream.info()
        assert (info["num_ack_pending"], info["num_redelivered"]) == (1, 0)

        (again,) = read_all(reading, 1)
        waited = time.time() - asked

    assert 0.7 <= waited < 1.5
    assert again == message
    assert stream.info()["num_redelivered"] == 1
    assert [(one["stream_seq"], one["deliveries"]) for one in naked] == [(1, 1)]


def test_a_message_nacked_without_a_delay_is_redelivered_at_once(stream, source):
    stream.fill([b"1", b"2"])
    reading = source()
    (message,) = read(reading, 1, 1.0)

    nack(reading, message)

    assert {one.value for one in read_all(reading, 2, limit=1)} == {b"1", b"2"}


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_messages_waiting_for_a_delay_do_not_block_others(stream, source):
    stream.fill([b"%d" % n for n in range(3_000)])
    reading = source()
    parked = read_all(reading, 2_500)

    reading.nack([NackOffset(one.offset, NackOptions("1h")) for one in parked])

    left = 3_000 - len(parked)
    assert len(read_all(reading, left)) == left
    assert stream.info()["config"]["max_ack_pending"] == -1


def test_a_consumer_with_a_max_ack_pending_is_used_and_reported(stream, source, capsys):
    stream.consumer(max_ack_pending=10)
    source()
    assert "max_ack_pending 10" in capsys.readouterr().out


# --- in flight ------------------------------------------------------------------------------------


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_messages_in_flight_are_kept_longer_than_the_ack_wait(stream, source):
    stream.fill([b"%d" % n for n in range(500)])
    first, second = source(ack_wait=0.8), source(ack_wait=0.8)
    held = read_all(first, 500)

    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        assert read(second, 500, 0.2) == []
    assert read(first, 500, 0.1) == []

    first.ack([one.offset for one in held])
    until(lambda: first.exhausted)
    info = stream.info()
    assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 0)
    assert info["delivered"]["consumer_seq"] == 500


def test_messages_in_flight_at_a_close_are_redelivered_at_once_to_another_process(stream, source):
    stream.fill([b"1", b"2", b"3"])
    first = source(ack_wait=60.0)
    found = read_all(first, 3)
    first.ack([found[0].offset])

    first.close()

    second = source()
    assert {one.value for one in read_all(second, 2)} == {b"2", b"3"}


def test_messages_of_a_dead_process_are_redelivered_after_the_ack_wait(stream, source):
    stream.fill([b"1"])
    first, second = source(ack_wait=1.0), source(ack_wait=1.0)
    (message,) = read_all(first, 1)
    first._link.close()  # as when it is killed: the server is not notified

    assert read_all(second, 1) == [message]


def test_a_message_redelivered_while_in_flight_is_not_read_twice(stream, source):
    stream.fill([b"1"])
    reading = source(ack_wait=0.5)
    (message,) = read_all(reading, 1)
    reading._link.run(_cancel(reading._tasks[1]))  # as in a process that was halted

    until(lambda: stream.info()["num_redelivered"] == 1 or read(reading, 1, 0.1))
    assert read(reading, 10, 0.2) == []
    reading.ack([message.offset])
    until(lambda: stream.info()["num_ack_pending"] == 0)


async def _cancel(task):
    task.cancel()


# --- the end --------------------------------------------------------------------------------------


def test_a_source_is_exhausted_when_everything_is_acknowledged(stream, source):
    stream.fill([b"1", b"2"])
    first, second = source(), source()
    assert not first.exhausted
    assert first.pending() == 2
    one, two = read_all(first, 2)
    assert first.pending() == 0
    assert not first.exhausted
    assert not second.exhausted  # what another process has in flight may come to this one

    first.ack([one.offset])
    nack(first, two, delay=100)
    assert not first.exhausted
    first.ack([read_all(first, 1)[0].offset])

    until(lambda: first.exhausted)
    assert second.exhausted
    stream.fill([b"3"])
    assert not first.exhausted


# --- invalid consumers and settings ---------------------------------------------------------------


@pytest.mark.guarantee("jetstream-source-settles-natively")
@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"ack_policy": "none"}, "has ack policy none; it has to be explicit."),
        ({"ack_policy": "all"}, "has ack policy all; it has to be explicit."),
        ({"deliver_subject": "d"}, "pushes its messages; it has to be a pull consumer."),
        ({"max_deliver": 5}, "stops redelivering after 5 deliveries and loses messages."),
        (
            {"backoff": [1_000_000_000], "max_deliver": -1},
            "has a backoff, which changes the delays of nacks.",
        ),
    ],
)
def test_a_consumer_that_would_lose_messages_is_rejected(stream, source, config, problem):
    stream.consumer(**config)
    with pytest.raises(SetupError) as raised:
        source()
    assert raised.value.what == f"Consumer c of stream {stream.name} {problem}"
    assert "Name another consumer" in raised.value.next_step


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"start": "new"}, "has deliver_policy all, where the spec says new."),
        ({"subjects": ("a.b",)}, "has filter_subjects none, where the spec says a.b."),
        ({"ack_wait": 5.0}, "has ack_wait 30 s, where the spec says 5 s."),
    ],
)
def test_a_consumer_that_differs_from_the_spec_is_rejected(stream, source, wanted, problem):
    source()
    with pytest.raises(SetupError) as raised:
        source(**wanted)
    assert raised.value.what == f"Consumer c of stream {stream.name} {problem}"


def test_a_missing_stream_is_reported(outside):
    settings = JetStreamSettings(outside.server, Durable("MISSING", "c"))
    with pytest.raises(SetupError, match=r"There is no stream MISSING\. Create it\."):
        JetStreamSource(settings).open()


def test_a_deleted_consumer_is_reported_and_then_created_again(stream, source):
    stream.fill([b"1"])
    reading = source()
    (message,) = read_all(reading, 1)
    stream.outside.api(f"CONSUMER.DELETE.{stream.name}.c")
    with pytest.raises(SetupError, match=f"Consumer c of stream {stream.name} is gone"):
        until(lambda: read(reading, 10, 0.2))

    assert read_all(reading, 1) == [message]  # from the recreated consumer
    reading.ack([message.offset])
    until(lambda: reading.exhausted)


def test_an_unreachable_server_is_reported_with_what_to_correct():
    section = spec.JetStreamSourceSpec(url="nats://127.0.0.1:1", stream="S")
    (settings,) = section.plan("p", "in").code.args
    with pytest.raises(SetupError) as raised:
        JetStreamSource(settings).open()
    assert "No NATS server answers at nats://127.0.0.1:1" in raised.value.what
    assert raised.value.next_step == (
        "Check that it is up, and that url, auth and tls of the jetstream source are right."
    )


# --- logins ---------------------------------------------------------------------------------------


def test_login_and_certificates_of_a_spec_are_used(tmp_path, monkeypatch, authority: Authority):
    import nkeys

    key = Nkey(nkeys.PREFIX_BYTE_USER)
    tls = authority.tls_block(tmp_path / "tls", "localhost", more="verify: true")
    users = f"authorization {{ users: [{{ nkey: {key.public} }}] }}\n"
    cert, private = authority.issue("me").write(tmp_path / "mine", "me")
    monkeypatch.setenv("THE_KEY", key.seed)
    with nats_server(tmp_path / "nats", users + tls) as port:
        section = spec.JetStreamSourceSpec.model_validate(
            {
                "url": f"nats://localhost:{port}",
                "stream": "S",
                "auth": {"nkey": {"env": "THE_KEY"}},
                "tls": {
                    "caCertSecret": {"file": str(tmp_path / "tls" / "ca.pem")},
                    "certSecret": {"file": str(cert)},
                    "keySecret": {"file": str(private)},
                },
            }
        )
        (settings,) = section.plan("p", "in").code.args
        assert key.seed not in repr(settings)
        with pytest.raises(SetupError, match="There is no stream S"):
            JetStreamSource(settings).open()


def test_a_missing_permission_is_reported(tmp_path):
    users = """
    authorization { users: [
      { user: boss, password: b }
      { user: me, password: m, permissions: {
        publish: ["$JS.API.CONSUMER.INFO.S.c", "$JS.API.CONSUMER.MSG.NEXT.S.c"]
        subscribe: ["_INBOX.>"] } }
    ] }
    """
    with nats_server(tmp_path / "nats", users) as port:
        boss = Link(Addresses.of(f"nats://boss:b@127.0.0.1:{port}"))
        boss.run(api.call(boss.client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}))
        config = {"durable_name": "c", "ack_policy": "explicit"}
        body = {"stream_name": "S", "config": config}
        boss.run(api.call(boss.client, "CONSUMER.CREATE.S.c", body))
        boss.run(publish(boss.client, "s", b"1"))
        boss.close()
        mine = Addresses.of(f"nats://me:m@127.0.0.1:{port}")
        source = JetStreamSource(JetStreamSettings(mine, Durable("S", "c")))
        source.open()
        (message,) = read(source, 10, 1.0)
        with pytest.raises(SetupError) as raised:
            until(lambda: source.ack([message.offset]))
        source.close()
    assert "does not let this login publish to $JS.ACK.S.c." in raised.value.what
    assert "EBBFLOW" not in str(raised.value)
    assert "ebbflow permissions" not in str(raised.value)


def test_a_login_that_is_withdrawn_and_restored_works_again(tmp_path):
    allowed = "authorization { users: [{ user: me, password: m }, { user: a, password: b }] }"
    withdrawn = "authorization { users: [{ user: a, password: b }] }"
    with nats_server(tmp_path, allowed) as port:
        mine = Addresses.of(f"nats://me:m@127.0.0.1:{port}")
        link = Link(mine)
        link.run(api.call(link.client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}))
        link.run(publish(link.client, "s", b"1"))
        link.close()
        source = JetStreamSource(JetStreamSettings(mine, Durable("S", "c")))
        source.open()
        (message,) = read(source, 10, 1.0)
        reload(tmp_path, withdrawn)
        with pytest.raises(SetupError, match="refused the login"):
            until(lambda: read(source, 10, 0.1))
        reload(tmp_path, allowed)
        source.ack([message.offset])
        until(lambda: source.exhausted)
        source.close()
