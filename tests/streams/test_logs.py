"""The logs of a pipeline on a real server: published by tasks, stored, read and followed."""

from __future__ import annotations

import queue
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from ebbflow.accounts.events import Events
from ebbflow.nats.publish import Tally
from ebbflow.streams import catalogue
from ebbflow.streams.logs import LogEntry, follow_logs, read_logs
from ebbflow.usercode.printing import Printed


@pytest.fixture
def log(link, names, ensure):
    """Publishes what a vertex prints, as its task does."""
    ensure(catalogue.logs_config(names))

    def log(vertex: str, printed: Printed, partition: int = 0) -> None:
        Events(link, names, vertex, partition, Tally()).log(printed)
        link.flush()

    return log


def texts(entries) -> list[str]:
    return [entry.printed.text for entry in entries]


def test_the_newest_entries_of_a_vertex_are_read_with_all_their_fields(link, names, log):
    for number in range(5):
        log("m", Printed(f"{number}", "log", "warning", "café"), partition=1)
    log("other", Printed("no"))
    page = link.run(read_logs(link.client, names, "m", 3), timeout=120)

    assert texts(page.entries) == ["2", "3", "4"]
    assert all(one.at <= next_one.at for one, next_one in pairwise(page.entries))
    last = page.entries[-1]
    assert (last.vertex, last.partition) == ("m", 1)
    assert last.printed == Printed("4", "log", "warning", "café")
    assert page.last == 6


def test_an_entry_names_the_trace_that_it_belongs_to():
    printed = Printed("4", "log", "warning", "shop")
    entry = LogEntry(datetime(2026, 11, 16, tzinfo=UTC), "m", 1, printed, ("a" * 32, "b" * 16))

    assert LogEntry.read(entry.headers(), b"4") == entry
    assert entry.as_dict()["trace_id"] == "a" * 32
    assert entry.as_dict()["span_id"] == "b" * 16
    assert "trace_id" not in replace(entry, trace=None).as_dict()


def test_messages_of_a_log_sink_are_not_stored(link, names, log):
    log("out", Printed("(out) id=1", "message"))
    assert link.run(read_logs(link.client, names, "out", 3), timeout=120).entries == ()


def test_a_pipeline_that_never_stored_logs_has_none(link, names):
    assert link.run(read_logs(link.client, names, "m", 3), timeout=120).entries == ()


def test_a_follower_receives_new_entries(link, names, log):
    log("m", Printed("before"))
    entries: queue.Queue[LogEntry] = queue.Queue()
    follower = link.run(_open(link, names, entries), timeout=120)
    log("m", Printed("two\nlines", "error"))

    assert entries.get(timeout=120).with_vertex() == "(m) two\n(m) lines"
    link.run(follower.close(), timeout=120)


async def _open(link, names, entries):
    def take(some):
        for entry in some:
            entries.put(entry)

    return await follow_logs(link.client, names, "m", 1, take, print)
