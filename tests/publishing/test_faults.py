"""Servers that hang, crash and restart; callers that give up: no duplicates, and no call hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebbflow.domain.errors import (
    NoStreamResponse,
    PermanentPublishError,
    PublishError,
    PublishTimeout,
    SetupError,
)
from ebbflow.nats import api
from ebbflow.nats.embedded import EmbeddedServer, StateFolder
from ebbflow.nats.locate import open_link
from ebbflow.nats.publish import Sending
from ebbflow.publishing import Ack, AsyncPublisher, Outgoing, Publisher
from ebbflow.streams import provision
from tests.nats.securing import address
from tests.processes import frozen
from tests.waiting import let_time_pass, until

PATIENT = {"retry_attempts": -1, "retry_wait": 0.05, "ack_wait": 30}


class Fragile:
    """A server of the test's own, with a stream on ``s``."""

    def __init__(self, folder):
        self.process = EmbeddedServer(folder)
        self.server = self.process.start()
        self.url = address(self.server)
        config = {"name": "s", "subjects": ["s"], "storage": "file"}
        with open_link(self.server) as link:
            link.run(provision.ensure(link.client, config))

    def stored(self):
        with open_link(self.server) as link:
            return link.run(api.read_state(link.client, "s")).messages

    def publish_while_it_hangs(self, publisher, **options):
        with ThreadPoolExecutor(1) as pool:
            with frozen(self.process.pid):
                call = pool.submit(publisher.publish, "s", b"x", **options)
                let_time_pass(0.5)
                assert not call.done()
            return call.result(120)


@pytest.fixture
def fragile(tmp_path):
    folder = StateFolder(tmp_path)
    folder.acquire()
    fragile = Fragile(folder)
    yield fragile
    fragile.process.stop()
    folder.release()


def test_a_message_sent_again_to_a_server_that_hung_is_stored_once(fragile):
    with Publisher(fragile.url, attempt_timeout="0.1s", **PATIENT) as publisher:
        ack = fragile.publish_while_it_hangs(publisher)

        assert (ack.stream, ack.seq) == ("s", 1)
        assert ack.attempts >= 4
        assert publisher.publish("s", b"y").seq == 2
    assert fragile.stored() == 2


def test_a_refusal_after_silence_says_that_the_message_may_be_stored(fragile):
    """The server checks what is expected before it checks the id."""
    headers = {"Nats-Expected-Last-Sequence": "0"}
    with (
        Publisher(fragile.url, attempt_timeout="0.1s", **PATIENT) as publisher,
        pytest.raises(PermanentPublishError) as refused,
    ):
        fragile.publish_while_it_hangs(publisher, headers=headers)

    silent = refused.value.attempts - 1
    assert refused.value.code == 10071
    assert refused.value.detail == (
        f"wrong last sequence: 1; {silent} got no answer, so it may be stored all the same"
    )
    assert fragile.stored() == 1


def test_a_server_killed_while_many_messages_are_published_stores_each_once(fragile):
    def messages():
        for n in range(3_000):
            if n in (1_000, 2_000):
                restarts = fragile.process.restarts
                os.kill(fragile.process.pid, signal.SIGKILL)
                until(lambda seen=restarts: fragile.process.restarts > seen)
            yield Outgoing("s", b"%d" % n)

    with Publisher(fragile.url, attempt_timeout="0.3s", **PATIENT) as publisher:
        acks = publisher.publish_many(messages(), window=100)

    assert sorted(ack.seq for ack in acks) == list(range(1, 3_001))
    assert fragile.stored() == 3_000
    assert fragile.process.restarts >= 2


def test_every_call_ends_when_the_server_stops(fragile):
    async def send():
        async with AsyncPublisher(fragile.url, ack_wait=1) as publisher:
            calls = [asyncio.create_task(publisher.publish("s", b"x")) for _ in range(100)]
            await asyncio.sleep(0)
            await asyncio.to_thread(fragile.process.stop)
            done, waiting = await asyncio.wait(calls, timeout=30)
            assert waiting == set()
            return await asyncio.gather(*done, return_exceptions=True)

    results = asyncio.run(send())
    assert {type(result) for result in results} <= {Ack, PublishTimeout, NoStreamResponse}


def test_a_call_without_a_connection_waits_until_its_deadline(fragile):
    with Publisher(fragile.url) as publisher:
        fragile.process.stop()
        until(lambda: not publisher._inner._client.is_connected)
        began = time.monotonic()
        with pytest.raises(PublishTimeout) as failed:
            publisher.publish("s", b"x", ack_wait=1.2)  # longer than the client tries at first

        assert 1.2 <= time.monotonic() - began < 5
        assert (failed.value.attempts, failed.value.detail) == (0, "there was no connection")


def test_a_call_begun_without_a_connection_succeeds_once_there_is_one(fragile):
    with Publisher(fragile.url, **PATIENT) as publisher:
        os.kill(fragile.process.pid, signal.SIGKILL)
        until(lambda: not publisher._inner._client.is_connected)

        assert publisher.publish("s", b"x").seq == 1


def test_a_task_cancelled_during_the_wait_ends_at_once(url, subject):
    async def send():
        async with AsyncPublisher(url, retry_wait=20, ack_wait=30) as publisher:
            call = asyncio.create_task(publisher.publish(subject, b"x"))
            many = asyncio.create_task(publisher.publish_many([(subject, b"x")]))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            for task in (call, many):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert publisher._waiting == set()
            return time.monotonic() - began

    assert asyncio.run(send()) < 15


@pytest.mark.parametrize("many", [False, True])
def test_ctrl_c_during_the_wait_ends_the_call_at_once(publisher, subject, many):
    options = {"retry_wait": 20, "ack_wait": 30}
    call = {
        False: lambda: publisher.publish(subject, b"x", **options),
        True: lambda: publisher.publish_many([(subject, b"x")] * 10, window=2, **options),
    }
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call[many]()

    assert time.monotonic() - began < 10
    until(lambda: publisher._inner._waiting == set())


@pytest.mark.parametrize("many", [False, True])
def test_closing_ends_the_calls_of_other_threads(url, subject, many, monkeypatch):
    options = {"retry_wait": 20, "ack_wait": 30}
    pausing, pause = threading.Event(), Sending._pause

    async def note_pause(sending, *why):
        pausing.set()
        await pause(sending, *why)

    monkeypatch.setattr(Sending, "_pause", note_pause)
    with ThreadPoolExecutor(1) as pool:
        with Publisher(url) as publisher:
            if many:
                call = pool.submit(publisher.publish_many, [(subject, b"x")], **options)
            else:
                call = pool.submit(publisher.publish, subject, b"x", **options)
            assert pausing.wait(120)
        with pytest.raises(PublishError, match=r"not confirmed after 1 attempt .*was closed"):
            call.result(120)


def test_a_connection_closed_by_other_code_is_reported(url, subject):
    async def send():
        async with AsyncPublisher(url) as publisher:
            await publisher._client.close()
            await publisher.publish(subject, b"x")

    with pytest.raises(PublishError, match=r"not confirmed after 1 attempt .*connection is closed"):
        asyncio.run(send())


def test_a_publisher_works_only_while_it_is_open_and_in_its_own_process(url, subject, stream):
    stream()
    publisher = Publisher(url)
    text = r"the publisher is not open; use it inside: with Publisher\(...\) as publisher"
    with pytest.raises(RuntimeError, match=text):
        publisher.publish(subject, b"x")
    with publisher:
        assert publisher.publish(subject, b"x").seq == 1
        child = os.fork()
        if child == 0:
            try:
                publisher.publish(subject, b"x")
            except RuntimeError as error:
                os._exit(7 if "opened in another process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(RuntimeError, match=text):
        publisher.publish_many([(subject, b"x")])
    with publisher:
        assert publisher.publish(subject, b"x").seq == 2
    with pytest.raises(RuntimeError, match=r"inside: async with AsyncPublisher\(...\)"):
        asyncio.run(AsyncPublisher(url).publish(subject, b"x"))


def test_threads_share_a_publisher(publisher, subject, stream):
    stream()
    with ThreadPoolExecutor(8) as pool:
        acks = list(pool.map(lambda _: publisher.publish(subject, b"x"), range(200)))

    assert sorted(ack.seq for ack in acks) == list(range(1, 201))


def test_headers_arrive_and_the_callers_mapping_stays_unchanged(publisher, subject, stream, link):
    stream()
    headers = {"colour": "blue"}
    publisher.publish(subject, b"x", headers=headers, msg_id="first")
    publisher.publish(subject, b"y", headers=headers)

    assert headers == {"colour": "blue"}
    stored = link.run(link.client.jetstream().get_msg(stream.name, 1))
    assert stored.headers == {"colour": "blue", "Nats-Msg-Id": "first"}


def test_the_first_server_of_the_list_that_answers_is_used(url, subject, stream):
    stream()
    with Publisher(["nats://127.0.0.1:1", url]) as publisher:
        assert publisher.publish(subject, b"x").seq == 1


def test_an_unreachable_server_and_a_wrong_login_are_reported_without_the_password(link):
    host = str(link.server).removeprefix("nats://")
    for url, expected in [
        (
            "nats://me:secret@127.0.0.1:1",
            "No NATS server answers at nats://127.0.0.1:1: .* Start it, or correct the URL.",
        ),
        (
            f"nats://me:secret@{host}",
            rf"NATS at nats://{host} (refused the login|ended the connection): .*"
            r"\. It was given a user and password: check that\.",
        ),
    ]:
        with pytest.raises(SetupError, match=expected) as failed, Publisher(url):
            pass
        assert "secret" not in str(failed.value)
