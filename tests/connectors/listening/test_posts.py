"""Posts that arrive together share a frame, and the same id is stored once whatever is killed."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.http.known_ids import RecentIds
from ebbflow.connectors.listening.posts import Envelope, rows_of_posts
from ebbflow.nats import api
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue, provision
from ebbflow.streams.feed import Buffers
from tests.connectors.http.posting import NDJSON, asked, in_background, posting
from tests.processes import frozen
from tests.waiting import until


def frames_of(source):
    stream, subject = source.names.buffer("in", 0), source.names.buffer_subject("in", 0)
    return source.link.run(read_subject(source.link.client, stream, subject))


@contextmanager
def halted(folder):
    """The NATS server of a state folder is up but does not answer."""
    with frozen(int((folder / "nats" / "pid").read_text())):
        yield


# --- frames -------------------------------------------------------------------------------------


def test_posts_that_arrive_together_share_a_frame_and_have_their_own_answers(link, tmp_path):
    with posting(link, tmp_path) as source:
        with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
            client.sendall(b"".join(request(f"m{n}", b"%d" % n) for n in range(50)))
            answers = read_answers(client, 50)

        assert [answer["id"] for answer in answers] == [f"m{n}" for n in range(50)]
        assert sorted(source.values(), key=int) == [b"%d" % n for n in range(50)]
        assert len(frames_of(source)) < 10


def request(message_id, body, head=b""):
    lines = b"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nx-numaflow-id: %b\r\n%b" % (
        message_id.encode(),
        head,
    )
    return lines + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def read_answers(client, count):
    """The bodies of that many answers, in the order in which they come."""
    stream = client.makefile("rb")
    bodies = []
    for _ in range(count):
        status = stream.readline()
        assert status == b"HTTP/1.1 200 OK\r\n"
        headers = http.client.parse_headers(stream)
        bodies.append(json.loads(stream.read(int(headers["content-length"]))))
    return bodies


def test_single_posts_and_batches_share_a_frame(link, tmp_path):
    with posting(link, tmp_path) as source:
        with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
            kind = b"Content-Type: %b\r\n" % NDJSON.encode()
            client.sendall(request("a", b"1") + request("b", b"2\n3", kind) + request("c", b"4"))
            answers = read_answers(client, 3)

        assert answers == [{"id": "a"}, {"id": "b", "messages": 2}, {"id": "c"}]
        assert sorted(row["id"] for row in source.rows()) == ["a", "b-0", "b-1", "c"]


def test_posts_too_large_for_one_frame_are_split_across_several(link, tmp_path):
    with posting(link, tmp_path) as source:
        with socket.create_connection(("127.0.0.1", source.port), timeout=120) as client:
            bodies = b"".join(request(f"m{n}", b"x" * 90_000) for n in range(20))
            thread, results = in_background(read_answers, client, 20)
            client.sendall(bodies)
            thread.join(120)

        assert [answer["id"] for answer in results[0]] == [f"m{n}" for n in range(20)]
        assert len(source.rows()) == 20
        assert all(len(frame.payload) < 400_000 for frame in frames_of(source))


def test_a_full_buffer_refuses_all_posts_of_a_frame_and_stores_them_later(link, tmp_path):
    with posting(link, tmp_path, max_frames=1) as source:
        assert source.post(b"x").status == 200
        with ThreadPoolExecutor(8) as pool:
            ids = [f"m{n}" for n in range(40)]
            refused = list(pool.map(lambda name: source.post(b"x", x_numaflow_id=name), ids))
            assert {answer.status for answer in refused} == {429}
            source.purge()
            until(lambda: source.post(b"x", x_numaflow_id="m0").status == 200)

        assert [row["id"] for row in source.rows()] == ["m0"]


# --- ids ----------------------------------------------------------------------------------------


@pytest.mark.guarantee("http-200-means-stored")
@pytest.mark.parametrize("purged", [False, True], ids=["waiting", "processed"])
def test_ids_of_a_run_killed_before_it_recorded_them_are_known(link, tmp_path, purged):
    with posting(link, tmp_path) as source:
        pipeline = source.names.pipeline
        known_ids = source.feed._store._known_ids
        link.run(known_ids.announce("f1", ["a", "b"]))
        link.run(known_ids.announce("f2", ["c"]))
        link.run(put(source, "f1", ["a", "b"]))  # and f2 was never stored
    if purged:
        source.purge()
    with posting(link, tmp_path, pipeline=pipeline) as source:
        answers = [source.post(b"x", x_numaflow_id=name) for name in "abc"]

        assert [answer.status for answer in answers] == [200, 200, 200]
        stored = ["c"] if purged else ["a", "b", "c"]
        assert [row["id"] for row in source.rows()] == stored


async def put(source, frame, ids):
    buffers = Buffers(source.link, source.names, "in", 1)
    head = [(b"host", b"x"), (b"content-length", b"1")]
    posts = [(Envelope([*head, (b"x-numaflow-id", name.encode())], 0), b"x") for name in ids]
    await buffers.put(rows_of_posts(posts), frame)


def test_asking_whether_a_frame_is_stored_stores_nothing(link, tmp_path):
    with posting(link, tmp_path, max_frames=1) as source:
        buffers = Buffers(link, source.names, "in", 1)
        assert not link.run(buffers.has_stored("f1"))
        assert frames_of(source) == []
        link.run(put(source, "f1", ["a"]))

        assert link.run(buffers.has_stored("f1"))  # though it is full now
        assert not link.run(buffers.has_stored("f2"))
        assert len(frames_of(source)) == 1
        source.purge()
        assert link.run(buffers.has_stored("f1"))


@pytest.mark.guarantee("http-200-means-stored")
def test_an_unconfirmed_post_is_stored_once_when_it_is_sent_again(tmp_path):
    with (
        start_embedded(tmp_path / "state") as server,
        open_link(server) as link,
        posting(link, tmp_path, ack_wait=0.3) as source,
    ):
        with halted(tmp_path / "state"), ThreadPoolExecutor(10) as pool:
            ids = [f"m{n}" for n in range(10)]
            unconfirmed = list(pool.map(lambda name: source.post(b"x", x_numaflow_id=name), ids))
            again = source.post(b"x", x_numaflow_id="m3")
        until(lambda: source.post(b"x", x_numaflow_id="m3").status == 200)
        for name in ids:
            assert source.post(b"x", x_numaflow_id=name).status == 200

        assert {answer.status for answer in [*unconfirmed, again]} == {503}
        assert again.reason == (
            "it is not certain whether it is stored: JetStream has not confirmed it within 0.3 s; "
            "send it again with the same id"
        )
        assert sorted(row["id"] for row in source.rows()) == ids


@pytest.mark.guarantee("http-200-means-stored")
def test_a_post_whose_id_could_not_be_recorded_is_not_stored_twice(link, tmp_path):
    with posting(link, tmp_path, ack_wait=0.3) as source:
        link.run(api.call(link.client, f"STREAM.DELETE.{source.names.seen}"))
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n: source.post(b"x", x_numaflow_id=f"m{n}"), range(4)))
        assert {answer.status for answer in answers} == {503}
        link.run(provision.ensure(link.client, catalogue.seen_config(source.names)))
        for n in range(4):
            until(lambda name=f"m{n}": source.post(b"x", x_numaflow_id=name).status == 200)

        assert sorted(row["id"] for row in source.rows()) == [f"m{n}" for n in range(4)]


def test_unconfirmed_posts_count_as_in_flight_until_their_outcome_is_known(tmp_path):
    with (
        start_embedded(tmp_path / "state") as server,
        open_link(server) as link,
        posting(link, tmp_path, ack_wait=0.2, in_flight=3) as source,
    ):
        with halted(tmp_path / "state"):
            unconfirmed = [source.post(b"x", x_numaflow_id=f"m{n}").status for n in range(3)]
            refused = source.post(b"x")
        until(lambda: source.post(b"x", x_numaflow_id="m4").status == 200)

        assert (unconfirmed, refused.status) == ([503, 503, 503], 429)
        assert refused.reason == "too many requests are in flight"


def test_recent_ids_are_forgotten_after_two_minutes_however_many_there_are(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ebbflow.connectors.http.known_ids.time.time", lambda: now[0])
    recent = RecentIds()
    for second in range(1_000):
        now[0] = float(second)
        recent.add([f"{second}-{n}" for n in range(10)], now[0])
        recent.add(["again"], now[0])

    assert "again" in recent
    assert "990-3" in recent
    assert "870-3" not in recent
    assert len(recent._times) <= 121 * 10 + 1


@pytest.mark.guarantee("http-200-means-stored")
def test_a_run_starts_whatever_the_age_of_the_ids_that_the_last_one_recorded(link, tmp_path):
    now = time.time()
    with posting(link, tmp_path) as source:
        pipeline = source.names.pipeline
        for age, name in ((300, "a"), (121, "b"), (60, "c")):
            entry = json.dumps({"at": now - age, "ids": [name]}).encode()
            link.run(link.client.publish(source.names.seen_subject("in"), entry))
        link.run(link.client.flush())
    with posting(link, tmp_path, pipeline=pipeline) as source:
        for name in "abc":
            assert source.post(b"x", x_numaflow_id=name).status == 200

        assert [row["id"] for row in source.rows()] == ["a", "b"]


@given(ages=st.lists(st.sampled_from([0, 30, 60, 121, 180, 300])))
def test_recent_ids_cover_two_minutes_whenever_they_are_added(ages):
    recent, now = RecentIds(), time.time()
    for age in sorted(ages, reverse=True):
        recent.add([f"a{age}"], now - age)

    for age in ages:
        assert (f"a{age}" in recent) == (age < 120)
    assert all(now - taken < 120 for taken in recent._times.values())


# --- waiting and disconnected clients -----------------------------------------------------------


def test_a_lone_post_does_not_wait_for_others(link, tmp_path):
    with posting(link, tmp_path) as source:
        connection = source.connect()
        times = []
        for n in range(30):
            began = time.monotonic()
            assert asked(connection, "POST", source.path, b"x", {"x-numaflow-id": f"m{n}"})
            times.append(time.monotonic() - began)

        assert sorted(times)[3] < 0.02
        assert len(frames_of(source)) == 30


def test_a_disconnected_client_no_longer_counts_as_in_flight(link, tmp_path):
    with posting(link, tmp_path, in_flight=5) as source:
        for n in range(20):
            with socket.create_connection(("127.0.0.1", source.port)) as client:
                client.sendall(request(f"m{n}", b"x" * 10)[: -5 if n % 2 else None])
        until(lambda: source.feed._admission._count == 0)
        until(lambda: source.post(b"x").status == 200)
