"""The status of a running pipeline, seen inside its run and read from outside."""

from __future__ import annotations

import inspect
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Backoff, Datum, Message, Pipeline, nack
from ebbflow.connectors import Blackhole, Generator
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.status.model import ChunkTimes, PipelineStatus, StatusSample
from ebbflow.status.stored import read_chunks, read_history, read_status
from ebbflow.streams.names import Names
from ebbflow.testing.background_run import BackgroundRun, until

PATIENCE = 60.0


def look(datum: Datum) -> Message:
    """Parks one message for ten minutes, and fails on another one."""
    if datum.id == "in-3":
        nack(delay="10m", reason="waits for the moon")
    if datum.id == "in-2":
        raise ValueError(f"no price in {datum.id}")
    return Message(datum.value)


class Slow:
    """Waits in the call for a file to appear."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, datum: Datum) -> Message:
        (self._folder / "pid").write_text(str(os.getpid()))
        until((self._folder / "go").exists, PATIENCE)
        return Message(datum.value)


class Locked:
    """Cannot be opened."""

    def __init__(self) -> None:
        raise KeyError("password")

    def __call__(self, datum: Datum) -> Message:
        return Message(datum.value)


class Seen:
    """A pipeline with messages of every outcome, observed while it runs and after it has ended."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.began = datetime.now(UTC)
        self.running: PipelineStatus
        self.elsewhere: PipelineStatus
        self.ended: PipelineStatus
        self.later: PipelineStatus
        self.killed: PipelineStatus
        self.red_after: float
        self.history: list[StatusSample]
        self.chunks: tuple[ChunkTimes, ...]

    def read(self) -> PipelineStatus:
        with open_link_to_pipeline(self.state, None) as link:
            self.history = read_history(link, Names("fates"))
            self.chunks = read_chunks(link, Names("fates"), "look")
            return read_status(link, Names("fates"))


@pytest.fixture(scope="module")
def seen(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("fates")
    pipeline = (
        Pipeline("fates")
        .source("in", Generator(messages=6))
        .map("look", look, on_error=Backoff("1s", steps=0))
        .map("slow", partial(Slow, folder), after="look", inline=False)
        .map("opens", Locked, after="look")
        .sink("out", Blackhole(), after=["slow", "opens"])
    )
    seen = Seen(folder / "state")
    live = BackgroundRun(pipeline, seen.state)
    try:
        assert until(lambda: is_stuck(live.status), PATIENCE), live.status
        seen.running, seen.elsewhere = live.status, seen.read()
        (folder / "go").touch()
        assert until(lambda: live.status["slow"].counts.done == 4, PATIENCE), live.status
        seen.killed, seen.red_after = kill(live, int((folder / "pid").read_text()))
    finally:
        summary = live.stop()
    assert summary.status is not None
    seen.ended, seen.later = summary.status, seen.read()
    return seen


def kill(live: BackgroundRun, worker: int) -> tuple[PipelineStatus, float]:
    """Kills a worker; returns the first state that shows it, and after how many seconds."""
    os.kill(worker, signal.SIGKILL)
    began = time.monotonic()
    assert until(lambda: live.status["slow"].condition == "restarting", PATIENCE), live.status
    return live.status, time.monotonic() - began


def is_stuck(status: PipelineStatus) -> bool:
    look, slow, opens = (status.vertex(name) for name in ("look", "slow", "opens"))
    if look is None or slow is None or opens is None or not opens.failure:
        return False
    shown = look.counts.read == 6 and slow.pending == 4 and look.dead_letters == 1
    shown = shown and look.parked.messages == 1
    return shown and slow.condition == "busy" and bool(look.errors and opens.errors)


def test_waiting_messages_are_counted_by_row(seen: Seen) -> None:
    assert (seen.running["slow"].pending, seen.running["slow"].pending_exact) == (4, True)
    assert seen.running["opens"].pending == 4
    assert seen.running["out"].pending == 0


def test_a_parked_message_shows_when_it_is_due_and_why(seen: Seen) -> None:
    parked = seen.running["look"].parked
    assert (parked.messages, parked.exact) == (1, True)
    assert [cause.text for cause in parked.reasons] == ["waits for the moon"]
    assert parked.next_due is not None
    ten_minutes = timedelta(minutes=10)
    assert seen.began + ten_minutes < parked.next_due < datetime.now(UTC) + ten_minutes


def test_messages_in_flight_are_shown_during_a_call(seen: Seen) -> None:
    slow = seen.running["slow"]
    assert slow.in_flight is not None
    assert slow.in_flight.messages == 4
    assert seen.began < slow.in_flight.since < datetime.now(UTC)
    assert slow.condition == "busy"
    assert seen.ended["slow"].in_flight is None


def test_errors_are_grouped_with_file_and_line_and_traceback(seen: Seen) -> None:
    (error,) = seen.running["look"].errors
    line = inspect.getsourcelines(look)[1] + 5
    assert (error.kind, error.text, error.count) == ("ValueError", "no price in in-2", 1)
    assert (error.where, error.message_id) == (f"test_running_pipeline.py:{line}", "in-2")
    assert error.traceback is not None
    assert error.traceback.startswith("Traceback (most recent call last)")
    assert error.traceback.endswith("ValueError: no price in in-2\n")
    assert seen.running["look"].error_count == 1


def test_a_vertex_that_never_opened_names_the_failing_line(seen: Seen) -> None:
    opens = seen.running["opens"]
    assert (opens.never_opened, opens.condition) == (True, "waiting")
    line = inspect.getsourcelines(Locked)[1] + 4
    assert (opens.errors[0].kind, opens.errors[0].text) == ("KeyError", "'password'")
    assert opens.errors[0].where == f"test_running_pipeline.py:{line}"
    assert "\tat " not in (opens.errors[0].traceback or "")
    (concern,) = [c for c in seen.running.problems if c.vertex == "opens"]
    assert f"test_running_pipeline.py:{line}" in concern.next_step
    (still,) = seen.later["opens"].errors
    assert (still.where, still.traceback) == (opens.errors[0].where, opens.errors[0].traceback)


def test_nack_reasons_edges_and_stages_are_counted(seen: Seen) -> None:
    look = seen.running["look"]
    assert [(c.text, c.count) for c in look.nack_reasons] == [("waits for the moon", 1)]
    written = {(edge.frm, edge.to): edge.written for edge in seen.running.edges}
    assert written["in", "look"] == 6
    assert written["look", "slow"] == written["look", "opens"] == 4
    assert set(look.spreads) == {"read", "call", "publish", "settle", "message"}
    assert look.spreads["message"].count == 6
    assert 0 < look.latency["publish"].p50 <= look.latency["publish"].p99


def test_the_last_chunks_of_a_vertex_can_be_read(seen: Seen) -> None:
    assert sum(chunk.rows for chunk in seen.chunks) == 6
    assert all(chunk.call > 0 for chunk in seen.chunks if chunk.rows)


def test_a_vertex_whose_worker_was_killed_becomes_unhealthy_within_seconds(seen: Seen) -> None:
    assert seen.red_after < 20  # less than 3 on an idle machine
    assert not seen.killed.ready
    (concern,) = [c for c in seen.killed.problems if c.vertex == "slow"]
    assert concern.level == "error"
    assert "a Python worker died" in concern.what
    assert concern.next_step


def test_dead_letters_are_counted_by_cause(seen: Seen) -> None:
    look = seen.running["look"]
    assert look.dead_letters == 1
    assert [(c.text, c.count) for c in look.dead_letter_causes] == [
        ("ValueError: no price in in-2", 1)
    ]


def test_the_state_read_from_outside_equals_the_one_seen_inside(seen: Seen) -> None:
    there = seen.elsewhere
    assert (there.phase, there.answers, there.run) == ("running", True, seen.running.run)
    assert there["slow"].pending == 4
    assert there["look"].parked == seen.running["look"].parked


def test_a_stopped_pipeline_reports_what_is_left(seen: Seen) -> None:
    for status in (seen.ended, seen.later):
        assert (status.phase, status.ended) == ("ended", "stopped")
        assert status["look"].parked.messages == 1
        assert status["opens"].pending == 4
        assert status["slow"].pending == 0
        assert "password" in (status["opens"].failure or "")
    assert seen.later.answers


def test_samples_record_the_history_of_a_run(seen: Seen) -> None:
    assert len(seen.history) >= 2
    assert seen.history[-1].vertices["look"].read == 6
    assert [sample.at for sample in seen.history] == sorted(s.at for s in seen.history)
