"""A whole benchmark in miniature: every contestant does its work on real parts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks import (
    contest,
    end_to_end,
    files,
    functions,
    low_rates,
    peers,
    pubsub,
    queues,
    serving,
    sqs,
    web,
)
from benchmarks import kafka as kafka_contest
from benchmarks import postgres as postgres_contest
from benchmarks import pulsar as pulsar_contest
from benchmarks.__main__ import app
from benchmarks.figures import Figures
from benchmarks.ours import EBBFLOW
from benchmarks.programme import SHORT, Programme, _queues, measured
from benchmarks.serving import Demand

every_part = pytest.mark.long
"""Every run of the tests measures one part: all contestants between buffers."""

TINY = Programme(
    sizes=(100,),
    rounds=1,
    seconds=0.01,
    costs=(50,),
    rates=(100,),
    latency_seconds=0.5,
    messages=(4_000,),
    vertices=(2,),
    partitions=(2,),
    nacked=(50,),
    parked=(2_000,),
    growth_messages=4_000,
    starts=0,
    idle_seconds=0.1,
    low_rates=(100,),
    low_seconds=1.0,
    cores=(),
    demand=Demand(50, 1.0, 0.2, 20, 200),
)
# Even a small measurement of Spark's own streaming takes as long as all the others together.
QUICK = (EBBFLOW, peers.FLOOR, peers.NATS_PY, peers.FASTSTREAM)


@pytest.mark.slow
@pytest.mark.long
def test_all_but_sparks_own_streaming_are_measured_in_one_run(spark, tmp_path):
    lines_printed = []
    quick = replace(TINY, who=QUICK)

    figures = measured(
        quick, ["rates", "calls", "latency", "growth"], seed=1, say=lines_printed.append
    )

    assert {(case.job, case.name) for case in figures.cases} == {
        *((contest.HOP, name) for name in (*QUICK, peers.NATS_PY_64)),
        *((job, EBBFLOW) for job in (contest.SINK, contest.MONO, contest.THREE)),
    }
    assert all(case.rate > 0 for case in figures.cases)
    assert {(one.name, one.way) for one in figures.latencies} == {
        (EBBFLOW, "one hop"),
        (EBBFLOW, "3 hops"),
        (peers.NATS_PY, "one hop"),
    }
    grown = [rounds[0].grows for rounds in figures.points]
    assert grown == ["messages", "vertices", "partitions", "% nacked", "parked"]
    assert figures.left_out == []
    assert [(one.milliseconds, one.rate > 0) for one in figures.calls] == [(50, True)]
    lines = (figures.cases, figures.calls, figures.latencies, figures.points)
    assert len(lines_printed) == sum(map(len, lines))

    written = files.write(figures, tmp_path, seed=1)

    assert [file.name for file in written] == ["bench.json", "bench.md", "bench.svg", "bench.png"]
    stored = json.loads(written[0].read_text())
    assert stored["machine"]["cores"] > 0
    assert (stored["seed"], len(stored["cases"])) == (1, len(figures.cases))


@every_part
@pytest.mark.slow
def test_sparks_own_streaming_is_measured_next_to_the_others(spark):
    some = replace(TINY, who=(peers.STRUCTURED,))

    figures = measured(some, ["rates"], seed=1, say=lambda _: None)

    assert [(case.job, case.name) for case in figures.cases] == [(contest.HOP, peers.STRUCTURED)]
    assert figures.cases[0].rate > 0


@every_part
@pytest.mark.slow
def test_every_source_and_sink_is_measured(spark, monkeypatch):
    monkeypatch.setenv("EBBFLOW_BENCH_BENTO", "/nowhere/bento")

    figures = measured(TINY, ["end-to-end", "sources", "sinks"], seed=1, say=lambda _: None)

    assert figures.left_out == ["Bento: there is no /nowhere/bento"]
    assert {case.name for case in figures.of(contest.END_TO_END)} == {
        *(end_to_end.MONO, end_to_end.PIPELINE, end_to_end.BULK),
        *(end_to_end.BATCHED, end_to_end.FASTSTREAM),
    }
    assert {case.name for case in figures.of(contest.SOURCE)} == {
        *("jetstream", "nats", "user-defined", "user-defined, columns", "generator"),
        *("Parquet files (spark)", web.HTTP, web.BARE, web.UVICORN),
    }
    assert {case.name for case in figures.of(contest.SINK_ALONE)} == {
        *("jetstream", "nats", "file", "Parquet files (spark)", "user-defined", "blackhole"),
        *("user-defined, columnar", "log", "http, single posts", "http, 500 in a request"),
    }
    assert all(case.rate > 0 for case in figures.cases)


@every_part
@pytest.mark.slow
def test_kafka_is_measured_next_to_a_bare_loop(spark, kafka, monkeypatch):
    monkeypatch.setenv("EBBFLOW_BENCH_BENTO", "/nowhere/bento")

    figures = measured(TINY, ["kafka"], seed=1, say=lambda _: None)

    assert [(case.job, case.name) for case in figures.cases] == [
        (contest.KAFKA, kafka_contest.MONO),
        (contest.KAFKA, kafka_contest.LOOP),
        (contest.SOURCE, "kafka"),
        (contest.KAFKA, kafka_contest.LOOP),
        (contest.SINK_ALONE, "kafka"),
    ]


@every_part
@pytest.mark.slow
def test_pulsar_is_measured_next_to_a_bare_loop(spark, pulsar_broker):
    figures = measured(TINY, ["pulsar"], seed=1, say=lambda _: None)

    assert [(case.job, case.name) for case in figures.cases] == [
        (contest.PULSAR, queues.MONO),
        (contest.PULSAR, pulsar_contest.LOOP),
    ]


@every_part
@pytest.mark.slow
def test_sqs_is_measured_next_to_a_bare_loop(spark, sqs_server):
    figures = measured(TINY, ["sqs"], seed=1, say=lambda _: None)

    assert [(case.job, case.name) for case in figures.cases] == [
        (contest.SQS, queues.MONO),
        (contest.SQS, sqs.LOOP),
    ]


@every_part
@pytest.mark.slow
def test_pubsub_is_measured_next_to_a_bare_loop(spark, pubsub_server):
    figures = measured(TINY, ["pubsub"], seed=1, say=lambda _: None)

    assert [(case.job, case.name) for case in figures.cases] == [
        (contest.PUBSUB, queues.MONO),
        (contest.PUBSUB, pubsub.LOOP),
    ]


def test_a_service_that_is_missing_is_left_out_and_the_figures_say_why():
    def missing():
        raise queues.NoService("these packages are missing: moto")

    figures = Figures()
    _queues("sqs", missing, figures, ground=None, programme=TINY, say=print)

    assert figures.left_out == ["sqs: these packages are missing: moto"]


@every_part
@pytest.mark.slow
def test_postgres_is_measured_next_to_bare_loops(spark, postgres, monkeypatch):
    monkeypatch.setenv("EBBFLOW_BENCH_BENTO", "/nowhere/bento")

    figures = measured(TINY, ["postgres"], seed=1, say=lambda _: None)

    peers = (postgres_contest.JDBC,)  # where its driver is at hand
    cases = [case for case in figures.cases if case.name not in peers]
    assert [(case.name, case.mode) for case in cases] == [
        (EBBFLOW, postgres_contest.WRITES),
        (EBBFLOW, f"{postgres_contest.WRITES}, update"),
        (postgres_contest.LOOP, postgres_contest.WRITES),
        (EBBFLOW, postgres_contest.READS),
        (postgres_contest.LOOP, postgres_contest.READS),
    ]


@every_part
@pytest.mark.slow
@pytest.mark.parametrize("language", ["go"])
def test_functions_are_measured_over_the_wire_and_in_process(spark, function_in, language):
    function_in(language)
    some = replace(TINY, who=(functions.GO, "handler"))

    figures = measured(some, ["functions"], seed=1, say=lambda _: None)

    assert figures.left_out == []
    assert [(case.name, case.mode) for case in figures.of(contest.FUNCTIONS)] == [
        (functions.GO, functions.WIRE),
        (functions.GO_BATCH, functions.WIRE),
        (functions.PYNUMAFLOW, functions.IN_PROCESS),
        (functions.OWN, functions.IN_PROCESS),
        (functions.GO, functions.GRPCIO),
    ]
    assert all(case.rate > 0 for case in figures.cases)


@every_part
@pytest.mark.slow
def test_a_low_rate_is_measured_with_all_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(low_rates, "_SETTLED", 0.5)

    found = low_rates.at(tmp_path, 50, seconds=2.0)

    assert 0 < found.p50 <= found.p99
    assert 50 <= found.messages <= 150
    assert found.shares.nats > 0
    assert found.shares.total == pytest.approx(
        found.shares.driver + found.shares.jvm + found.shares.workers + found.shares.nats
    )


@every_part
@pytest.mark.slow
def test_every_serving_contestant_answers_requests(tmp_path):
    figures = measured(TINY, ["serving"], seed=1, say=lambda _: None)

    assert [one.name for one in figures.served] == [*serving.CONTESTANTS]
    assert all(0 < one.p50 <= one.p99 <= one.max for one in figures.served)
    assert all(one.cores > 0 and one.crowd_rate > 0 for one in figures.served)


def test_an_unknown_part_is_rejected_before_anything_is_started():
    result = CliRunner().invoke(app, ["--only", "rates,speed"])

    assert result.exit_code == 2
    assert "'speed' is not one of: rates, end-to-end, sources, sinks" in result.output


def test_the_short_programme_measures_what_the_goals_need():
    assert {1_000} <= set(SHORT.rates)
    assert {0, 10} <= set(SHORT.nacked)
