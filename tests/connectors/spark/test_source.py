"""Spark sources: every row of any format becomes a message exactly once, even across restarts."""

from __future__ import annotations

import io
import json
import os
import signal
from collections import Counter
from functools import partial

import pytest

from ebbflow import Limits, MonoVertex, Pipeline, Response
from ebbflow.connectors import Blackhole, Spark
from ebbflow.connectors.spark.source import SCHEMA, Storing, store_on_worker
from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.status.run_report import Watcher
from ebbflow.status.terminal import PlainLines
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    return place


def fill(folder, name, numbers):
    lines = "".join(json.dumps({"n": n, "at": "2024-05-06T07:08:09Z"}) + "\n" for n in numbers)
    draft = folder.parent / name
    draft.write_text(lines, encoding="utf-8")
    draft.rename(folder / f"{name}.json")


def json_in(folder, **fields):
    return {
        "format": "json",
        "options": {"path": str(folder)},
        "schema": "n INT, at TIMESTAMP",
    } | fields


def test_rows_become_messages_as_the_expressions_say(run, folder, journal):
    fill(folder, "one", [1, 2])

    def look(data):
        journal.write(
            *([d.value.decode(), d.keys, d.headers, d.event_time.isoformat()] for d in data)
        )
        journal.write(*(d.id for d in data))
        return [Response.ok(datum.id) for datum in data]

    source = json_in(
        folder,
        value="CAST(n AS STRING)",
        keys="concat('k', n)",
        event_time="at",
        id="n",
        headers={"half": "n / 2", "absent": "CAST(NULL AS STRING)"},
    )
    run(Pipeline("test").source("in", Spark(**source)).sink("out", look))

    *messages, first, second = journal.read()
    assert messages == [
        ["1", ["k1"], {"half": "0.5"}, "2024-05-06T07:08:09+00:00"],
        ["2", ["k2"], {"half": "1.0"}, "2024-05-06T07:08:09+00:00"],
    ]
    assert (first[:5], second[:5]) == ("in-1-", "in-2-")


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_row_without_expressions_becomes_json_and_a_run_resumes_where_it_stopped(
    run, folder, store, journal
):
    fill(folder, "one", range(2_000))
    source = {"format": "json", "options": {"path": str(folder)}}  # the schema is inferred
    pipeline = Pipeline("test").source("in", Spark(**source)).sink("out", store)
    run(pipeline)
    fill(folder, "two", range(2_000, 2_010))
    summary = run(pipeline)

    assert summary.vertices["out"].read == 10
    numbers = Counter(json.loads(text)["n"] for text in journal.read())
    assert numbers == dict.fromkeys(range(2_010), 1)

    assert run(pipeline, fresh=True).vertices["out"].read == 2_010


def test_a_format_that_cannot_be_streamed_is_read_once(run, spark, store, journal):
    url = "jdbc:derby:memory:source;create=true"
    options = {"url": url, "dbtable": "orders", "driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    table = spark.range(1_500).selectExpr("id", "CAST(id AS STRING) AS value")
    table.write.format("jdbc").options(**options).save()
    source = {"format": "jdbc", "options": options}
    pipeline = MonoVertex("test").source(Spark(**source)).sink(store)

    assert run(pipeline).vertices["test"].read == 1_500
    assert run(pipeline).vertices["test"].read == 0
    assert Counter(map(int, journal.read())) == dict.fromkeys(range(1_500), 1)


@pytest.mark.long
@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_stop_waits_for_the_micro_batch_so_that_nothing_is_stored_twice(
    run, folder, store, journal
):
    class UntilSome(Watcher):
        def look(self, status):
            if status["out"].counts.read:
                os.kill(os.getpid(), signal.SIGINT)

    fill(folder, "one", range(30_000))
    source = json_in(folder, value="CAST(n AS STRING)")
    limits = Limits(buffer_max_length=2, buffer_usage_limit=100)
    pipeline = Pipeline("test").source("in", Spark(**source), limits=limits).sink("out", store)
    assert run(pipeline, watcher=UntilSome(), drain=False).ended == "stopped"
    run(pipeline)

    assert Counter(map(int, journal.read())) == dict.fromkeys(range(30_000), 1)


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_repeated_task_stores_the_same_rows_once_and_different_rows_too(spark, tmp_path):
    names = Names("test")
    with start_embedded(tmp_path / "state") as server, open_link(server) as link:
        link.run(provision.ensure(link.client, catalogue.buffer_config(names, "in", 0, 100)))
        storing = Storing(server, "test", "in", 1, 1_000_000, query="read")

        def stored(*values):
            rows = spark.sql(f"SELECT explode(array{values}) AS value")
            rows.mapInArrow(partial(store_on_worker, storing=storing), SCHEMA).collect()
            return link.run(api.read_state(link.client, names.buffer("in", 0))).messages

        assert stored("a", "b") == 1
        assert stored("a", "b") == 1
        assert stored("a", "c") == 2


def test_a_row_too_large_for_a_message_becomes_a_dead_letter(
    run, spark, store, journal, server_letters, tmp_path
):
    rows = spark.sql("SELECT 'fine' AS value UNION ALL SELECT repeat('x', 9000000)")
    rows.write.parquet(str(tmp_path / "large"))
    source = {"format": "parquet", "options": {"path": str(tmp_path / "large")}, "stream": False}
    counts = run(Pipeline("test").source("in", Spark(**source)).sink("out", store)).vertices["in"]

    assert journal.read() == ["fine"]
    (letter,) = server_letters("test")
    assert (letter.vertex, letter.reason, letter.size) == ("in", "message too large", 9_000_000)
    assert (counts.read, counts.done, counts.dead_lettered) == (2, 1, 1)


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_failed_query_reports_the_cause_and_is_restarted(run, folder, store, journal):
    reported, plain = [], io.StringIO()
    lines = PlainLines(io.StringIO(), plain)

    class Watching(Watcher):
        def look(self, status):
            lines.look(status)
            if status["in"].failure and not reported:
                reported.append(status["in"].failure)
                (folder / "bad.json").write_text('{"n": 2}\n')

    (folder / "bad.json").write_text("no JSON\n")
    source = json_in(folder, options={"path": str(folder), "mode": "FAILFAST"}, value="n")
    run(Pipeline("test").source("in", Spark(**source)).sink("out", store), watcher=Watching())

    assert reported[0].startswith("JsonParseException: Unrecognized token 'no'")
    assert reported[0].endswith(f"(in file://{folder}/bad.json)")
    assert plain.getvalue().count(f"in: restarting: {reported[0]}") == 1
    assert journal.read() == ["2"]


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        (
            {"options": {"path": "/no/such/folder"}},
            "in cannot read json: [PATH_NOT_FOUND] Path does not exist: /no/such/folder. Correct "
            "its source.",
        ),
        (
            {"value": "nn + 1"},
            "value of in cannot be 'nn + 1': [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column",
        ),
        (
            {"keys": "n +"},
            "keys of in cannot be 'n +': [PARSE_SYNTAX_ERROR] Syntax error at or near end of input",
        ),
        (
            {"headers": {"a": "nosuch(n)"}},
            "header a of in cannot be 'nosuch(n)': [UNRESOLVED_ROUTINE]",
        ),
        ({"format": "nosuch"}, "in: Spark has no format 'nosuch'."),
    ],
)
def test_an_invalid_source_is_rejected_with_the_expression_and_the_reason(
    run, folder, fields, reported
):
    source = json_in(folder, **fields)
    with pytest.raises(SetupError) as refused:
        run(Pipeline("test").source("in", Spark(**source)).sink("out", Blackhole()))
    assert str(refused.value).startswith(reported)
