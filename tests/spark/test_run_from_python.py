"""A run started from Python code: its output, and its handle."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from ebbflow import Backoff, Message, Pipeline, SetupError
from ebbflow.connectors import Blackhole, Generator, Log
from ebbflow.operations.pipeline_run import PipelineRun
from ebbflow.status import PipelineStatus
from tests.waiting import until


@pytest.mark.parametrize("quiet", [True, False])
def test_a_run_shows_its_progress_unless_it_is_quiet(spark, tmp_path, capsys, quiet):
    pipeline = Pipeline("orders").source("in", Generator(messages=3)).sink("out", Log())

    summary = pipeline.run(quiet=quiet, drain=True, timeout="240s", state=tmp_path / "state")

    shown = capsys.readouterr()
    assert summary.vertices["out"].done == 3
    assert ("running" in shown.err) is not quiet
    end = "Adds up: 3 read by in; 3 done by out.\ndrained after"
    assert (end in shown.err) is not quiet
    assert end in repr(summary)
    assert shown.out.count("(out) id=in-") + shown.err.count("(out) id=in-") == 3
    if quiet:
        pipeline.run(drain=True, timeout="240s", state=tmp_path / "state")
        nothing = "ebbflow: Nothing was read: the sources were exhausted in an earlier run."
        assert nothing in capsys.readouterr().err


def fail_on_two(datum):
    if b'"value":2' in datum.value.replace(b" ", b""):
        raise ValueError("two")
    return Message(datum.value)


def endless():
    return Pipeline("steady").source("in", Generator(rpu=20)).sink("out", Blackhole())


def test_a_handle_shows_pauses_and_stops_a_run(spark, tmp_path):
    with endless().start(state=tmp_path / "state") as run:
        assert isinstance(run, PipelineRun)
        assert until(lambda: run.status()["out"].counts.done > 0)
        with pytest.raises(
            TimeoutError, match=r"has not ended within .* and continues; stop\(\) ends it"
        ):
            run.wait(timeout="10ms")
        assert run.pause("out").unfinished == ()
        assert until(lambda: run.status()["out"].condition == "paused")
        assert "out     paused" in str(run.status())
        assert "<td>paused</td>" in run._repr_html_()
        assert run.resume().unfinished == ()
        assert run.dead_letters() == []
        assert run.is_running
    assert not run.is_running
    assert run.wait().ended == run.stop().ended == run.status().ended == "stopped"


def test_a_handle_has_the_dead_letters_of_its_run_even_after_its_end(spark, tmp_path):
    async def drained():
        pipeline = Pipeline("orders").source("in", Generator(messages=4))
        pipeline = pipeline.map("check", fail_on_two, on_error=Backoff("1s", steps=0))
        options = {"drain": True, "state": tmp_path / "state"}
        async with pipeline.sink("out", Blackhole()).start(**options) as run:
            summary = await run.wait_async(timeout="240s")
            return summary, await run.dead_letters_async()

    summary, (letter,) = asyncio.run(drained())
    assert (summary.ended, summary.dead_letters) == ("drained", 1)
    assert (letter.letter.vertex, letter.letter.reason) == ("check", "ValueError")
    assert "<td>check</td>" in summary._repr_html_()


def test_an_error_in_the_with_block_ends_the_run_and_is_raised(spark, tmp_path):
    with pytest.raises(ZeroDivisionError), endless().start(state=tmp_path / "state") as run:
        _ = 1 / 0
    assert not run.is_running


def test_start_raises_the_error_that_keeps_a_run_from_starting(spark, tmp_path):
    with (
        endless().start(state=tmp_path / "state"),
        pytest.raises(SetupError, match="belongs to a running instance"),
    ):
        endless().start(state=tmp_path / "state")


@pytest.fixture
def shown(monkeypatch) -> list[PipelineStatus]:
    """The states shown by a notebook whose kernel is this process."""

    class ZMQInteractiveShell:
        pass

    states: list[PipelineStatus] = []

    def display(first: PipelineStatus, display_id: bool) -> SimpleNamespace:
        states.append(first)
        return SimpleNamespace(update=states.append)

    module = SimpleNamespace(display=display)
    notebook = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=module)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return states


def test_a_notebook_shows_the_state_below_the_cell(spark, tmp_path, shown, capsys):
    pipeline = Pipeline("orders").source("in", Generator(messages=3)).sink("out", Log())
    pipeline.run(drain=True, timeout="240s", state=tmp_path / "state")
    assert capsys.readouterr().out.count("(out) id=in-") == 3
    assert "orders: starting" in shown[0]._repr_html_()
    assert "orders: ended (drained)" in shown[-1]._repr_html_()
    assert shown[-1]["out"].counts.done == 3


def test_a_notebook_shows_nothing_of_a_run_that_cannot_start(shown):
    with pytest.raises(TypeError, match="did you mean 'drain'"):
        endless().run(drian=True)
    assert shown == []
