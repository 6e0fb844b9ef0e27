"""The condition of a vertex, its wording, and the suggested next step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.engine.outage import Waiting
from ebbflow.status.conditions import (
    STUCK_AFTER,
    Health,
    describe_vertex,
    describe_waiting,
    judge,
    judge_health,
    list_concerns,
)
from ebbflow.status.model import (
    BackPressure,
    Cause,
    Concern,
    ErrorGroup,
    PipelineStatus,
    VertexStatus,
    WorkInFlight,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
WAITING = Waiting("the database", 3.0, 1.0)
ERROR = ErrorGroup("KeyError", "'x'", "steps.py:6", 1, NOW, NOW)
PLAIN = VertexStatus("m")


def held_for(seconds: float) -> WorkInFlight:
    return WorkInFlight(4, NOW - timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("vertex", "condition", "words"),
    [
        (PLAIN, "running", "running"),
        (replace(PLAIN, restarts=2), "running", "running, 2 restarts"),
        (replace(PLAIN, in_flight=held_for(1)), "busy", "running"),
        (
            replace(PLAIN, in_flight=held_for(STUCK_AFTER + 3)),
            "stuck",
            "stuck, has held 4 messages for 33 s",
        ),
        (
            replace(PLAIN, in_flight=held_for(60), in_call=60.0),
            "stuck",
            "stuck, in a call for 1 min",
        ),
        (
            replace(PLAIN, in_flight=held_for(60), back_pressure=BackPressure("out", NOW)),
            "busy",
            "running, waits for room at out",
        ),
        (
            replace(PLAIN, silent=7.0),
            "stuck",
            "stuck, one of its tasks has not reported for 7 s",
        ),
        (
            replace(PLAIN, silent=7.0, silent_because="Spark has no workers at the moment"),
            "stuck",
            "stuck, one of its tasks has not reported for 7 s (Spark has no workers at the moment)",
        ),
        (replace(PLAIN, in_flight=held_for(60), batched=True), "busy", "running"),
        (replace(PLAIN, never_opened=True), "starting", "starting"),
        (replace(PLAIN, exhausted=True), "exhausted", "has no more messages"),
        (replace(PLAIN, paused=True), "paused", "paused"),
        (
            replace(PLAIN, failure="KeyError: 'x'", restarts=3),
            "restarting",
            "restarting (restart 3): KeyError: 'x'",
        ),
        (
            replace(PLAIN, failure="the database", waiting=WAITING, never_opened=True),
            "waiting",
            "cannot be opened: the database; for 3 s; retrying in 1 s",
        ),
        (
            replace(PLAIN, failure="too many", halted="too many"),
            "halted",
            "stopped taking messages until it is resumed: too many",
        ),
    ],
)
def test_condition_and_wording_follow_from_the_state_of_a_vertex(
    vertex: VertexStatus, condition: str, words: str
) -> None:
    judged = replace(vertex, condition=judge(vertex, NOW))
    assert (judged.condition, describe_vertex(judged, NOW)) == (condition, words)


def concerns(vertex: VertexStatus) -> list[tuple[str, str]]:
    judged = replace(vertex, condition=judge(vertex, NOW))
    judged = replace(judged, words=describe_vertex(judged, NOW))
    status = PipelineStatus("p", vertices=(judged,))
    return [(concern.level, concern.next_step) for concern in list_concerns(status)]


def test_a_healthy_vertex_raises_no_concern() -> None:
    assert concerns(PLAIN) == concerns(replace(PLAIN, in_flight=held_for(1))) == []


def test_the_advice_for_a_stuck_vertex_depends_on_the_cause() -> None:
    hangs = replace(PLAIN, in_flight=held_for(60), in_call=60.0)
    lost = replace(PLAIN, silent=7.0, silent_because="Spark lost an executor on here 3 s ago")
    ((_, step),) = concerns(hangs)
    assert "limits.callTimeout" in step
    lost_in_a_call = replace(lost, in_call=12.0)
    others = (replace(PLAIN, silent=7.0), replace(PLAIN, in_flight=held_for(60)))
    for vertex in (lost, lost_in_a_call, *others):
        ((level, step),) = concerns(vertex)
        assert (level, "callTimeout" in step) == ("error", False)


def test_a_lost_executor_is_named_even_if_a_call_was_running_on_it() -> None:
    because = "Spark lost an executor on here 3 s ago"
    lost = replace(PLAIN, silent=7.0, silent_because=because, in_call=12.0, condition="stuck")
    words = f"stuck, one of its tasks has not reported for 7 s ({because})"
    assert describe_vertex(lost, NOW) == words


def test_a_bug_that_hits_every_message_is_reported_as_a_bug_and_not_as_an_outage() -> None:
    waiting = Waiting("KeyError: 'data'", 12.0, 1.0, certain=False, named=False)
    fails = replace(PLAIN, failure="KeyError: 'data'", waiting=waiting, errors=(ERROR,))
    judged = replace(fails, condition=judge(fails, NOW))
    words = "every message fails with KeyError: 'data' at steps.py:6 (for 12 s; retrying in 1 s)"
    assert describe_vertex(judged, NOW) == words
    assert concerns(fails) == [("warning", "Fix the code and restart; no message is lost.")]


def test_a_failing_vertex_names_the_line_to_correct() -> None:
    (concern,) = concerns(replace(PLAIN, failure="KeyError: 'x'", errors=(ERROR,)))
    step = "Correct the error at steps.py:6 and start the pipeline again; nothing is lost."
    assert concern == ("error", step)


def test_a_long_wait_becomes_an_error() -> None:
    levels = [
        concerns(replace(PLAIN, waiting=replace(WAITING, seconds=seconds)))[0][0]
        for seconds in (1.0, STUCK_AFTER + 1)
    ]
    assert levels == ["warning", "error"]


def test_dead_letters_come_with_the_command_that_lists_them() -> None:
    vertex = replace(PLAIN, dead_letters=2, dead_letter_causes=(Cause("KeyError: 'x'", 2),))
    assert concerns(vertex) == [("warning", "See why: ebbflow dlq list p --vertex m.")]


def test_errors_come_before_warnings() -> None:
    bad = replace(PLAIN, failure="KeyError: 'x'", dead_letters=1)
    assert [level for level, _ in concerns(bad)] == ["error", "warning"]


HEALTHY = PipelineStatus("orders", phase="running", ready=True, vertices=(VertexStatus("in"),))
STUCK = Concern("error", "slow", "in a call for 63 s", "Limit the time of a call.")
PRESSED = Concern("warning", "in", "waits for room", "Make the next vertex faster.")


def test_a_pipeline_whose_vertices_are_all_running_is_healthy() -> None:
    assert judge_health(HEALTHY) == Health(True, True, True)


def test_a_dead_or_stuck_vertex_makes_a_run_unhealthy_and_not_ready() -> None:
    health = judge_health(replace(HEALTHY, problems=(STUCK, PRESSED)))

    assert (health.alive, health.healthy, health.ready) == (True, False, False)
    assert health.reason == "slow: in a call for 63 s"
    assert health.problems[0].next_step == "Limit the time of a call."


def test_a_warning_leaves_a_run_healthy() -> None:
    assert judge_health(replace(HEALTHY, problems=(PRESSED,))) == Health(
        True, True, True, (PRESSED,)
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phase": "starting", "ready": False}, (True, True, False)),
        ({"phase": "paused"}, (True, True, True)),
        ({"phase": "stopping"}, (True, True, False)),
        ({"phase": "ended", "ended": "drained", "ready": False}, (False, True, False)),
        ({"phase": "ended", "ended": "failed", "ready": False}, (False, False, False)),
        ({"answers": False}, (False, False, False)),
    ],
)
def test_health_depends_on_the_phase_of_the_run(
    changes: dict, expected: tuple[bool, bool, bool]
) -> None:
    health = judge_health(replace(HEALTHY, **changes))

    assert (health.alive, health.healthy, health.ready) == expected


def test_a_wait_that_has_just_begun_is_described_without_zeros() -> None:
    waiting = Waiting("the store", 0.3, 0.2, named=True)
    assert describe_waiting(waiting) == "waiting for the store for less than 1 s; retrying now"
