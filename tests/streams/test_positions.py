"""Positions: one owner at a time, the one that claimed last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbflow.domain.errors import Fenced
from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import Mark, Span
from ebbflow.streams import catalogue
from ebbflow.streams.positions import PositionStore, read_positions


@pytest.fixture
def store(link, names, ensure):
    ensure(catalogue.positions_config(names))
    return lambda: PositionStore(link.client, names, "map", 0)


def test_the_next_owner_reads_the_stored_position(link, store):
    first = store()
    position = link.run(first.claim())
    settled = position.settled(Span(Mark(7, 3), Mark(2)), Counts(read=10, done=10))
    link.run(first.write(settled))

    taken = link.run(store().claim())

    assert (taken.done, taken.counts, taken.lineage) == (
        settled.done,
        settled.counts,
        settled.lineage,
    )
    assert taken.epoch == settled.epoch + 1


def test_a_task_that_was_replaced_can_no_longer_write(link, store):
    old = store()
    position = link.run(old.claim())
    link.run(store().claim())

    with pytest.raises(Fenced, match="another task now owns partition 0 of map"):
        link.run(old.write(position.intending(Span(Mark(1)))))


def test_a_write_that_finds_its_own_first_copy_has_succeeded(link, store):
    owner = store()
    position = link.run(owner.claim())
    revision = owner._record.revision
    changed = replace(position, exhausted=True)
    link.run(owner.write(changed))
    owner._record.revision = revision  # as if the confirmation of the first copy had been lost

    link.run(owner.write(changed))
    link.run(owner.write(position))


def test_all_positions_of_a_pipeline_are_read_at_once(link, names, ensure):
    ensure(catalogue.positions_config(names))
    for vertex, partition in (("a", 0), ("a", 1), ("b-c", 0)):
        link.run(PositionStore(link.client, names, vertex, partition).claim())

    assert set(link.run(read_positions(link.client, names))) == {("a", 0), ("a", 1), ("b-c", 0)}
