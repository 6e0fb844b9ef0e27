"""The program that shows what Ebbflow is for works as written: its test, and its run."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
from datetime import timedelta
from ebbflow import Datum, Message, Nack, Pipeline
from ebbflow.connectors import Generator
from ebbflow.testing import simulate

def enrich(datum: Datum) -> Message:
    order = datum.json()
    if datum.deliveries == 1:
        raise Nack("customer not known yet", delay="5s", max_deliveries=3)
    return Message.json(order, keys=datum.keys)

def store(batch: list[Datum]) -> None:        # returning means: everything is written
    ...

orders = Pipeline("orders").source("in", Generator(messages=100)).map("enrich", enrich).sink("out", store)

def test_orders_of_unknown_customers_are_redelivered_after_five_seconds():
    result = simulate(orders)                 # virtual clock: no Spark, no NATS, milliseconds
    assert result["enrich"].redelivered == 100 and result["out"].done == 100
    assert result.elapsed >= timedelta(seconds=5) and not result.dead_letters

if __name__ == "__main__":
    with orders.start(drain=True) as run:     # the real engine
        print(run.status())
        summary = run.wait(timeout="240s")
"""  # noqa: E501


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "orders.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "orders.py")


def run(folder: Path, *command: str) -> str:
    process = [sys.executable, *command]
    done = subprocess.run(process, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_own_test_passes(program: str) -> None:
    output = run(Path(program).parent, "-m", "pytest", "-q", "-p", "no:cacheprovider", program)
    assert output.splitlines()[-1].startswith("1 passed in ")


@pytest.mark.long
def test_the_program_runs_in_a_separate_process(program: str) -> None:
    assert "orders" in run(Path(program).parent, program), "the status is printed"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_program_runs_on_the_real_engine(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = runpy.run_path(program, run_name="__main__")["summary"]
    assert (summary.ended, summary.dead_letters) == ("drained", 0)
    assert summary.vertices["enrich"].redelivered == 100
    assert summary.vertices["out"].done == 100
    assert capsys.readouterr().out.strip(), "the status is printed"
