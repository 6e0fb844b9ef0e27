"""The disk of an embedded server: a full one is reported, and the server recovers with room."""

from __future__ import annotations

import asyncio
import os
import queue
from contextlib import suppress

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.disk import DiskWatch
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import BUFFER, Tally, publish
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names
from tests.nats.securing import nats_server
from tests.waiting import until

NAMES = Names("test")
MIB = 1024 * 1024


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_messages_refused_by_a_full_disk_are_stored_once_when_there_is_room(small_disk):
    reports: queue.Queue[str] = queue.Queue()

    async def publish_all(client):
        subject, data = NAMES.buffer_subject("v", 0), os.urandom(MIB)
        sent = (publish(client, subject, data, msg_id=str(n), retry=BUFFER) for n in range(40))
        return await asyncio.gather(*sent)

    with start_embedded(small_disk.folder, show=reports.put) as server, open_link(server) as link:
        link.run(provision.ensure(link.client, catalogue.buffer_config(NAMES, "v", 0, 1_000)))
        sending = link.submit(publish_all(link.client))
        text = reports.get(timeout=120)
        while " is full, with " not in text:
            text = reports.get(timeout=120)
        assert text.startswith(f"the disk of {small_disk.folder} is full, with ")
        assert not sending.done()

        small_disk.enlarge("200m")
        assert "NATS was restarted" in reports.get(timeout=120)
        acks = sending.result(120)
        state = link.run(api.read_state(link.client, NAMES.buffer("v", 0)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 41))
    assert state.messages == 40


def test_a_run_that_starts_on_a_full_disk_is_rejected(small_disk):
    state = small_disk.folder / "state"
    (state / "nats").mkdir(parents=True)
    with open(small_disk.folder / "other", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    expected = r"No space left on device\. Make room there"
    with pytest.raises(SetupError, match=expected), start_embedded(state):
        pass


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_publishes_are_retried_until_the_server_has_storage_and_its_error_is_quoted(tmp_path):
    tally = Tally()
    subject = NAMES.dead_letter_subject("v")

    async def publish_all(client):
        sent = (
            publish(client, subject, bytes(MIB // 2), msg_id=str(n), retry=BUFFER, tally=tally)
            for n in range(12)
        )
        return await asyncio.gather(*sent)

    store = f'jetstream {{ store_dir: "{tmp_path}", max_file_store: 4MB }}'
    with nats_server(tmp_path, store) as port, open_link(Addresses.of(f"127.0.0.1:{port}")) as link:
        link.run(provision.ensure(link.client, catalogue.dead_letter_config(NAMES)))
        with pytest.raises(SetupError, match="has no room to set aside for stream ebb_test_v_0"):
            link.run(provision.ensure(link.client, catalogue.buffer_config(NAMES, "v", 0, 9)))
        sending = link.submit(publish_all(link.client))
        until(lambda: tally.refused > 10)
        assert tally.refusal == "insufficient resources"
        assert not sending.done()
        link.run(api.purge_subject(link.client, NAMES.dead_letters, subject, tally.confirmed))
        acks = sending.result(120)
    assert sorted(ack.seq for ack in acks) == list(range(1, 13))
    assert tally.confirmed == 12


class Watched:
    """A disk whose free space the test sets, and a server that only writes complaints."""

    def __init__(self, folder) -> None:
        self.left, self.now, self.restarts = 100 * MIB, 0.0, 0
        self.reports: list[str] = []
        self._log = folder / "server.log"
        self._watch = DiskWatch(folder, self, self.reports.append, lambda _: self.left, self._clock)

    def _clock(self) -> float:
        return self.now

    def restart(self) -> None:
        self.restarts += 1

    def look(self, left: int, complaint: str = "") -> None:
        self.left = left
        self.now += 1
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(f"[INF] hello\n{complaint}\n")
        self._watch.look()


def test_each_state_of_the_disk_is_reported_once(tmp_path):
    disk = Watched(tmp_path)
    for left in (100, 10, 9, 0, 0, 20, 64, 64):
        disk.look(left * MIB)
    place = f"the disk of {tmp_path.parent}"
    assert disk.reports == [
        f"{place} has only 10.0 MiB left; when it is full, the pipeline waits",
        f"{place} is full, with 0 KiB left; nothing more can be stored, and the pipeline waits "
        "until there is room",
        f"{place} has room again: 64.0 MiB",
    ]
    assert disk.restarts == 0


def test_a_server_that_reports_a_full_disk_despite_room_is_not_restarted_endlessly(tmp_path):
    disk = Watched(tmp_path)
    for _ in range(60):
        disk.look(100 * MIB, "[ERR] write 1.blk: no space left on device")
    assert 3 <= disk.restarts <= 5


def test_a_log_after_a_rotation_is_read_from_its_beginning(tmp_path):
    disk = Watched(tmp_path)
    disk.look(100 * MIB)
    (tmp_path / "server.log").rename(tmp_path / "server.log.1")
    disk.look(100 * MIB, "disk quota exceeded")
    assert disk.restarts == 1
