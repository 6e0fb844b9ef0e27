"""Probes: alive, healthy and ready, from the status alone."""

from dataclasses import replace

import pytest

from ebbflow.status.health import Health, judge_health
from ebbflow.status.model import Concern, PipelineStatus, VertexStatus

WELL = PipelineStatus("orders", phase="running", ready=True, vertices=(VertexStatus("in"),))
STUCK = Concern("error", "slow", "in a call for 63 s", "Limit the time of a call.")
PRESSED = Concern("warning", "in", "waits for room", "Make the next vertex faster.")


def test_a_pipeline_whose_vertices_are_all_at_work_is_well() -> None:
    assert judge_health(WELL) == Health(True, True, True)


def test_a_vertex_that_is_dead_or_stuck_turns_health_and_readiness_red() -> None:
    health = judge_health(replace(WELL, problems=(STUCK, PRESSED)))

    assert (health.alive, health.healthy, health.ready) == (True, False, False)
    assert health.reason == "slow: in a call for 63 s"
    assert health.to_json()["problems"][0]["next_step"] == "Limit the time of a call."


def test_a_warning_leaves_it_green() -> None:
    assert judge_health(replace(WELL, problems=(PRESSED,))) == Health(True, True, True, (PRESSED,))


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
def test_what_a_run_is_in_decides(changes: dict, expected: tuple[bool, bool, bool]) -> None:
    health = judge_health(replace(WELL, **changes))

    assert (health.alive, health.healthy, health.ready) == expected
