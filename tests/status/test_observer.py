"""The observer only reports: a silent or refusing server neither fails nor delays a run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbflow.accounts.listener import TaskListener
from ebbflow.builders import Pipeline
from ebbflow.connectors import Generator, Log
from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import Span
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spark.run import Run
from ebbflow.status import observer
from ebbflow.status.conditions import judge_health, list_concerns
from ebbflow.status.ending import describe_end
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.observer import BacklogTrend, Observer, TrendWatch
from ebbflow.status.run_report import Watcher
from ebbflow.status.stored import read_status
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from tests import processes

_BOUND = 1.0


def _spec(name: str) -> Any:
    return Pipeline(name).source("in", Generator(messages=3)).sink("out", Log()).spec


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
        """Deletes a stream, so that requests fail as they do while it has no leader."""
        self.link.run(api.delete(self.link.client, [stream]))


@pytest.fixture
def watched(link: Link, names: Names) -> Watched:
    return Watched(link, names)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_READ_WITHIN", "_SEND_WITHIN", "_END_WITHIN", "_STORE_WITHIN"):
        monkeypatch.setattr(observer, name, _BOUND)


class Frozen:
    """A pipeline on a server that can be stopped for a while."""

    def __init__(self, link: Link, pid: int) -> None:
        self.watched = Watched(link, Names("frozen"))
        self._pid = pid

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Freezes the server."""
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
def test_a_final_state_that_cannot_be_stored_does_not_fail_the_run(watched: Watched) -> None:
    watched.settle(3)
    watched.delete(watched.names.status)  # answered with 503, as while a stream has no leader
    status = watched.observer.end("drained")
    assert (status.ended, status["in"].counts.read) == ("drained", 3)


@pytest.mark.guarantee("reports-never-end-a-run")
def test_an_unreadable_backlog_leaves_the_counts_intact(watched: Watched) -> None:
    watched.settle(3)
    watched.delete(watched.names.buffer("out", 0))
    status = watched.observer.end("drained")
    assert status["in"].counts.read == 3
    assert "stream not found" in status.problems[0].what


@pytest.mark.guarantee("reports-never-end-a-run")
def test_a_silent_server_at_the_end_leaves_the_last_known_numbers(
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
def test_a_silent_server_is_reported_until_it_answers_again(frozen: Frozen, short: None) -> None:
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
def test_a_failed_run_raises_its_own_error_although_the_server_is_silent(
    frozen: Frozen, short: None
) -> None:
    watched = frozen.watched
    run = Run(watched.spec, RunOptions(), Watcher())
    run._link, run._observer = watched.link, watched.observer
    with (
        frozen.silence(),
        pytest.raises(ValueError, match="the real one"),
        run._recording_failure(),
    ):
        raise ValueError("the real one")


def test_a_stop_does_not_fail_on_a_closed_connection(watched: Watched) -> None:
    run = Run(watched.spec, RunOptions(), Watcher())
    with open_link(watched.link.server) as link:
        run._link = link
        run._send_stop()
    run._send_stop()  # the connection is closed now
    run._send_turns()


def test_an_unanswered_request_does_not_end_a_drain(frozen: Frozen) -> None:
    run = Run(frozen.watched.spec, RunOptions(), Watcher(), answer_within=_BOUND)
    run._link = frozen.watched.link
    with frozen.silence():
        assert not run._drained(frozen.watched.plans)


MINUTE = 60
_NOISE = random.Random(7)


def watch(
    backlog: Callable[[int], float], minutes: int, rate: float = 100.0, noise: float = 0.0
) -> list[BacklogTrend]:
    """Returns the trend of each second, for messages that are handled in order."""
    trend, trends = TrendWatch(), []
    for second in range(minutes * MINUTE):
        waiting = max(0, round(backlog(second) * (1 + noise * _NOISE.uniform(-1, 1))))
        oldest = waiting / rate if waiting else None
        trends.append(trend.update(waiting, oldest, float(second)))
    return trends


def falls(trends: Iterable[BacklogTrend]) -> bool:
    return any(trend.falling_behind for trend in trends)


def test_an_endlessly_growing_backlog_is_reported_after_minutes_and_stays_reported() -> None:
    trends = watch(lambda second: second * 50, 20, noise=0.05)
    first = next(n for n, trend in enumerate(trends) if trend.falling_behind)
    assert 5 * MINUTE <= first <= 8 * MINUTE
    assert all(trend.falling_behind for trend in trends[first:])
    assert trends[-1].growing_seconds is not None
    assert trends[-1].growing_seconds > 15 * MINUTE


def test_a_backlog_capped_by_a_full_buffer_still_counts_as_falling_behind() -> None:
    trends = watch(lambda second: min(second * 50, 30_000), 30, noise=0.01)
    assert all(trend.falling_behind for trend in trends[15 * MINUTE :])


def test_a_vertex_no_longer_falls_behind_once_its_backlog_shrinks() -> None:
    trends = watch(lambda s: s * 50 if s < 10 * MINUTE else 30_000 - (s - 600) * 50, 18)
    assert trends[10 * MINUTE].falling_behind
    assert not falls(trends[12 * MINUTE :])


@pytest.mark.parametrize(
    "backlog",
    [
        lambda second: max(0, 60_000 - 60 * second),  # a run that begins with a backlog
        lambda second: max(0, min(second * 300, 60_000 - 50 * (second - 200))),  # a burst
        lambda second: 30_000 * (second % 300) / 300,  # a burst every five minutes
        lambda second: 50 + 30 * (second % 7),  # some always wait, for less than a minute
        lambda second: 0,
    ],
    ids=["start", "burst", "bursts", "steady", "none"],
)
def test_a_vertex_that_works_off_its_backlog_does_not_fall_behind(
    backlog: Callable[[int], float],
) -> None:
    assert not falls(watch(backlog, 30, noise=0.02))


def test_the_estimated_drain_time_follows_the_rate() -> None:
    trends = watch(lambda second: max(0, 60_000 - 100 * second), 9)
    drain = trends[5 * MINUTE].drain_seconds
    assert drain == pytest.approx(300, rel=0.01)
    assert watch(lambda second: second * 10, 2)[-1].drain_seconds is None
    assert watch(lambda second: 500, 2)[-1].drain_seconds is None


LATE = VertexStatus("store", condition="busy", pending=238_288, oldest_waiting_seconds=390.0)


def reported(vertex: VertexStatus) -> PipelineStatus:
    status = PipelineStatus("shop", phase="running", ready=True, vertices=(vertex,))
    return replace(status, problems=list_concerns(status))


@pytest.mark.guarantee("late-is-not-healthy")
def test_a_vertex_that_falls_behind_is_unhealthy_although_it_is_running() -> None:
    status = reported(replace(LATE, falling_behind=True, backlog_growing_seconds=330.0))
    health = judge_health(status)
    assert (health.alive, health.healthy, health.ready) == (True, False, True)
    assert health.reason == (
        "store: falls behind: 238,288 messages wait, the oldest for 6 min 30 s, and the "
        "backlog has grown for 5 min 30 s"
    )


@pytest.mark.guarantee("late-is-not-healthy")
def test_a_vertex_that_catches_up_is_late_but_healthy() -> None:
    status = reported(replace(LATE, drain_seconds=240.0))
    (concern,) = status.problems
    assert (concern.level, judge_health(status).healthy) == ("warning", True)
    assert concern.next_step == "Nothing: at this rate it has caught up in about 4 min."


def test_a_short_wait_is_not_reported() -> None:
    assert reported(replace(LATE, oldest_waiting_seconds=59.0)).problems == ()
