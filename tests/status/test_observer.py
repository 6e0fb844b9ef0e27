"""The observer only reports: a server that says nothing, or no, neither fails nor delays a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ebbflow.builders import Pipeline
from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import Span
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.run import RunOptions
from ebbflow.runtime.task_listener import TaskListener
from ebbflow.spark.run import Run
from ebbflow.status import observer
from ebbflow.status.ending import describe_end
from ebbflow.status.observer import Observer
from ebbflow.status.reading import read_status
from ebbflow.status.run_report import Silent
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from tests import processes

_BOUND = 1.0


def _spec(name: str) -> Any:
    return Pipeline(name).source("in", generator={"messages": 3}).sink("out", log=True).spec


class Watched:
    """A pipeline whose vertex ``in`` has read some messages, and the observer of its run."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self.spec = _spec(names.pipeline)
        self.plans: list[VertexPlan] = make_plans(self.spec, link.server, 10**6, None)
        for config in (
            catalogue.status_config(names),
            catalogue.positions_config(names),
            catalogue.dead_letter_config(names),
            catalogue.buffer_config(names, "out", 0, 100),
            *(catalogue.redelivery_config(names, plan.vertex, 0) for plan in self.plans),
        ):
            link.run(provision.ensure(link.client, config))
        self.observer = Observer(link, self.plans, TaskListener(names, print), "Pipeline")
        self.observer.begin()
        self._store = PositionStore(link.client, names, "in", 0)
        self._position = link.run(self._store.claim())

    def settle(self, read: int) -> None:
        """Writes the position of ``in``, as its task would."""
        self._position = self._position.settled(Span(), Counts(read=read, done=read))
        self.link.run(self._store.write(self._position))

    def delete(self, stream: str) -> None:
        """Has nobody answer for a stream, as while there is no leader."""
        self.link.run(api.delete(self.link.client, [stream]))


@pytest.fixture
def watched(link: Link, names: Names) -> Watched:
    return Watched(link, names)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_READ_WITHIN", "_SEND_WITHIN", "_END_WITHIN", "_LAST_WORD_WITHIN"):
        monkeypatch.setattr(observer, name, _BOUND)


class Frozen:
    """A pipeline on a server that can be stopped for a while."""

    def __init__(self, link: Link, pid: int) -> None:
        self.watched = Watched(link, Names("frozen"))
        self._pid = pid

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Has the server say nothing."""
        with processes.frozen(self._pid):
            yield


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Frozen]:
    with start_embedded(tmp_path) as server, open_link(server) as link:
        yield Frozen(link, int((tmp_path / "nats" / "pid").read_text()))


def test_the_end_of_a_run_stores_its_state(watched: Watched) -> None:
    watched.settle(3)
    status = watched.observer.end("drained")
    assert (status["in"].counts.read, status.numbers_at) == (3, status.at)
    stored = read_status(watched.link, watched.names)
    assert (stored.ended, stored["in"].counts.read) == ("drained", 3)


@pytest.mark.guarantee("reports-never-end-a-run")
def test_a_last_state_that_finds_no_stream_does_not_fail_the_run(watched: Watched) -> None:
    watched.settle(3)
    watched.delete(watched.names.status)  # answered with 503, as while a stream has no leader
    status = watched.observer.end("drained")
    assert (status.ended, status["in"].counts.read) == ("drained", 3)


@pytest.mark.guarantee("reports-never-end-a-run")
def test_a_backlog_that_cannot_be_read_leaves_the_counts(watched: Watched) -> None:
    watched.settle(3)
    watched.delete(watched.names.buffer("out", 0))
    status = watched.observer.end("drained")
    assert status["in"].counts.read == 3
    assert "stream not found" in status.problems[0].what


@pytest.mark.guarantee("reports-never-end-a-run")
def test_silence_at_the_end_leaves_the_numbers_that_were_read_last(
    frozen: Frozen, short: None
) -> None:
    watched = frozen.watched
    watched.settle(2)
    watched.observer.look("running", {})
    watched.settle(3)
    with frozen.silence():
        began = time.monotonic()
        status = watched.observer.end("drained")
        assert time.monotonic() - began < 10 * _BOUND
    assert (status.ended, status["in"].counts.read) == ("drained", 2)
    lines = [*describe_end(status, "drained", 1.0)]
    assert lines[0].startswith("NATS did not answer at the end: these numbers are those of ")
    assert "add up" not in "".join(lines)


@pytest.mark.guarantee("reports-never-end-a-run")
def test_silence_in_the_middle_is_told_and_over_when_nats_answers(
    frozen: Frozen, short: None
) -> None:
    watched = frozen.watched
    watched.settle(2)
    assert watched.observer.look("running", {})["in"].counts.read == 2
    with frozen.silence():
        status = watched.observer.look("running", {})
        assert status["in"].counts.read == 2
        assert "the numbers are those of" in status.problems[0].what
    watched.settle(1)
    status = watched.observer.look("running", {})
    assert (status["in"].counts.read, watched.observer.unread) == (3, None)


@pytest.mark.guarantee("reports-never-end-a-run")
def test_the_error_of_a_run_is_the_one_that_is_raised(frozen: Frozen, short: None) -> None:
    watched = frozen.watched
    run = Run(watched.spec, RunOptions(), Silent())
    run._link, run._observer = watched.link, watched.observer
    with (
        frozen.silence(),
        pytest.raises(ValueError, match="the real one"),
        run._tell_failure(),
    ):
        raise ValueError("the real one")


def test_a_word_to_the_tasks_is_not_what_a_stop_fails_by(watched: Watched) -> None:
    run = Run(watched.spec, RunOptions(), Silent())
    with open_link(watched.link.server) as link:
        run._link = link
        run._tell_stop()
    run._tell_stop()  # the connection is closed now
    run._tell_turns()


def test_a_question_without_an_answer_does_not_end_a_drain(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbflow.spark.run._ANSWER_WITHIN", _BOUND)
    run = Run(frozen.watched.spec, RunOptions(), Silent())
    run._link = frozen.watched.link
    with frozen.silence():
        assert not run._drained(frozen.watched.plans)
