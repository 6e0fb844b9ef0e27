"""The order of the vertices' turns when there are fewer slots than tasks."""

from types import SimpleNamespace

import pytest

from ebbflow.spark.supervisor import Supervisor, TaskSupervisor


def test_turns_follow_the_flow_so_that_a_message_passes_many_vertices_in_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    monkeypatch.setattr(TaskSupervisor, "start", lambda self: started.append(self.plans[0].vertex))
    plans = [
        SimpleNamespace(vertex=name, edges=(), inline=())
        for name in ("in", "first", "second", "out")
    ]

    Supervisor(SimpleNamespace(), plans, lambda: 2.0).start()  # type: ignore[arg-type]

    assert started == ["in", "first", "second", "out"]
