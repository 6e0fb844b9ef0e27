"""``ebbflow sql``: what it prints, without Spark unless it has to start."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.domain.outcome import DeadLetter
from ebbflow.nats.link import Link
from ebbflow.spark.audit import spark_query as on_spark
from ebbflow.spark.audit.files import AuditResult
from ebbflow.streams.catalogue import audit_config
from ebbflow.streams.names import Names
from ebbflow.streams.provision import ensure
from tests.connectors.serving.desk import at
from tests.operations.test_trace import write_table
from tests.streams.audited import Audited

Sql = Callable[..., Result]


@pytest.fixture
def audited(link: Link, names: Names, tmp_path: Path) -> Audited:
    audited = Audited(link, names, str(tmp_path / "table"))
    audited.settle("in", "in-7", at=at(1))
    audited.settle("work", "in-7", outcomes={0: DeadLetter("no", "Bad: 1")}, at=at(2))
    write_table(audited, tmp_path / "table")
    return audited


@pytest.fixture
def sql(audited: Audited, state: Path) -> Sql:
    """``ebbflow sql`` on the test's own pipeline."""

    def invoke(*args: str) -> Result:
        command = ["sql", audited.names.pipeline, *args, "--state", str(state)]
        return CliRunner().invoke(app, command)

    return invoke


@pytest.fixture
def spark_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries for which Spark would have been started."""
    queries: list[str] = []

    @contextmanager
    def open_query(_: Any) -> Any:
        yield lambda query: (queries.append(query), AuditResult(["n"], lambda: iter([(1,)])))[1]

    monkeypatch.setattr(on_spark, "open_query", open_query)
    return queries


QUERY = "SELECT vertex, id, ended, day, error FROM audit ORDER BY ended"


def test_rows_are_printed_as_a_table_as_csv_and_as_json(sql: Sql, spark_queries: list[str]) -> None:
    assert "│ work   │ in-7 │ 2027-01-15 08:00:02.000 │ 2027-01-15 │ Bad: 1 │" in sql(QUERY).stdout
    assert sql(QUERY, "--csv").stdout.splitlines() == [
        "vertex,id,ended,day,error",
        "in,in-7,2027-01-15 08:00:01.000,2027-01-15,",
        "work,in-7,2027-01-15 08:00:02.000,2027-01-15,Bad: 1",
    ]
    (first, _) = sql(QUERY, "--json").stdout.splitlines()
    assert json.loads(first) == {
        "vertex": "in",
        "id": "in-7",
        "ended": "2027-01-15 08:00:01.000",
        "day": "2027-01-15",
        "error": None,
    }
    limited = sql(QUERY, "--limit", "1")
    assert "work" not in limited.stdout
    assert limited.stderr == "These are the first 1 rows; --limit N prints more.\n"
    assert spark_queries == []


def test_types_are_printed_as_spark_prints_them(sql: Sql) -> None:
    query = "SELECT sum(sent), avg(sent), max(ended) - min(ended) AS took, count(*) > 1 FROM audit"
    assert json.loads(sql(query, "--json").stdout) == {
        "sum(sent)": 1,
        "avg(sent)": 0.5,
        "took": str(timedelta(seconds=1)),
        "(count(1) > 1)": True,
    }
    letters = sql("SELECT number, value, last_seen IS NULL AS n FROM dead_letters", "--json")
    assert json.loads(letters.stdout).keys() == {"number", "value", "n"}


def test_a_query_that_needs_spark_is_refused_with_how_to_start_it(
    sql: Sql, spark_queries: list[str]
) -> None:
    refused = sql("SELECT window(ended, '1 hour') FROM audit")
    assert refused.exit_code == 3
    assert refused.stderr.strip().endswith(
        "The query does not work: window() is not among the functions that run without Spark; "
        "--spark runs a query on Spark's own engine."
    )
    assert spark_queries == []
    assert sql("SELECT window(ended, '1 hour') FROM audit", "--spark", "--csv").stdout == "n\n1\n"
    assert spark_queries == ["SELECT window(ended, '1 hour') FROM audit"]


def test_spark_runs_queries_over_other_tables(
    audited: Audited, state: Path, spark_queries: list[str]
) -> None:
    names = Names(f"{audited.names.pipeline}-delta")
    table = {"format": "delta", "options": {"path": "/elsewhere"}, "secretOptions": {}}
    audited.link.run(ensure(audited.link.client, audit_config(names, json.dumps(table))))
    result = CliRunner().invoke(app, ["sql", QUERY, "--csv", "--state", str(state)])
    assert (result.stdout, spark_queries) == ("n\n1\n", [QUERY])
