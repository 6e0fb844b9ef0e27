"""A record with several writers: no write is lost without an error or a retry."""

from __future__ import annotations

import asyncio

import pytest

from ebbflow.domain.errors import PermanentPublishError
from ebbflow.nats import publish as publishing
from ebbflow.streams import catalogue
from ebbflow.streams.positions import Record


@pytest.fixture
def record(link, names, ensure):
    ensure(catalogue.positions_config(names))
    return lambda: Record(link.client, names.positions, "mine")


def test_of_two_writers_that_read_the_same_record_one_replaces_it(link, record):
    one, other = record(), record()
    assert link.run(one.read()) is link.run(other.read()) is None
    assert link.run(one.replace(b"1"))
    assert not link.run(other.replace(b"2"))
    assert link.run(other.read()) == b"1"
    assert link.run(other.replace(b"2"))
    assert other.revision > one.revision


def test_concurrent_updates_are_all_applied(link, record):
    async def add(text: str) -> None:
        await record().update(lambda stored: (stored or b"") + text.encode())

    async def add_all() -> None:
        await asyncio.gather(*map(add, "abcdefgh"))

    link.run(add_all(), timeout=120)
    assert sorted(link.run(record().read()).decode()) == sorted("abcdefgh")


def test_an_update_without_a_change_writes_nothing(link, record):
    one = record()
    link.run(one.replace(b"1"))
    before = one.revision
    assert link.run(one.update(lambda _: None)) == b"1"
    assert one.revision == before


def test_a_write_waits_for_one_that_is_in_process(link, record, monkeypatch):
    """On a cluster, the first copy of a write may still be on its way to a majority."""
    refusals = [10164, 10164]

    async def publish(client, subject, *args, **options):
        if refusals:
            raise PermanentPublishError(subject, 1, 0.0, "in process", refusals.pop())
        return await publishing.publish(client, subject, *args, **options)

    monkeypatch.setattr("ebbflow.streams.positions.publish", publish)
    one = record()
    assert link.run(one.replace(b"1"), timeout=120)
    assert link.run(record().read()) == b"1"
