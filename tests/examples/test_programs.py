"""The examples in single files: the outcomes of their messages. Most of them are simulated."""

from __future__ import annotations

import json
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import Row

from ebbflow.builders import Builder
from ebbflow.deadletters import DeadLetters, Letter
from ebbflow.spark.run import run_pipeline
from ebbflow.testing import Outage, simulate
from ebbflow.testing.stand_ins import with_stand_ins
from examples import (
    fraud_scoring,
    orders_to_postgres,
    slow_api,
    sql_join,
    streaming_job,
    uploads_to_parquet,
)
from tests.spark.runs import Failures

ROOT = Path(__file__).parents[2]


def test_every_example_is_type_checked_strictly_and_listed_in_the_index() -> None:
    """``make types`` checks the types; this checks that it includes the examples, strictly."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert checked["strict"]
    assert "examples" in checked["files"]
    index = (ROOT / "examples/README.md").read_text()
    entries = {path for path in (ROOT / "examples").iterdir() if not path.name.startswith("_")}
    assert [path.name for path in entries if f"]({path.name}" not in index] == ["README.md"]


# --- Kafka to Postgres ----------------------------------------------------------------------------


def test_orders_get_names_and_an_outage_of_the_database_loses_none() -> None:
    orders = [{"id": n, "customer": 1 + n % 2, "total": 5} for n in range(10)]
    result = simulate(orders_to_postgres.orders, orders, incidents=[Outage("out", "30m")])
    assert result["out"].done == 10
    assert json.loads(result["out"].values[0])["name"] == "Ada"
    assert result.elapsed >= timedelta(minutes=30)
    assert not result.dead_letters


def test_an_order_of_an_unknown_customer_waits_an_hour() -> None:
    result = simulate(orders_to_postgres.orders, [{"id": 1, "customer": 3, "total": 5}])
    assert result["enrich"].redelivered == 60
    assert result.elapsed >= timedelta(hours=1)
    (letter,) = result.dead_letters
    assert letter.reason == "customer 3 not known yet"


def test_an_invalid_order_is_a_dead_letter() -> None:
    result = simulate(orders_to_postgres.orders, [{"id": 1}, {"id": 2, "customer": 2, "total": 1}])
    assert (result["out"].done, len(result.dead_letters)) == (1, 1)


# --- HTTP to Parquet ------------------------------------------------------------------------------


def test_a_bad_reading_is_a_dead_letter_with_its_reason() -> None:
    good = {"sensor": "a", "celsius": "21.5"}
    bad = [b"21.5", {"sensor": "a"}, {"sensor": "a", "celsius": "warm"}, b"?"]
    hot = {"sensor": "a", "celsius": 900}
    result = simulate(uploads_to_parquet.readings, [good, *bad, hot, good])
    assert result["out"].values == [b'{"sensor": "a", "celsius": 21.5}'] * 2
    assert result.elapsed == timedelta(0)
    errors = [letter.error or "" for letter in result.dead_letters]
    assert [error for error in errors if not error.startswith("not a reading: ")] == [
        "no place on earth has 900.0 °C"
    ]
    assert len(errors) == 5


# --- a slow API -----------------------------------------------------------------------------------


class Api(BaseHTTPRequestHandler):
    """Replies 429 or 503 to some amounts the first time, 404 to an unknown one, else 200."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        amount = self.path.rpartition("/")[2]
        self.asked[amount] += 1
        first = {"busy": 429, "down": 503}.get(amount, 200) if self.asked[amount] == 1 else 200
        self.send_response(404 if amount == "unknown" else first)
        self.send_header("Retry-After", "30")
        self.end_headers()
        self.wfile.write(b"in euros: " + amount.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    Api.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_request_over_the_limit_is_redelivered_after_the_wait_that_the_api_asks_for(
    api: str,
) -> None:
    result = simulate(slow_api.rates(api), {"in": ["busy", "5"]})
    (again,) = result["convert"].redeliveries
    assert (again.reason, again.due) == ("over the limit of the API", timedelta(seconds=30))
    assert sorted(result["out"].values) == [b"in euros: 5", b"in euros: busy"]


def test_an_api_that_is_down_penalises_no_message(api: str) -> None:
    result = simulate(slow_api.rates(api), {"in": ["down"]})
    assert (result["out"].done, Api.asked["down"]) == (1, 2)
    assert result.elapsed >= timedelta(seconds=30)
    assert [one.deliveries for one in result["convert"].deliveries] == [1, 1]


def test_an_amount_unknown_to_the_api_is_a_dead_letter_at_once(api: str) -> None:
    result = simulate(slow_api.rates(api), {"in": ["unknown"]})
    assert [letter.error for letter in result.dead_letters] == ["the API says 404: Not Found"]
    assert (result.elapsed, Api.asked["unknown"]) == (timedelta(0), 1)


# --- fraud scoring --------------------------------------------------------------------------------


def test_suspicious_payments_go_to_review_and_the_others_to_the_ledger() -> None:
    payments = [
        {"amount": 20, "country": "DE", "card": "1"},
        {"amount": 9_000, "country": "XX", "card": "2"},
        {"amount": 50_000, "country": "DE", "card": "3"},
        {"country": "DE"},
    ]
    result = simulate(fraud_scoring.payments, payments)
    booked = [json.loads(value)["card"] for value in result["ledger"].values]
    assert (booked, [json.loads(value)["card"] for value in result["review"].values]) == (
        ["1", "3"],
        ["2"],
    )
    assert [letter.error for letter in result.dead_letters] == ["not a payment: it has no amount"]


# --- on Spark -------------------------------------------------------------------------------------

ORDERS = [{"id": 1, "customer": 1, "total": 5}, {"id": 2, "customer": 2, "total": 1}, {"id": 3}]
READINGS = [{"sensor": "a", "celsius": "21.5"}, b"21.5", {"sensor": "a", "celsius": 900}]
PAYMENTS = [
    {"amount": 20, "country": "DE", "card": "1"},
    {"amount": 9_000, "country": "XX", "card": "2"},
    {"country": "DE"},
]
ON_BOTH = [
    pytest.param(lambda api: orders_to_postgres.orders, ORDERS, id="orders"),
    pytest.param(lambda api: uploads_to_parquet.readings, READINGS, id="readings"),
    pytest.param(lambda api: fraud_scoring.payments, PAYMENTS, id="payments"),
    pytest.param(slow_api.rates, ["5", "unknown"], id="rates"),
]


def facts_of(letters: Iterable[Letter]) -> Counter[tuple[object, ...]]:
    return Counter((each.vertex, each.id, each.reason, each.error) for each in letters)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("example", "messages"), ON_BOTH)
def test_an_example_ends_on_the_engine_as_its_simulation_does(
    example: Callable[[str], Builder], messages: list[object], api: str, tmp_path: Path
) -> None:
    pipeline = example(api)
    spec = with_stand_ins(pipeline.spec, messages)
    summary = run_pipeline(spec, drain=True, timeout="2m", state=tmp_path, watcher=Failures())
    with DeadLetters.open(spec.name, state=tmp_path) as stored:
        letters = [each.letter for each in stored.list()]
    simulated = simulate(pipeline, messages)
    assert {n: v.counts for n, v in simulated.vertices.items()} == dict(summary.vertices)
    assert facts_of(simulated.dead_letters) == facts_of(letters)
    assert len(letters) >= 1


def write(folder: Path, *rows: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))


def rows_of(spark: SparkSession, format: str, folder: Path) -> list[Row]:
    return sorted(spark.read.format(format).load(str(folder)).collect())


@pytest.mark.slow
def test_orders_are_joined_with_a_table_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "customers", {"customer": 1, "name": "Ada"})
    write(tmp_path / "orders", {"customer": 1, "total": 5}, {"customer": 2, "total": 7})
    pipeline = sql_join.named_orders(tmp_path)
    summary = pipeline.run(drain=True, state=tmp_path / "state", timeout="5m")
    assert summary.vertices["join"].redelivered == 3
    assert (summary.vertices["out"].done, summary.dead_letters) == (1, 1)
    (row,) = rows_of(spark, "json", tmp_path / "named")
    assert (row["customer"], row["name"], row["total"]) == (1, "Ada", 5)


@pytest.mark.slow
@pytest.mark.long
def test_a_streaming_job_as_a_pipeline_has_an_outcome_per_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(
        tmp_path / "orders",
        {"order": "a", "total": "10", "currency": "USD"},
        {"order": "b", "total": "ten", "currency": "EUR"},
        {"order": "c", "total": "5", "currency": "GBP"},
        {"order": "d", "total": "7", "currency": "EUR"},
    )
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        streaming_job.job(spark, tmp_path).processAllAvailable()

    pipeline = streaming_job.pipeline(tmp_path)
    summary = pipeline.run(drain=True, state=tmp_path / "state", timeout="5m")
    assert (summary.vertices["out"].done, summary.dead_letters) == (2, 2)
    priced = rows_of(spark, "parquet", tmp_path / "results")
    assert [(row["order"], row["euros"]) for row in priced] == [("a", 9.0), ("d", 7.0)]
