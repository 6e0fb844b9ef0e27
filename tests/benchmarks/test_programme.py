"""A whole benchmark, though a tiny one: every contestant does its work on real parts."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import contest, files, peers
from benchmarks.__main__ import app
from benchmarks.ours import EBBFLOW
from benchmarks.programme import SHORT, Programme, measured

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
)


@pytest.mark.slow
def test_everybody_is_measured_in_one_run(spark, tmp_path):
    said = []

    figures = measured(TINY, ["rates", "calls", "latency", "growth"], seed=1, say=said.append)

    assert {(case.job, case.name) for case in figures.cases} == {
        *((contest.HOP, name) for name in (EBBFLOW, peers.FLOOR, peers.NATS_PY)),
        *((contest.HOP, name) for name in (peers.NATS_PY_64, peers.FASTSTREAM, peers.STRUCTURED)),
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
    assert len(said) == sum(map(len, lines))

    written = files.write(figures, tmp_path, seed=1)

    assert [file.name for file in written] == ["bench.json", "bench.md", "bench.svg", "bench.png"]
    told = json.loads(written[0].read_text())
    assert told["machine"]["cores"] > 0
    assert (told["seed"], len(told["cases"])) == (1, len(figures.cases))


def test_a_part_that_there_is_not_is_refused_before_anything_is_started():
    result = CliRunner().invoke(app, ["--only", "rates,speed"])

    assert result.exit_code == 2
    assert "'speed' is not one of: rates, end-to-end, sources, sinks" in result.output


def test_the_short_programme_measures_what_the_goals_need():
    assert {1_000} <= set(SHORT.rates)
    assert {0, 10} <= set(SHORT.nacked)
