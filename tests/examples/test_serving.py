"""The examples that answer requests: what their maps decide, and that their pipelines lint."""

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ebbflow.builders import Builder
from ebbflow.client import AsyncClient, Client
from ebbflow.domain.outcome import DONE, DeadLetter, Redeliver
from ebbflow.spec.lint import lint, load
from ebbflow.testing import run_map
from ebbflow.testing.background_run import BackgroundRun
from examples.serving import credit, prices

FOLDER = Path(credit.__file__).parent


@pytest.mark.parametrize("name", ["credit.yaml", "prices.yaml"])
def test_the_pipeline_lints(name: str) -> None:
    assert [str(problem) for problem in lint(FOLDER / name)] == []


def test_the_model_is_called_once_for_requests_that_arrive_together() -> None:
    good, bad = {"income": 60, "debt": 5, "years": 4}, {"income": 20, "debt": 40, "years": 0}
    requests = [json.dumps(value).encode() for value in (good, {"income": 1}, bad, [])]
    scored = [
        json.loads(row.messages[0].value)
        for row in run_map(credit.Score, *requests, b"?", mode="columnar")
    ]
    assert scored[0] == {"score": 0.852, "approved": True, "together": 5}
    assert scored[1] == {"error": "debt is missing"}
    assert scored[2] == {"score": 0.022, "approved": False, "together": 5}
    wrong = {"error": "write a JSON object with income, debt, years, all of them numbers"}
    assert scored[3:] == [wrong, wrong]


def test_prices_come_from_the_table_which_is_read_again_when_it_changes(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_bytes((FOLDER / "prices.csv").read_bytes())
    quote = prices.Quote(table)
    plum, pear = b'{"product": "plum", "count": 3}', b'{"product": "pear", "count": 3}'
    unknown, known, wrong = run_map(quote, plum, pear, b"?", mode="columnar")
    assert isinstance(unknown.outcome, Redeliver)
    assert (unknown.outcome.delay, unknown.outcome.reason) == (500, "no price yet")
    assert isinstance(wrong.outcome, DeadLetter)
    assert wrong.outcome.error == prices.WRONG
    assert known.outcome == DONE
    assert json.loads(known.messages[0].value) == {"product": "pear", "total": 165}
    table.write_text("product,price\nplum,30\n")
    os.utime(table, (1, 1))
    (found,) = run_map(quote, plum, mode="columnar")
    assert json.loads(found.messages[0].value) == {"product": "plum", "total": 90}


@contextmanager
def served(folder: Path, name: str) -> Iterator[str]:
    """Runs an example from a copy of its folder; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec = folder / name
    spec.write_text(spec.read_text().replace("http: 8080", f"http: {port}"))
    pipeline = cast(Builder, SimpleNamespace(spec=load(spec)))
    run = BackgroundRun(pipeline, folder / "state", search=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        run.stop()


async def ask_together(url: str, values: list[Any]) -> list[Any]:
    async with AsyncClient(url, timeout="240s") as client:
        answers = await asyncio.gather(*(client.ask(value) for value in values))
        return [answer.json() for answer in answers]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_both_examples_answer_requests(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "serving"))
    with served(folder, "credit.yaml") as url:
        requests = [{"income": income, "debt": 5, "years": 4} for income in range(60)]
        scored = asyncio.run(ask_together(url, requests))
    assert [answer["approved"] for answer in scored] == [income >= 17 for income in range(60)]
    assert max(answer["together"] for answer in scored) > 1
    with served(folder, "prices.yaml") as url, Client(url, timeout="240s") as client:
        assert client.ask({"product": "pear", "count": 3}).json()["total"] == 165
        id = client.submit({"product": "plum", "count": 3})
        with (folder / "prices.csv").open("a") as table:
            table.write("plum,30\n")
        assert client.wait(id).json() == {"product": "plum", "total": 90}
