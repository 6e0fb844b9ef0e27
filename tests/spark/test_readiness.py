"""A run reports that it is ready only while every task of every vertex is running."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow import Backoff, Datum, Message, Pipeline
from ebbflow.builders import Breaker
from ebbflow.cli.main import app
from ebbflow.connectors import Blackhole, Generator
from ebbflow.testing.background_run import BackgroundRun, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

PATIENCE = 60.0


class Model:
    """User code that opens, dies and fails when a file says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        until((self.folder / "loaded").exists, PATIENCE)

    def __call__(self, datum: Datum) -> Message:
        if (self.folder / "deadly").exists():
            (self.folder / "deadly").unlink()
            os._exit(9)
        # Some pass: if all failed, a system might be down, and the vertex would wait for it.
        if (self.folder / "buggy").exists() and not datum.id.endswith("0"):
            raise KeyError("customer")
        return Message(datum.value)


def test_a_run_is_ready_only_while_all_vertices_are_running(tmp_path: Path) -> None:
    pipeline = (
        Pipeline("test")
        .source("in", Generator(rpu=100))
        .map(
            "model",
            partial(Model, tmp_path),
            partitions=2,
            on_error=Backoff("1s", steps=0),
            breaker=Breaker(share=0.5, window=20),
        )
        .sink("out", Blackhole())
    )
    live = BackgroundRun(pipeline, tmp_path / "state")
    is_ready = live._run._run.is_ready
    try:
        assert until(lambda: live.status["in"].counts.written > 0, PATIENCE)
        assert not is_ready()
        (tmp_path / "loaded").touch()
        assert until(is_ready, PATIENCE)

        (tmp_path / "deadly").touch()
        assert until(lambda: not is_ready(), PATIENCE)
        assert until(lambda: live.failures != [], PATIENCE)
        assert until(is_ready, PATIENCE)

        (tmp_path / "buggy").touch()
        assert until(lambda: not is_ready(), PATIENCE)
        assert until(lambda: bool(live.status["model"].halted), PATIENCE)
        (tmp_path / "buggy").unlink()
        state = str(tmp_path / "state")
        assert CliRunner().invoke(app, ["resume", "test", "model", "--state", state]).exit_code == 0
        assert until(is_ready, PATIENCE)
    finally:
        live.stop()
    assert not is_ready()
