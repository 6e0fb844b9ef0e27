"""Goals are ratios within one run; goals without measurements are left out."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import (
    contest,
    cores,
    end_to_end,
    functions,
    kafka,
    observed,
    peers,
    postgres,
    pubsub,
    queues,
    serving,
    sqs,
    web,
)
from benchmarks.calls import CallCost
from benchmarks.contest import Case, Round
from benchmarks.cores import OnCores
from benchmarks.figures import Figures
from benchmarks.files import write
from benchmarks.goals import goals
from benchmarks.growth import Point
from benchmarks.latency import Latency
from benchmarks.low_rates import LowRate
from benchmarks.observed import ObservedCase, ObservedRound
from benchmarks.ours import EBBFLOW
from benchmarks.serving import Served
from benchmarks.start import Shares
from benchmarks.tables import markdown, tables


def case(name, mode, rate, job=contest.HOP, size=100):
    rounds = [Round(rate * factor, 1e6 / rate) for factor in (0.9, 1.0, 1.1)]
    return Case(job, name, job, mode, size, 1_000, rounds)


FIGURES = Figures(
    cases=[
        case(EBBFLOW, "unary", 300_000),
        case(EBBFLOW, "unary", 1, size=1_000),
        case(EBBFLOW, "columnar", 900_000),
        case(peers.NATS_PY, "unary", 5_000),
        case(peers.FASTSTREAM, "unary", 50_000),
        case(peers.FLOOR, "columnar", 1_200_000),
        case(EBBFLOW, "unary", 150_000, job=contest.THREE),
        case(end_to_end.MONO, "unary", 90_000, job=contest.END_TO_END),
        case(end_to_end.BULK, "unary", 120_000, job=contest.END_TO_END),
        case(end_to_end.BULK, end_to_end.READS, 190_000, job=contest.END_TO_END),
        case(end_to_end.BENTO, "unary", 50_000, job=contest.END_TO_END),
        case(end_to_end.BATCHED, "unary", 10_000, job=contest.END_TO_END),
        case(kafka.MONO, "unary", 90_000, job=contest.KAFKA),
        case(kafka.LOOP, "unary", 160_000, job=contest.KAFKA),
        case(kafka.BENTO, "unary", 60_000, job=contest.KAFKA),
        case(queues.MONO, "unary", 40_000, job=contest.PULSAR),
        case(queues.MONO, "unary", 900, job=contest.SQS),
        case(sqs.LOOP, "unary", 1_000, job=contest.SQS),
        case(queues.MONO, "unary", 9_000, job=contest.PUBSUB),
        case(pubsub.LOOP, "unary", 20_000, job=contest.PUBSUB),
        case(EBBFLOW, postgres.WRITES, 120_000, job=contest.POSTGRES),
        case(postgres.LOOP, postgres.WRITES, 160_000, job=contest.POSTGRES),
        case(EBBFLOW, postgres.READS, 50_000, job=contest.POSTGRES),
        case(postgres.LOOP, postgres.READS, 100_000, job=contest.POSTGRES),
        case(web.HTTP, web.SINGLE, 3_000, job=contest.SOURCE),
        case(web.BARE, web.SINGLE, 5_000, job=contest.SOURCE),
        case("jetstream", "", 130_000, job=contest.SOURCE),
        case("file", "", 200_000, job=contest.SINK_ALONE),
        case(functions.GO, functions.WIRE, 90_000, job=contest.FUNCTIONS),
        case(functions.GO, functions.GRPCIO, 9_000, job=contest.FUNCTIONS),
        case(functions.PYNUMAFLOW, functions.IN_PROCESS, 200_000, job=contest.FUNCTIONS),
    ],
    calls=[CallCost(0, 400_000.0), CallCost(50, 9_500.0), CallCost(400, 1_000.0)],
    latencies=[
        Latency(EBBFLOW, 1_000, "one hop", 100, 4.0, 5.0, 40.0, 100.0),
        Latency(peers.NATS_PY, 1_000, "one hop", 100, 1.0, 2.0, 4.0, 10.0),
    ],
    points=[
        [Point("% nacked", 0, 100.0)],
        [Point("% nacked", 10, 90.0), Point("% nacked", 10, 80.0), Point("% nacked", 10, 95.0)],
        [Point("messages", 1_000_000, 100.0, 500.0, 300.0, 330.0)],
    ],
    starts=[6.0, 5.0, 9.0],
    low_rates=[
        LowRate(10, 300, 5.0, 9.0, Shares(0.05, 0.01, 0.02, 0.01, 0.01), 480),
        LowRate(1_000, 30_000, 1.5, 12.0, Shares(0.5, 0.1, 0.1, 0.2, 0.1), 500),
    ],
    cores=[
        OnCores(cores.THREE, 1, 300.0),
        OnCores(cores.THREE, 2, 570.0),
        OnCores(cores.EIGHT, 2, 190_000.0),
    ],
    served=[
        Served(name, 200, 4_000, 9.0, 20.0, p99, 90.0, 0.8, 900, 500, 50_000, 1_500.0, 600.0)
        for name, p99 in ((serving.PIPELINE, 70.0), (serving.MONO, 30.0), (serving.DIRECT, 5.0))
    ],
    observed=[
        ObservedCase(how, 1_000_000, [ObservedRound(rate, 2.0), ObservedRound(2 * rate, 4.0)])
        for how, rate in ((observed.PLAIN, 200_000.0), (observed.ALL, 170_000.0))
    ],
    idle=Shares(0.02, 0.005, 0.005, 0.005, 0.005),
)


def test_goals_compare_figures_of_one_run_with_the_smallest_payload():
    found = {goal.what: (round(goal.found, 3), goal.reached) for goal in goals(FIGURES)}

    assert found == {
        "hop, nats-py workers a core": (60, True),
        "columnar, the same": (180, True),
        "hop, FastStream workers a core": (6, False),
        "columnar, of the bare process": (0.75, True),
        "three vertices, of two thirds of a hop": (0.75, False),
        "three vertices, messages a second": (150_000, False),
        "three vertices, messages a core second": (150_000, False),
        "single messages, MonoVertex to Bento v1.8.2": (1.8, False),
        "single messages, MonoVertex to nats-py worker, batched": (9, True),
        "single messages, MonoVertex to floor (bulk process)": (0.75, False),
        "Kafka to Kafka, Ebbflow MonoVertex to bare confluent-kafka loop": (0.562, False),
        "SQS to SQS, Ebbflow MonoVertex to bare boto3 loop": (0.9, True),
        "Pub/Sub to Pub/Sub, Ebbflow MonoVertex to bare google-cloud-pubsub loop": (0.45, False),
        "Kafka to Kafka, Ebbflow MonoVertex to Bento v1.8.2": (1.5, True),
        "Postgres, rows into a table, to a bare loop": (0.75, True),
        "Postgres, rows of a queue, to a bare loop": (0.5, False),
        "source alone, http to bare endpoint, same server": (0.6, False),
        "source alone, jetstream, messages a second": (130_000, True),
        "sink alone, file, messages a second": (200_000, False),
        "Go, Ebbflow, gRPC, messages a second": (90_000, True),
        "pynumaflow handler, Ebbflow, in process, messages a second": (200_000, False),
        "three vertices at 10/s": (0.05, True),
        "three vertices at 1,000/s": (0.5, False),
        "three vertices at 1,000/s, p50": (1.5, True),
        "three vertices at 1,000/s, p99": (12, False),
        "three vertices at 1,000/s, memory": (500, True),
        "three vertices, 1 ms of CPU for a message each, two cores to one": (1.9, True),
        "eight vertices at full load, messages a second": (190_000, True),
        "requests at 200/s, Ebbflow, three vertices, p50": (9, False),
        "requests at 200/s, Ebbflow, three vertices, p99": (70, False),
        "requests at 200/s, Ebbflow MonoVertex, p50": (9, False),
        "requests at 200/s, Ebbflow MonoVertex, p99": (30, True),
        "page, metrics and audit, of the rate without": (0.85, False),
        "a sink with 50 ms a call, of full calls": (0.95, True),
        "a sink with 400 ms a call, of full calls": (0.8, False),
        "loss of rate, 10 % nacked": (10, True),
        "growth of the workers, 1,000,000 messages": (10, False),
        "a hop at 1,000/s, p50": (4, True),
        "a hop at 1,000/s, nats-py workers, p50": (4, False),
        "a hop at 1,000/s, p99": (40, False),
        "a hop at 1,000/s, longest at an epoch's end": (100, True),
        "first message": (6, False),
        "three vertices without work": (2, True),
    }


def test_parts_that_were_not_measured_have_no_goals_and_no_tables():
    only = Figures(latencies=FIGURES.latencies)

    assert {goal.what.partition(",")[0] for goal in goals(only)} == {"a hop at 1"}
    assert [table.title for table in tables(only)] == [
        "Latency in milliseconds, epochs of 5 s",
        "Goals, with the smallest payload",
    ]
    assert (goals(Figures()), list(tables(Figures()))) == ([], [])


def test_tables_for_documents_have_a_line_for_each_row():
    *_, last = tables(FIGURES)

    lines = markdown(last).splitlines()

    assert lines[0] == "**Goals, with the smallest payload**"
    assert lines[2:5] == [
        "| goal | wanted | found |   |",
        "| --- | ---: | ---: | ---: |",
        "| hop, nats-py workers a core | ≥ 10 x | 60 x |  |",
    ]
    assert "| hop, FastStream workers a core | ≥ 10 x | 6 x | missed |" in lines


def test_equal_figures_give_equal_plots(tmp_path):
    for name in ("one", "two"):
        write(replace(FIGURES), tmp_path / name, seed=7)

    assert (tmp_path / "one/bench.png").read_bytes() == (tmp_path / "two/bench.png").read_bytes()
    assert (tmp_path / "one/bench.svg").read_text().count("<svg") == 1
