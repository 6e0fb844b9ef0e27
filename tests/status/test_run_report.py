"""A run started from Python code draws no table but still reports what matters."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from ebbflow.domain.outcome import Counts
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.run_report import QuietWatcher, Summary


def status(failure: str | None) -> PipelineStatus:
    return PipelineStatus("p", vertices=(VertexStatus("m", failure=failure),))


def test_the_output_of_vertices_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = QuietWatcher()
    watcher.stage("starting NATS")
    watcher.line("(out) hello")
    watcher.look(status(None))
    assert capsys.readouterr() == ("(out) hello\n", "")


def test_a_vertex_without_progress_is_a_warning_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watcher = QuietWatcher()
    for failure in ("away", "away", "worse", None, "away"):
        watcher.look(status(failure))
    assert [record.getMessage() for record in caplog.records] == [
        "m makes no progress: away",
        "m makes no progress: worse",
        "m makes no progress: away",
    ]


def test_the_address_that_a_run_listens_on_is_printed(capsys) -> None:
    watcher = QuietWatcher()
    watcher.stage("in takes requests at http://127.0.0.1:8080/")
    assert capsys.readouterr() == ("", "ebbflow: in takes requests at http://127.0.0.1:8080/\n")


def test_a_run_with_nothing_to_do_says_so() -> None:
    idle = Summary("p", "drained", 1.0, {"in": Counts()}, {"in": Counts(read=3, done=3)})
    assert repr(idle).endswith(
        "Nothing was read: the sources were exhausted in an earlier run.\n"
        "Start over with fresh=True, which deletes what the pipeline has stored."
    )
    first = Summary("p", "drained", 1.0, {"in": Counts()}, {"in": Counts()})
    assert not first.had_nothing_to_do
    assert not replace(idle, ended="timeout").had_nothing_to_do


def test_the_end_of_a_quiet_run_is_printed_if_it_needs_attention(capsys) -> None:
    died = Summary("p", "drained", 1.0, {"m": Counts(read=3, done=2, dead_lettered=1)}, {})
    QuietWatcher().end(died)
    assert capsys.readouterr().err.startswith("ebbflow: p\n  ")
    QuietWatcher().end(replace(died, vertices={"m": Counts(read=3, done=3)}))
    assert capsys.readouterr() == ("", "")


def test_stages_are_logged_at_info_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ebbflow"):
        QuietWatcher().stage("starting Spark")
    assert [record.getMessage() for record in caplog.records] == ["starting Spark"]
