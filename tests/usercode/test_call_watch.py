"""Where a call over its time limit may be interrupted: in user code, and in C code it calls."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from ebbflow.domain.errors import CallTimeout
from ebbflow.engine import verdict
from ebbflow.usercode import call_watch, calling
from ebbflow.usercode.call_watch import RUNNING


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A watch whose timer has expired for the running call."""
    armed = call_watch._Watch(1.0, lambda _: None, io.BytesIO())
    monkeypatch.setattr(call_watch.signal, "setitimer", lambda *_: None)
    monkeypatch.setattr(type(RUNNING), "state", property(lambda _: (1, 1, 1)))
    armed._armed = (1, 1, 1)
    return armed


def frame_in(module: str) -> Any:
    return SimpleNamespace(f_globals={"__name__": module})


def test_a_call_over_its_time_limit_is_interrupted_in_user_code(watch: Any) -> None:
    with pytest.raises(CallTimeout):
        watch.over(0, frame_in("shop.steps"))


def test_a_call_is_never_interrupted_while_a_decision_is_written(watch: Any) -> None:
    for _ in range(10):
        watch.over(0, frame_in(verdict.__name__))


def test_a_function_written_in_c_is_interrupted_where_it_is_called(watch: Any) -> None:
    for _ in range(3):
        watch.over(0, frame_in(calling.__name__))
    with pytest.raises(CallTimeout):
        watch.over(0, frame_in(calling.__name__))
