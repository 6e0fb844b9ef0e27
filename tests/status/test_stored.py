"""The state of a pipeline, published and read on a real server, with and without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.domain.outcome import Counts
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.position import Span
from ebbflow.nats.link import Link
from ebbflow.nats.publish import publish
from ebbflow.status.backlog import LetterCauses
from ebbflow.status.model import ChunkTimes, ErrorGroup, PipelineStatus, VertexStatus
from ebbflow.status.stored import (
    StatusPublisher,
    follow_status,
    read_chunks,
    read_history,
    read_status,
)
from ebbflow.streams import catalogue
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from ebbflow.testing.background_run import until

NOW = datetime.now(UTC)
ERROR = ErrorGroup("KeyError", "'x'", "steps.py:6", 1, NOW, NOW, "in-3", "Traceback …")
VERTEX = VertexStatus("v", errors=(ERROR,), condition="busy", rate_in=5.0, failure="KeyError: 'x'")
STATUS = PipelineStatus("p", run="r", phase="running", vertices=(VERTEX,), ready=True)


class Reporter:
    """A run that reports its state."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self.status = replace(STATUS, pipeline=names.pipeline)
        self._publisher = StatusPublisher(link.client, names)

    def report(self, age: float = 0.0, **changes: Any) -> PipelineStatus:
        at = datetime.now(UTC) - timedelta(seconds=age)
        status = replace(self.status, at=at, **changes)
        self.link.run(self._publisher.publish_last(status))
        return status

    def sample(self, *pending: int) -> None:
        for number in pending:
            vertices = (replace(VERTEX, pending=number),)
            status = replace(self.status, at=datetime.now(UTC), vertices=vertices)
            self.link.run(self._publisher.publish_sample(status))
        self.link.flush()

    def report_chunks(self, *chunks: ChunkTimes) -> None:
        self.link.run(self._publisher.publish_chunks("v", chunks))
        self.link.flush()

    def settle(self, read: int) -> None:
        """Writes a position, as a task would."""
        store = PositionStore(self.link.client, self.names, "v", 0)
        position = self.link.run(store.claim())
        self.link.run(store.write(position.settled(Span(), Counts(read=read, done=read))))

    def store_dead_letters(self, *errors: str) -> None:
        """Stores dead letters."""
        for error in errors:
            kind = error.partition(":")[0]
            letter = Letter("a", "v", b"", kind, error, "trace", 1, None, NOW, None, [], {}, {})
            subject = self.names.dead_letter_subject("v")
            self.link.run(publish(self.link.client, subject, b"", letter.to_headers()))


@pytest.fixture
def reporter(link: Link, names: Names, ensure: Callable[[Any], None]) -> Reporter:
    ensure(catalogue.status_config(names))
    ensure(catalogue.positions_config(names))
    ensure(catalogue.dead_letter_config(names))
    ensure(catalogue.buffer_config(names, "v", 0, 100))
    ensure(catalogue.redelivery_config(names, "v", 0))
    return Reporter(link, names)


def test_a_published_state_is_read_back_unchanged(reporter: Reporter) -> None:
    reporter.report(ready=False)
    status = reporter.report()
    assert read_status(reporter.link, reporter.names) == status


def test_a_run_that_stops_reporting_is_lost(reporter: Reporter) -> None:
    reporter.report(age=6.0)
    reporter.settle(read=3)
    status = read_status(reporter.link, reporter.names)
    assert (status.answers, status.phase, status.ready) == (False, "running", False)
    assert (status["v"].condition, status["v"].totals.read) == ("ended", 3)
    assert status["v"].errors == (ERROR,)
    first = status.problems[0]
    assert (first.level, first.vertex) == ("error", None)
    assert "ebbflow run" in first.next_step


def test_an_ended_pipeline_shows_current_numbers(reporter: Reporter) -> None:
    reporter.report(age=3600.0, phase="ended", ended="drained")
    reporter.settle(read=3)
    reporter.store_dead_letters("KeyError: 'x'")
    status = read_status(reporter.link, reporter.names)
    assert (status.phase, status.ended, status.answers) == ("ended", "drained", True)
    assert (status["v"].dead_letters, status["v"].rate_in) == (1, 0.0)


def test_a_pipeline_of_an_earlier_version_is_recognised_by_its_positions(
    reporter: Reporter,
) -> None:
    reporter.settle(read=3)
    assert read_status(reporter.link, reporter.names)["v"].totals.read == 3


def test_a_pipeline_that_has_never_run_is_unknown(link: Link) -> None:
    with pytest.raises(SetupError, match="No pipeline 'nowhere' has run here"):
        read_status(link, Names("nowhere"))


def test_samples_are_read_in_order(reporter: Reporter) -> None:
    reporter.sample(1, 5, 2)

    def pending() -> list[int]:
        history = read_history(reporter.link, reporter.names)
        return [sample.vertices["v"].pending for sample in history]

    assert until(lambda: len(pending()) == 3, 5)
    assert pending() == [1, 5, 2]


def test_new_chunk_times_of_a_vertex_replace_the_earlier_ones(reporter: Reporter) -> None:
    chunks = [ChunkTimes(NOW, 0, rows, 0.1, 0.2, 0.3, 0.4) for rows in (1, 2)]
    reporter.report_chunks(chunks[0])
    reporter.report_chunks(*chunks)
    assert until(lambda: read_chunks(reporter.link, reporter.names, "v") == tuple(chunks), 5)
    assert read_chunks(reporter.link, reporter.names, "other") == ()


def test_a_follower_receives_each_state(reporter: Reporter) -> None:
    first = reporter.report()

    async def follow() -> list[PipelineStatus]:
        states = []
        async with aclosing(follow_status(reporter.link.client, reporter.names)) as statuses:
            async for status in statuses:
                states.append(status)
                if len(states) == 2:
                    return states
                second = replace(first, at=datetime.now(UTC), ready=False)
                await reporter._publisher.publish(second)
        return states

    states = reporter.link.run(asyncio.wait_for(follow(), 10))
    assert [status.ready for status in states] == [True, False]


def test_a_state_that_is_too_large_is_stored_without_old_tracebacks(reporter: Reporter) -> None:
    long = replace(ERROR, traceback="x" * 50_000)
    vertices = tuple(VertexStatus(f"v{n}", errors=(long,) * 20) for n in range(3))
    reporter.report(vertices=vertices)
    errors = read_status(reporter.link, reporter.names)["v2"].errors
    assert [bool(error.traceback) for error in errors] == [True] * 3 + [False] * 17


def test_dead_letter_causes_follow_what_is_stored(reporter: Reporter) -> None:
    letters = LetterCauses(reporter.link.client, reporter.names)
    reporter.store_dead_letters("KeyError: 'x'", "KeyError: 'x'", "ValueError: no")
    reporter.link.run(letters.look())
    assert [(c.text, c.count) for c in letters.causes("v")] == [
        ("KeyError: 'x'", 2), ("ValueError: no", 1),
    ]  # fmt: skip
    delete = f"$JS.API.STREAM.MSG.DELETE.{reporter.names.dead_letters}"
    reporter.link.run(reporter.link.client.request(delete, b'{"seq": 3}'))
    reporter.link.run(letters.look())
    assert (letters.count("v"), [c.count for c in letters.causes("v")]) == (2, [2])


def test_causes_cover_all_dead_letters_and_add_up(reporter: Reporter) -> None:
    reporter.store_dead_letters(*(f"KeyError: 'x{number}'" for number in range(1_100)))
    reporter.store_dead_letters(*(f"Rare{chr(65 + number)}: no" for number in range(22)))
    letters = LetterCauses(reporter.link.client, reporter.names)
    reporter.link.run(letters.look())
    causes = letters.causes("v")
    assert (causes[0].text, causes[0].count, len(causes)) == ("KeyError: …", 1_100, 21)
    assert (causes[-1].text, causes[-1].rest) == ("and 3 more causes", True)
    assert sum(cause.count for cause in causes) == letters.count("v") == 1_122


def test_causes_that_are_not_counted_in_time_are_counted_later(reporter: Reporter) -> None:
    reporter.store_dead_letters(*(["KeyError: 'x'"] * 3))
    letters = LetterCauses(reporter.link.client, reporter.names)
    reporter.link.run(letters.look(within=-1.0))
    assert sum(cause.count for cause in letters.causes("v")) == 3
    reporter.link.run(letters.look())
    assert [(c.text, c.count, c.rest) for c in letters.causes("v")] == [("KeyError: 'x'", 3, False)]


def test_the_causes_of_a_run_cover_everything_since_it_began_even_after_a_purge(
    reporter: Reporter,
) -> None:
    reporter.store_dead_letters("KeyError: 'x'", "KeyError: 'x'")
    letters = LetterCauses(reporter.link.client, reporter.names)
    reporter.link.run(letters.begin_run())
    reporter.store_dead_letters("ValueError: no")
    reporter.link.run(letters.look())
    reporter.link.run(
        reporter.link.client.request(f"$JS.API.STREAM.PURGE.{reporter.names.dead_letters}")
    )
    reporter.link.run(letters.look())
    assert [(c.text, c.count) for c in letters.run_causes("v", 1)] == [("ValueError: no", 1)]
    assert letters.causes("v") == ()
