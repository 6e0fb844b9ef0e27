"""The state of a pipeline, published and read on a real server, and of one that nobody runs."""

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


class Told:
    """A run that tells its state."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self.status = replace(STATUS, pipeline=names.pipeline)
        self._publisher = StatusPublisher(link.client, names)

    def tell(self, age: float = 0.0, **changes: Any) -> PipelineStatus:
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

    def tell_chunks(self, *chunks: ChunkTimes) -> None:
        self.link.run(self._publisher.publish_chunks("v", chunks))
        self.link.flush()

    def settle(self, read: int) -> None:
        """Writes a position, as a task would."""
        store = PositionStore(self.link.client, self.names, "v", 0)
        position = self.link.run(store.claim())
        self.link.run(store.write(position.settled(Span(), Counts(read=read, done=read))))

    def bury(self, *errors: str) -> None:
        """Stores dead letters."""
        for error in errors:
            kind = error.partition(":")[0]
            letter = Letter("a", "v", b"", kind, error, "trace", 1, None, NOW, None, [], {}, {})
            subject = self.names.dead_letter_subject("v")
            self.link.run(publish(self.link.client, subject, b"", letter.to_headers()))


@pytest.fixture
def told(link: Link, names: Names, ensure: Callable[[Any], None]) -> Told:
    ensure(catalogue.status_config(names))
    ensure(catalogue.positions_config(names))
    ensure(catalogue.dead_letter_config(names))
    ensure(catalogue.buffer_config(names, "v", 0, 100))
    ensure(catalogue.redelivery_config(names, "v", 0))
    return Told(link, names)


def test_the_state_of_a_run_is_read_as_it_was_told(told: Told) -> None:
    told.tell(ready=False)
    status = told.tell()
    assert read_status(told.link, told.names) == status


def test_a_run_that_tells_nothing_any_more_is_lost(told: Told) -> None:
    told.tell(age=6.0)
    told.settle(read=3)
    status = read_status(told.link, told.names)
    assert (status.answers, status.phase, status.ready) == (False, "running", False)
    assert (status["v"].condition, status["v"].totals.read) == ("ended", 3)
    assert status["v"].errors == (ERROR,)
    first = status.problems[0]
    assert (first.level, first.vertex) == ("error", None)
    assert "ebbflow run" in first.next_step


def test_of_a_pipeline_that_has_ended_the_numbers_are_those_of_now(told: Told) -> None:
    told.tell(age=3600.0, phase="ended", ended="drained")
    told.settle(read=3)
    told.bury("KeyError: 'x'")
    status = read_status(told.link, told.names)
    assert (status.phase, status.ended, status.answers) == ("ended", "drained", True)
    assert (status["v"].dead_letters, status["v"].rate_in) == (1, 0.0)


def test_a_pipeline_of_an_earlier_version_is_known_by_its_positions(told: Told) -> None:
    told.settle(read=3)
    assert read_status(told.link, told.names)["v"].totals.read == 3


def test_a_pipeline_that_has_never_run_is_unknown(link: Link) -> None:
    with pytest.raises(SetupError, match="No pipeline 'nowhere' has run here"):
        read_status(link, Names("nowhere"))


def test_samples_come_in_order(told: Told) -> None:
    told.sample(1, 5, 2)

    def pending() -> list[int]:
        history = read_history(told.link, told.names)
        return [sample.vertices["v"].pending for sample in history]

    assert until(lambda: len(pending()) == 3, 5)
    assert pending() == [1, 5, 2]


def test_the_last_chunks_of_a_vertex_replace_those_before(told: Told) -> None:
    chunks = [ChunkTimes(NOW, 0, rows, 0.1, 0.2, 0.3, 0.4) for rows in (1, 2)]
    told.tell_chunks(chunks[0])
    told.tell_chunks(*chunks)
    assert until(lambda: read_chunks(told.link, told.names, "v") == tuple(chunks), 5)
    assert read_chunks(told.link, told.names, "other") == ()


def test_whoever_follows_sees_each_state(told: Told) -> None:
    first = told.tell()

    async def follow() -> list[PipelineStatus]:
        states = []
        async with aclosing(follow_status(told.link.client, told.names)) as statuses:
            async for status in statuses:
                states.append(status)
                if len(states) == 2:
                    return states
                second = replace(first, at=datetime.now(UTC), ready=False)
                await told._publisher.publish(second)
        return states

    states = told.link.run(asyncio.wait_for(follow(), 10))
    assert [status.ready for status in states] == [True, False]


def test_a_state_that_is_too_large_goes_without_old_tracebacks(told: Told) -> None:
    long = replace(ERROR, traceback="x" * 50_000)
    vertices = tuple(VertexStatus(f"v{n}", errors=(long,) * 20) for n in range(3))
    told.tell(vertices=vertices)
    errors = read_status(told.link, told.names)["v2"].errors
    assert [bool(error.traceback) for error in errors] == [True] * 3 + [False] * 17


def test_causes_of_dead_letters_follow_what_is_stored(told: Told) -> None:
    letters = LetterCauses(told.link.client, told.names)
    told.bury("KeyError: 'x'", "KeyError: 'x'", "ValueError: no")
    told.link.run(letters.look())
    assert [(c.text, c.count) for c in letters.causes("v")] == [
        ("KeyError: 'x'", 2), ("ValueError: no", 1),
    ]  # fmt: skip
    delete = f"$JS.API.STREAM.MSG.DELETE.{told.names.dead_letters}"
    told.link.run(told.link.client.request(delete, b'{"seq": 3}'))
    told.link.run(letters.look())
    assert (letters.count("v"), [c.count for c in letters.causes("v")]) == (2, [2])


def test_causes_are_those_of_all_letters_and_add_up(told: Told) -> None:
    told.bury(*(f"KeyError: 'x{number}'" for number in range(1_100)))
    told.bury(*(f"Rare{chr(65 + number)}: no" for number in range(22)))
    letters = LetterCauses(told.link.client, told.names)
    told.link.run(letters.look())
    causes = letters.causes("v")
    assert (causes[0].text, causes[0].count, len(causes)) == ("KeyError: …", 1_100, 21)
    assert (causes[-1].text, causes[-1].rest) == ("and 3 more causes", True)
    assert sum(cause.count for cause in causes) == letters.count("v") == 1_122


def test_whoever_has_no_time_counts_the_rest_later(told: Told) -> None:
    told.bury(*(["KeyError: 'x'"] * 3))
    letters = LetterCauses(told.link.client, told.names)
    told.link.run(letters.look(within=-1.0))
    assert sum(cause.count for cause in letters.causes("v")) == 3
    told.link.run(letters.look())
    assert [(c.text, c.count, c.rest) for c in letters.causes("v")] == [("KeyError: 'x'", 3, False)]


def test_the_causes_of_a_run_are_those_since_it_began_whatever_was_purged(told: Told) -> None:
    told.bury("KeyError: 'x'", "KeyError: 'x'")
    letters = LetterCauses(told.link.client, told.names)
    told.link.run(letters.begin_run())
    told.bury("ValueError: no")
    told.link.run(letters.look())
    told.link.run(told.link.client.request(f"$JS.API.STREAM.PURGE.{told.names.dead_letters}"))
    told.link.run(letters.look())
    assert [(c.text, c.count) for c in letters.run_causes("v", 1)] == [("ValueError: no", 1)]
    assert letters.causes("v") == ()
