"""SQL and DataFrame vertices: the result of a query is forwarded, and no message is lost."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from ebbflow import Backoff, Limits, Pipeline, Response
from ebbflow.builders import Breaker
from ebbflow.cli.main import app
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.errors import SetupError
from ebbflow.nats.embedded import StateFolder
from ebbflow.nats.locate import open_link
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from tests.spark.runs import Failures, StopWhen

pytestmark = pytest.mark.slow

NUMBER = "CAST(get_json_object(CAST(value AS STRING), '$.value') AS INT)"


@pytest.fixture
def store(journal):
    def sink(data):
        journal.write(*([datum.id, datum.value.decode(), datum.deliveries] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return sink


class FailureLog(Failures):
    """Remembers why vertices failed."""

    def __init__(self):
        self.failures = []

    def look(self, status):
        self.failures += [view.failure for view in status.vertices if view.failure]


def numbers(count):
    return Pipeline("test").source("in", Generator(messages=count, key_count=2))


def test_each_row_of_a_query_is_routed_by_its_tags(run, journal, another_journal):
    def look(to):
        def sink(data):
            to.write(*([d.id, d.value.decode(), d.keys, d.headers] for d in data))
            return [Response.ok(datum.id) for datum in data]

        return sink

    query = f"""
        SELECT id, CAST({NUMBER} AS STRING) AS value, IF({NUMBER} % 2 = 0, 'even', 'odd') AS tags,
               IF({NUMBER} = 3, array('mine'), NULL) AS keys, map('a', 'b') AS headers
        FROM messages WHERE {NUMBER} < 90
    """
    pipeline = numbers(100).map("q", sql=query)
    pipeline = pipeline.sink("even", look(journal), tags="even")
    summary = run(pipeline.sink("odd", look(another_journal), after="q", tags="odd"))

    even, odd = sorted(journal.read()), sorted(another_journal.read())
    assert sorted(int(value) for _, value, _, _ in even) == list(range(0, 90, 2))
    assert sorted(int(value) for _, value, _, _ in odd) == list(range(1, 90, 2))
    assert ["in-3/q", "3", ["mine"], {"a": "b"}] in odd
    assert ["in-4/q", "4", ["key-0"], {"a": "b"}] in even
    counts = summary.vertices["q"]
    assert (counts.read, counts.done, counts.dropped, counts.written) == (100, 90, 10, 90)


def test_a_dataframe_function_can_return_any_number_of_messages(run, store, journal):
    from pyspark.sql import functions as F

    def twice(messages):
        number = F.get_json_object(F.col("value").cast("string"), "$.value")
        parts = F.explode(F.array(F.concat(F.lit("a"), number), F.concat(F.lit("b"), number)))
        return messages.select("id", parts.alias("value")).where("value != 'b7'")

    run(numbers(50).map("twice", dataframe=twice).sink("out", store))

    expected = {f"{letter}{n}" for letter in "ab" for n in range(50)} - {"b7"}
    assert Counter(value for _, value, _ in journal.read()) == dict.fromkeys(expected, 1)
    ids = [message_id for message_id, _, _ in journal.read()]
    assert len(set(ids)) == 99
    assert {"in-3/twice", "in-3/twice.1"} <= set(ids)


def test_a_query_can_aggregate_batches_of_a_limited_size(run, store, journal):
    query = f"SELECT to_json(struct(count(*) AS n, sum({NUMBER}) AS total)) AS value FROM messages"

    limits = Limits(read_batch_size=40)
    summary = run(numbers(100).map("q", sql=query, limits=limits).sink("out", store))

    found = [json.loads(value) for _, value, _ in journal.read()]
    assert all(one["n"] <= 40 for one in found)
    assert sum(one["n"] for one in found) == 100
    assert sum(one["total"] for one in found) == sum(range(100))
    assert len({message_id for message_id, _, _ in journal.read()}) == len(found)
    assert (summary.vertices["q"].done, summary.vertices["q"].written) == (100, len(found))


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_only_the_messages_that_a_query_fails_on_are_dead_lettered(
    run, store, journal, server_letters
):
    query = f"SELECT id, CAST(100 / ({NUMBER} - 47) AS STRING) AS value FROM messages"

    more = {"on_error": Backoff("100ms", steps=1), "limits": Limits(read_batch_size=20)}
    failure_log = FailureLog()
    summary = run(numbers(60).map("q", sql=query, **more).sink("out", store), watcher=failure_log)

    assert sorted(message_id for message_id, _, _ in journal.read()) == sorted(
        f"in-{n}/q" for n in range(60) if n != 47
    )
    (letter,) = server_letters("test")
    assert (letter.id, letter.reason, letter.deliveries) == ("in-47", "SparkArithmeticException", 2)
    assert letter.error.startswith("SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.")
    assert letter.traceback is None
    assert summary.vertices["q"].redelivered == 1
    assert failure_log.failures == []


@pytest.mark.long
def test_an_exception_of_a_function_on_a_message_is_in_its_dead_letter(run, store, server_letters):
    from pyspark.sql import functions as F

    @F.udf("string")
    def fragile(value):
        if b'"value":3}' in bytes(value):
            raise LookupError("three is not known")
        return "fine"

    def checked(messages):
        return messages.select("id", fragile("value").alias("value"))

    run(numbers(5).map("q", dataframe=checked, on_error=Backoff("1s", steps=0)).sink("out", store))

    (letter,) = server_letters("test")
    assert (letter.id, letter.error) == ("in-3", "LookupError: three is not known")


def test_a_query_can_nack_and_sees_the_number_of_deliveries(run, store, journal):
    query = f"""
        SELECT id, CAST(deliveries AS STRING) AS value, {NUMBER} = 4 AND deliveries < 3 AS nack,
               200 AS nack_delay, 'too early' AS nack_reason
        FROM messages
    """
    summary = run(numbers(10).map("q", sql=query).sink("out", store))

    values = {message_id: value for message_id, value, _ in journal.read()}
    assert values == {f"in-{n}/q": "3" if n == 4 else "1" for n in range(10)}
    assert summary.vertices["q"].redelivered == 2


def test_query_vertices_can_have_several_partitions(run, store, journal):
    query = "SELECT id, value FROM messages"
    pipeline = numbers(900).map("q", sql=query, partitions=2)
    summary = run(pipeline.map("p", sql=query, partitions=2).sink("out", store), epoch="2s")

    ids = Counter(message_id for message_id, _, _ in journal.read())
    assert ids == {f"in-{n}/q/p": 1 for n in range(900)}
    assert summary.vertices["p"].read == 900


def test_a_function_can_create_dataframes_without_changing_the_session(run, spark, store, journal):
    from pyspark.sql import SparkSession

    def looked_up(messages):
        names = messages.sparkSession.createDataFrame([("x",)], "name STRING")
        return messages.selectExpr("id", f"'{names.schema.names[0]}' AS value")

    run(numbers(3).map("q", dataframe=looked_up).sink("out", store))

    assert [value for _, value, _ in journal.read()] == ["name"] * 3
    assert SparkSession.getActiveSession() is spark


def test_views_and_functions_of_the_session_can_be_used(run, spark, store, journal):
    names = "SELECT * FROM VALUES (0, 'zero'), (1, 'one') AS names(n, name)"
    spark.sql(names).createOrReplaceTempView("names")
    spark.udf.register("shouted", str.upper)
    query = f"SELECT id, shouted(name) AS value FROM messages JOIN names ON n = {NUMBER} % 2"

    run(numbers(4).map("q", sql=query).sink("out", store))

    assert Counter(value for _, value, _ in journal.read()) == {"ZERO": 2, "ONE": 2}


def raising(_messages):
    raise KeyError("stock")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"sql": "SELEC id FROM messages"},
            "The SQL of q cannot work: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. "
            "(line 1, pos 0). Correct it.",
        ),
        (
            {"sql": "SELECT id, valu AS value FROM messages"},
            "The SQL of q cannot work: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or "
            "function parameter with name `valu` cannot be resolved. Did you mean one of the "
            "following? [`value`, `id`, `keys`, `headers`, `metadata`]. line 1 pos 11. Correct it.",
        ),
        (
            {"sql": "SELECT id, deliveries AS value FROM messages"},
            "q: returned struct<id:string,value:bigint>. Return a column 'value' of type STRING or "
            "BINARY, for example to_json(struct(*)), and if you like 'id', 'keys', 'tags', "
            "'event_time' and 'headers'.",
        ),
        (
            {"sql": "SELECT value, true AS nack FROM messages"},
            "q: returned a column 'nack' without 'id'. Return the id of the message to nack as "
            "well.",
        ),
        (
            {"dataframe": raising},
            "The DataFrame function of q raised KeyError: 'stock'. It was called with a DataFrame "
            "without rows; return one without rows then.",
        ),
        ({"dataframe": len}, "The DataFrame function of q raised TypeError: "),
        ({"dataframe": str}, "q: returned str, not a DataFrame. Return a column 'value' of type"),
    ],
)
def test_an_invalid_query_is_rejected_before_anything_runs(run, step, message):
    with pytest.raises(SetupError) as refused:
        run(numbers(1).map("q", **step).sink("out", Blackhole()))
    assert str(refused.value).startswith(message)


def test_a_query_that_returns_unknown_ids_fails_the_vertex_and_loses_nothing(run, tmp_path):
    failures = []

    def has_failed(status):
        failures.extend(filter(None, [status["q"].failure]))
        return bool(failures)

    query = "SELECT concat(id, 'x') AS id, value FROM messages"
    pipeline = numbers(5).map("q", sql=query).sink("out", Blackhole())
    summary = run(pipeline, watcher=StopWhen(has_failed))

    assert failures[0] == (
        "ContractViolation: q: returned the unknown id 'in-0x' as id. Return the id of an input "
        "for each row, or leave the column out."
    )
    assert summary.vertices["q"].read == 0

    fixed = numbers(5).map("q", sql="SELECT id, value FROM messages").sink("out", Blackhole())
    assert run(fixed).totals["out"].read == 5


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_a_partition_claimed_by_another_task_is_settled_by_one_of_the_two(
    run, store, journal, tmp_path
):
    class Claiming(FailureLog):
        claimed = False

        def look(self, status):
            super().look(status)
            if not self.claimed and status["q"].counts.done:
                self.claimed = True
                with open_link(StateFolder(tmp_path / "state").find_running_server()) as link:
                    link.run(PositionStore(link.client, Names("test"), "q", 0).claim())

    source = Pipeline("test").source("in", Generator(messages=900, rpu=300))
    failure_log = Claiming()
    run(
        source.map("q", sql="SELECT id, value FROM messages").sink("out", store),
        watcher=failure_log,
    )

    assert "another task now owns partition 0 of q" in failure_log.failures
    ids = Counter(message_id for message_id, _, _ in journal.read())
    assert ids == {f"in-{n}/q": 1 for n in range(900)}


@pytest.mark.guarantee("pauses-hold")
def test_a_paused_query_reads_nothing_until_it_is_resumed(run, store, tmp_path):
    state = ["--state", str(tmp_path / "state")]
    seen = []

    class Resuming(Failures):
        def look(self, status):
            super().look(status)
            if status["in"].counts.written == 10 and len(seen) < 4:
                seen.append(status["q"].counts.read)
                if len(seen) == 4:
                    seen.append(CliRunner().invoke(app, ["resume", "test", *state]).output)

    def pipeline(count):
        return numbers(count).map("q", sql="SELECT * FROM messages").sink("out", store)

    run(pipeline(10))
    assert CliRunner().invoke(app, ["pause", "test", "q", *state]).exit_code == 0
    summary = run(pipeline(20), watcher=Resuming())
    assert seen == [0, 0, 0, 0, "Resumed: q.\n"]
    assert summary.vertices["q"].done == 10


def test_a_query_that_fails_for_many_messages_is_halted_until_a_new_run(run, store):
    halted = []

    def is_halted(status):
        halted.append(status["work"].halted)
        return halted[-1] is not None

    def pipeline(query):
        limit = Breaker(share=0.25, window=20)
        work = numbers(20).map("work", sql=query, on_error=Backoff("1s", steps=0), breaker=limit)
        return work.sink("out", store)

    broken = f"SELECT id, IF({NUMBER} % 2 = 0, value, raise_error('broken')) AS value FROM messages"
    first = run(pipeline(broken), watcher=StopWhen(is_halted), epoch="3s")
    assert first.ended == "stopped"
    assert first.vertices["work"].dead_lettered == 5
    assert "5 of the last 20 messages became dead letters" in halted[-1]
    assert "broken" in halted[-1]

    second = run(pipeline("SELECT id, value FROM messages"), timeout="240s")
    assert second.ended == "drained"
    assert first.vertices["work"].done + 5 + second.vertices["work"].done == 20
