"""Spark sinks: what can be written is written, what cannot be is dead-lettered, and only that.

The database is Derby, which comes with Spark; another file does the same with PostgreSQL.
"""

from __future__ import annotations

import json
from itertools import count

import pytest

from ebbflow import Backoff, Message, Pipeline, Response
from ebbflow.connectors import Generator, Spark
from ebbflow.domain.errors import SetupError
from tests.spark.runs import Failures, StopWhen

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

_numbers = count()


class Derby:
    """A database in the memory of Spark's own process."""

    def __init__(self, spark) -> None:
        self._spark = spark
        self.url = f"jdbc:derby:memory:test{next(_numbers)}"
        self.options = {
            "url": self.url,
            "dbtable": "orders",
            "driver": "org.apache.derby.jdbc.EmbeddedDriver",
        }

    def create(self) -> None:
        connection = self._connect()
        statement = connection.createStatement()
        statement.execute(
            "CREATE TABLE orders (id VARCHAR(9) PRIMARY KEY, total INT NOT NULL CHECK (total < 99))"
        )
        connection.close()

    def create_empty(self) -> None:
        """Without the table: Spark makes it when it first writes."""
        self._connect().close()

    def _connect(self):
        manager = self._spark._jvm.java.sql.DriverManager
        return manager.getConnection(f"{self.url};create=true")

    def ids(self) -> list[str]:
        table = self._spark.read.format("jdbc").options(**self.options).load()
        return sorted(row[0] for row in table.collect())


@pytest.fixture
def derby(spark) -> Derby:
    return Derby(spark)


def orders(amount, wrong=None):
    """A source of orders, some of them wrong."""
    wrong = wrong or {}

    def order(datum):
        number = json.loads(datum.value)["value"]
        value = {"id": f"o{number}", "total": number % 7} | wrong.get(number, {})
        return Message(b"no JSON" if "text" in value else json.dumps(value).encode())

    return Pipeline("test").source("in", Generator(messages=amount), transformer=order)


def into(derby, **fields):
    return {"format": "jdbc", "options": derby.options, "schema": "id STRING, total INT"} | fields


@pytest.mark.long
@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_one_wrong_row_in_a_hundred_is_dead_lettered_with_the_databases_error(
    run, derby, server_letters
):
    derby.create()
    wrong = {33: {"total": 500}, 133: {"text": True}, 233: {"total": None}, 250: {"id": "o" * 10}}

    summary = run(
        orders(300, wrong).sink("db", Spark(**into(derby)), on_error=Backoff("1s", steps=0)),
        timeout="240s",
    )

    assert derby.ids() == sorted(f"o{n}" for n in range(300) if n not in wrong)
    letters = {letter.id: letter for letter in server_letters("test")}
    assert set(letters) == {f"in-{n}/in" for n in wrong}
    assert "was violated while performing an INSERT" in letters["in-33/in"].error
    assert letters["in-133/in"].error.startswith("JsonParseException: Unrecognized token 'no'")
    assert "cannot accept a NULL value" in letters["in-233/in"].error
    assert "truncation error was encountered" in letters["in-250/in"].error
    assert all(
        "\n" not in letter.error and "at org." not in letter.error for letter in letters.values()
    )
    counts = summary.vertices["db"]
    assert (counts.read, counts.done, counts.written, counts.dead_lettered) == (300, 296, 296, 4)


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_an_unavailable_database_penalises_no_message(run, derby, server_letters):
    reported = []

    class Watching(Failures):
        def look(self, status):
            if status["db"].failure and not reported:
                reported.append(status["db"].failure)
                derby.create_empty()

    summary = run(orders(20).sink("db", Spark(**into(derby))), watcher=Watching())

    assert reported == [
        f"SQLException: Database 'memory:{derby.url.rpartition(':')[2]}' not found."
    ]
    assert len(derby.ids()) == summary.vertices["db"].done == 20
    assert summary.vertices["db"].redelivered == 0
    assert server_letters("test") == []


@pytest.mark.long
def test_a_retry_strategy_applies_to_rows_that_cannot_be_written(run, derby, journal):
    derby.create()

    def aside(data):
        journal.write(*(datum.id for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = orders(20, {3: {"total": 500}}).sink(
        "db",
        Spark(**into(derby, columns={"id": "data.id", "total": "data.total + 1"})),
        retry=Backoff("50ms", steps=2),
        on_failure="fallback",
        fallback=aside,
    )
    summary = run(pipeline)

    assert journal.read() == ["in-3/in"]
    assert len(derby.ids()) == 19
    counts = summary.vertices["db"]
    assert (counts.done, counts.fallback, counts.redelivered) == (19, 1, 2)


def test_an_unavailable_database_exhausts_a_retry_strategy(run, derby, server_letters):
    pipeline = orders(10).sink(
        "db", Spark(**into(derby)), retry=Backoff("20ms", steps=1), on_failure="drop"
    )
    summary = run(pipeline)

    assert summary.vertices["db"].dead_lettered == 10
    assert {letter.reason for letter in server_letters("test")} == {"retries exhausted"}


def test_files_have_the_requested_columns_and_can_be_read_back(run, spark, journal, tmp_path):
    table, lines = str(tmp_path / "table"), str(tmp_path / "lines")
    columns = {"id": "id", "n": "data.n", "at": "event_time"}
    to_table = {"format": "parquet", "options": {"path": table}, "schema": "n INT"}

    def numbered(datum):
        return Message(json.dumps({"n": json.loads(datum.value)["value"]}).encode())

    source = Pipeline("test").source("in", Generator(messages=100), transformer=numbered)
    source = source.sink("table", Spark(**to_table, columns=columns, partition_by=["n"]))
    run(source.sink("lines", Spark(format="text", options={"path": lines}), after="in"))

    found = spark.read.parquet(table)
    assert sorted(found.columns) == ["at", "id", "n"]
    assert sorted((row.id, row.n) for row in found.collect()) == sorted(
        (f"in-{n}/in", n) for n in range(100)
    )
    texts = [row.value for row in spark.read.text(lines).collect()]
    assert sorted(texts) == sorted(f'{{"n": {n}}}' for n in range(100))


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        (
            {"columns": {"total": "data.totl"}},
            "Column total of db cannot be 'data.totl': [FIELD_NOT_FOUND] No such struct field "
            "`totl` in `id`, `total`.",
        ),
        ({"schema": "id STRIN"}, "The schema of db cannot be used: "),
        (
            {"format": "nosuch"},
            "db: Spark has no format 'nosuch'. Correct it, or name the package that has it with "
            "--conf spark.jars.packages=GROUP:NAME:VERSION.",
        ),
    ],
)
def test_a_sink_that_can_never_write_is_rejected_before_anything_runs(run, derby, fields, reported):
    with pytest.raises(SetupError) as refused:
        run(orders(1).sink("db", Spark(**into(derby, **fields))))
    assert str(refused.value).startswith(reported)


def test_an_error_never_shows_a_secret(run, derby, monkeypatch):
    monkeypatch.setenv("TEST_DRIVER", "hidden.Driver")
    options = {name: text for name, text in derby.options.items() if name != "driver"}
    secret = {"options": options, "secret_options": {"driver": {"env": "TEST_DRIVER"}}}
    reported = []

    def has_failed(status):
        reported.extend(view.failure for view in status.vertices if view.failure)
        return bool(reported)

    pipeline = orders(1).sink("db", Spark(**into(derby, **secret)))
    run(pipeline, watcher=StopWhen(has_failed))

    assert set(reported) == {"ClassNotFoundException: ***"}
    assert "hidden" not in repr(pipeline.spec)
