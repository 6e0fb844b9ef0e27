"""A message without an answer is looked up before it is sent again, as ids are forgotten.

A line between the task and the server loses the answers, and the server is killed.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.domain.outcome import Counts
from ebbflow.engine.publications import MOVED_FROM, Publication, Stage
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.embedded import EmbeddedServer, StateFolder
from ebbflow.nats.locate import open_link
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue, provision, publish_settlement
from tests.nats.proxy import Line
from tests.waiting import let_time_pass, until

FRAMES = 40
QUICK = replace(BUFFER, attempt_timeout=0.5)


def redeliveries(delay_ms: int | None) -> Settlement:
    due = None if delay_ms is None else int(time.time() * 1000) + delay_ms
    again = [
        Publication(Stage.REDELIVER, "v", 0, f"life:v:0:0-9:0-0:{n}", b"%d" % n, due=due)
        for n in range(FRAMES)
    ]
    return Settlement(again, Counts(), {})


def letters() -> Settlement:
    ids = [f"life:v:0:0-9:0-0:{n}" for n in range(FRAMES)]
    dead = [Publication(Stage.DEAD_LETTER, "v", 0, one, one.encode()) for one in ids]
    return Settlement(dead, Counts(), {})


class Outage:
    """A server that can be killed, a task's link to it over a line, and one of the test's own."""

    def __init__(self, process, server, line, direct, link, names):
        self.line, self._link, self._names = line, link, names
        self._process, self._server, self._direct = process, server, direct
        self.tally = Tally()

    def ensure(self, window: float = 120):
        configs = (
            catalogue.redelivery_config(self._names, "v", 0),
            catalogue.dead_letter_config(self._names),
        )
        for config in configs:
            changed = config | {"duplicate_window": int(window * 1e9)}
            self._direct.run(provision.ensure(self._direct.client, changed))

    def publish(self, settlement):
        client, names = self._link.client, self._names
        return self._link.submit(
            publish_settlement.publish_settlement(client, names, settlement, QUICK, self.tally)
        )

    def again(self, subject=">"):
        stream = self._names.redelivery("v", 0)
        return self._direct.run(read_subject(self._direct.client, stream, subject))

    def moved(self):
        return [one for one in self.again() if MOVED_FROM in one.headers]

    def dead(self):
        stream = self._names.dead_letters
        return self._direct.run(read_subject(self._direct.client, stream, ">"))

    def kill(self):
        before = self._process.restarts
        os.kill(self._process.pid, signal.SIGKILL)
        until(lambda: self._process.restarts > before and self._direct.client.is_connected)


@pytest.fixture
def outage(tmp_path, names):
    folder = StateFolder(tmp_path)
    folder.acquire()
    process = EmbeddedServer(folder)
    try:
        server = process.start()
        with open_link(server) as direct:
            line = Line(urlsplit(server.urls[0]).port)
            listening = line.listen()
            port = direct.run(listening.__aenter__())
            with open_link(replace(server, urls=(f"nats://127.0.0.1:{port}",))) as link:
                yield Outage(process, server, line, direct, link, names)
            direct.run(listening.__aexit__(None, None, None))
    finally:
        process.stop()
        folder.release()


@pytest.mark.guarantee("at-least-once")
def test_a_redelivery_that_was_due_before_the_server_was_killed_is_stored_once(outage):
    """The server moved it without its id, so it no longer knows the id after the restart."""
    outage.ensure()
    outage.line.deaf = True
    publishing = outage.publish(redeliveries(50))
    until(lambda: len(outage.moved()) == FRAMES)
    assert not publishing.done()
    outage.kill()
    outage.line.deaf = False

    assert publishing.result(120) == []
    let_time_pass(1.5)  # anything that was parked again has long been due
    assert sorted(one.payload for one in outage.again()) == sorted(b"%d" % n for n in range(FRAMES))
    assert outage.tally.confirmed == FRAMES


@pytest.mark.guarantee("nothing-is-lost")
@pytest.mark.parametrize("delay", [None, 50, 60_000], ids=["at once", "soon", "later"])
def test_a_redelivery_that_did_not_arrive_before_the_server_was_killed_is_sent_again(outage, delay):
    outage.ensure()
    outage.line.open.clear()
    publishing = outage.publish(redeliveries(delay))
    until(lambda: outage.tally.attempts >= FRAMES)
    assert outage.again() == []
    outage.kill()
    outage.line.open.set()

    assert publishing.result(120) == []
    until(lambda: delay != 50 or len(outage.moved()) == FRAMES)
    assert len(outage.again()) == FRAMES


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("delay", [None, 50, 60_000], ids=["at once", "come due", "parked"])
def test_redeliveries_are_stored_once_after_an_outage_longer_than_ids_are_known(outage, delay):
    outage.ensure(window=0.1)
    outage.line.deaf = True
    publishing = outage.publish(redeliveries(delay))
    until(lambda: len(outage.moved() if delay == 50 else outage.again()) == FRAMES)
    let_time_pass(1)
    outage.line.deaf = False

    assert publishing.result(120) == []
    let_time_pass(1)
    assert len(outage.again()) == FRAMES
    assert outage.tally.attempts == FRAMES, "none was sent again"


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("count", [1, FRAMES])
def test_dead_letters_are_stored_once_after_an_outage_longer_than_ids_are_known(
    outage, count, monkeypatch
):
    monkeypatch.setattr(publish_settlement, "_DEAD_LETTERS_ARE_KNOWN", 0)
    outage.ensure(window=0.1)
    outage.line.deaf = True
    whole = letters()
    publishing = outage.publish(replace(whole, publications=whole.publications[:count]))
    until(lambda: len(outage.dead()) == count)
    let_time_pass(1)
    outage.line.deaf = False

    assert publishing.result(120) == []
    assert len(outage.dead()) == count


@pytest.mark.guarantee("nothing-is-lost")
def test_a_failed_lookup_is_repeated_and_no_message_is_assumed_to_be_stored(outage, monkeypatch):
    lookups = []
    look = publish_settlement._read_headers_after

    async def fail_at_first(client, stream, after):
        lookups.append(stream)
        if len(lookups) <= 3:
            raise JetStreamUnavailable("CONSUMER.CREATE", 1, "no answer")
        return await look(client, stream, after)

    monkeypatch.setattr(publish_settlement, "_read_headers_after", fail_at_first)
    outage.ensure()
    outage.line.open.clear()
    publishing = outage.publish(redeliveries(60_000))
    until(lambda: outage.tally.attempts >= FRAMES)
    outage.kill()
    outage.line.open.set()

    assert publishing.result(120) == []
    assert len(outage.again()) == FRAMES
    assert 4 <= len(lookups) < FRAMES, "one lookup covers many"
