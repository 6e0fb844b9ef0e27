"""The demo as a newcomer runs it, but smaller: it adds up, and its suggested next steps work."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ebbflow import Datum, Nack, Status, Unavailable
from ebbflow.cli import run
from ebbflow.cli.demo import steps
from ebbflow.cli.main import app

ROOT = Path(__file__).parents[2]
ORDERS = 500
# In 500 orders: numbers 150 and 450 have a bad amount, the customer of number 499 never appears.
BAD, WITHOUT_CUSTOMER = 2, 1


def order(number: int, deliveries: int = 1) -> Datum:
    value = b'{"number": %d, "customer": "c-1", "amount": 9, "name": "x"}' % number
    return Datum(value, id=f"in-{number}", deliveries=deliveries)


def shell(command: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "EBBFLOW_NATS_URL"}
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def invoke(command: str) -> str:
    """Runs a command that needs no separate process."""
    program, *words = shlex.split(command)
    assert Path(program).name == "ebbflow"
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_demo_adds_up_and_its_next_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("EBBFLOW_NATS_URL", raising=False)
    state = tmp_path / "demo"
    output = shell(f"{sys.executable} -m ebbflow demo --orders {ORDERS} --state {state}")
    numbers = {
        what.strip(): int(number.replace(",", ""))
        for what, number in re.findall(r"^│ ([a-z ]+?) +│ +([\d,]+) │$", output, re.MULTILINE)
    }
    dead = BAD + WITHOUT_CUSTOMER
    assert numbers == {
        "made by the source": ORDERS,
        "in the store": ORDERS - dead,
        "dead letters": dead,
        "missing": 0,
    }
    assert "Every order is in the store or among the dead letters." in output

    commands = re.findall(r"^(?:[A-Z_]+=\S+ )*\S*ebbflow (?:dlq|run) .*$", output, re.MULTILINE)
    *about_letters, again = commands
    listed, shown, replayed = map(invoke, about_letters)
    through = shell(again)
    assert f"{dead} dead letters" in listed
    assert "has a negative amount" in shown
    assert f"{WITHOUT_CUSTOMER} dead letter sent back" in replayed
    assert re.search(r"^store +1 +1 +1$", through, re.MULTILINE), through
    with sqlite3.connect(state / "orders.db") as database:
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (ORDERS - BAD,)


def test_a_demo_stopped_early_says_so_and_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DB", "")
    monkeypatch.setattr(run, "run_and_report", lambda flags: SimpleNamespace(ended="stopped"))
    result = CliRunner().invoke(app, ["demo", "--state", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    assert "The demo was stopped before its end. Start it again: ebbflow demo" in result.stdout


def test_orders_of_late_customers_are_nacked_twice() -> None:
    with pytest.raises(Nack) as nacked:
        steps.enrich(order(3, deliveries=2))
    assert (nacked.value.options.delay, nacked.value.options.max_deliveries) == (1_500, 3)
    assert b"Customer c-1" in steps.enrich(order(3, deliveries=3)).value


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[steps.OrderStore]:
    monkeypatch.setattr(steps, "DATABASE", tmp_path / "orders.db")
    store = steps.OrderStore()
    store.open()
    yield store
    store.close()


def test_the_store_responds_to_each_order_separately(store: steps.OrderStore) -> None:
    bad = Datum(b'{"number": 4, "amount": -1, "name": "x"}', id="in-4")
    responses = store([order(1), bad, order(650), order(1)])
    rows = store.database.execute("SELECT number FROM orders ORDER BY number").fetchall()
    expected = [Status.OK, Status.FAILURE, Status.OK, Status.OK]
    assert [response.status for response in responses] == expected
    assert rows == [(1,), (650,)]


def test_the_store_is_unavailable_for_a_while_and_then_accepts_every_order(
    store: steps.OrderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (400, 401):
        with pytest.raises(Unavailable):
            store([order(number)])
    monkeypatch.setattr(steps, "OUTAGE", 0.0)
    responses = store([order(400), order(401)])
    assert [response.status for response in responses] == [Status.OK, Status.OK]
