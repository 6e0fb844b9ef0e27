"""Where a backlog is heading: bursts pass, and a vertex that falls behind without end is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from ebbflow.status.conditions import list_concerns
from ebbflow.status.health import judge_health
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.rates import BacklogTrend, TrendWatch

MINUTE = 60
_NOISE = random.Random(7)


def watch(
    backlog: Callable[[int], float], minutes: int, rate: float = 100.0, noise: float = 0.0
) -> list[BacklogTrend]:
    """Returns the trend of each second; of messages in order the last one has waited longest."""
    trend, trends = TrendWatch(), []
    for second in range(minutes * MINUTE):
        waiting = max(0, round(backlog(second) * (1 + noise * _NOISE.uniform(-1, 1))))
        oldest = waiting / rate if waiting else None
        trends.append(trend.update(waiting, oldest, float(second)))
    return trends


def falls(trends: Iterable[BacklogTrend]) -> bool:
    return any(trend.falling_behind for trend in trends)


def test_a_backlog_that_grows_without_end_is_told_after_minutes_and_stays_told() -> None:
    trends = watch(lambda second: second * 50, 20, noise=0.05)
    first = next(n for n, trend in enumerate(trends) if trend.falling_behind)
    assert 5 * MINUTE <= first <= 8 * MINUTE
    assert all(trend.falling_behind for trend in trends[first:])
    assert trends[-1].growing_seconds is not None
    assert trends[-1].growing_seconds > 15 * MINUTE


def test_a_full_buffer_is_not_better_than_one_that_grows() -> None:
    trends = watch(lambda second: min(second * 50, 30_000), 30, noise=0.01)
    assert all(trend.falling_behind for trend in trends[15 * MINUTE :])


def test_it_is_over_when_the_backlog_shrinks() -> None:
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
def test_what_works_off_its_backlog_does_not_fall_behind(backlog: Callable[[int], float]) -> None:
    assert not falls(watch(backlog, 30, noise=0.02))


def test_the_time_until_it_is_empty_follows_the_rate() -> None:
    trends = watch(lambda second: max(0, 60_000 - 100 * second), 9)
    drain = trends[5 * MINUTE].drain_seconds
    assert drain == pytest.approx(300, rel=0.01)
    assert watch(lambda second: second * 10, 2)[-1].drain_seconds is None
    assert watch(lambda second: 500, 2)[-1].drain_seconds is None


LATE = VertexStatus("store", condition="busy", pending=238_288, oldest_waiting_seconds=390.0)


def told(vertex: VertexStatus) -> PipelineStatus:
    status = PipelineStatus("shop", phase="running", ready=True, vertices=(vertex,))
    return replace(status, problems=list_concerns(status))


@pytest.mark.guarantee("late-is-not-healthy")
def test_a_vertex_that_falls_behind_is_unhealthy_though_it_is_at_work() -> None:
    status = told(replace(LATE, falling_behind=True, backlog_growing_seconds=330.0))
    health = judge_health(status)
    assert (health.alive, health.healthy, health.ready) == (True, False, True)
    assert health.reason == (
        "store: falls behind: 238,288 messages wait, the oldest for 6 min 30 s, and they have "
        "become more for 5 min 30 s"
    )


@pytest.mark.guarantee("late-is-not-healthy")
def test_a_vertex_that_catches_up_is_late_and_healthy() -> None:
    status = told(replace(LATE, drain_seconds=240.0))
    (concern,) = status.problems
    assert (concern.level, judge_health(status).healthy) == ("warning", True)
    assert concern.next_step == "Nothing: at this rate it has caught up in about 4 min."


def test_a_short_wait_is_not_worth_a_word() -> None:
    assert told(replace(LATE, oldest_waiting_seconds=59.0)).problems == ()
