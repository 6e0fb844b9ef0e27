"""``ebbflow status``: the pipeline in one line, its vertices, and the details of a vertex."""

from __future__ import annotations

import io
import re
from datetime import timedelta

import pytest
from rich.console import Console

from ebbflow.status.model import Latency, PipelineStatus
from ebbflow.status.terminal.overview import describe_details, describe_pipeline, draw_overview
from tests.status.terminal.samples import NOON, error, pipeline, troubled, vertex

RUN = {"run": "r1", "pid": 41, "host": "box", "began": NOON - timedelta(seconds=75)}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"ready": True}, "bugs: running for 1 min 15 s (process 41 on box)"),
        ({}, "bugs: running for 1 min 15 s, not all vertices are at work (process 41 on box)"),
        (
            {"phase": "ended", "ended": "timeout"},
            "bugs does not run; its last run ended at TIME: timeout",
        ),
        (
            {"answers": False},
            "bugs: not responding; its run (process 41 on box) has not reported since TIME",
        ),
        ({"run": ""}, "bugs does not run"),
    ],
    ids=["ready", "not ready", "ended", "lost", "never"],
)
def test_a_pipeline_is_described_in_one_line(facts, line):
    shown = describe_pipeline(pipeline(**RUN | facts))
    assert re.sub(r"2026-\S+ \S+(?=:|$)", "TIME", shown) == line


def drawn(status: PipelineStatus) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(draw_overview(status, console))
    return console.file.getvalue()


def test_links_are_shown_while_the_pipeline_runs():
    status = pipeline(vertex(), links={"ui": "http://127.0.0.1:8900"}, **RUN)
    assert "web UI: http://127.0.0.1:8900\n" in drawn(status)
    ended = pipeline(vertex(), links={"ui": "http://127.0.0.1:8900"}, phase="ended", **RUN)
    assert "8900" not in drawn(ended)


def test_the_details_of_a_vertex_include_tracebacks():
    group = error("KeyError", "'password'", "steps.py:6", 7)
    group = type(group)(**{f: getattr(group, f) for f in group.__dataclass_fields__} | {
        "message_id": "in-3", "traceback": 'Traceback:\n  File "steps.py", line 6'
    })  # fmt: skip
    one = vertex("m", 5, rate_in=3.4, errors=(group,), latency={"call": Latency(0.002, 0.05, 0, 9)})
    lines = list(describe_details(pipeline(one), one))

    assert lines[:4] == [
        "vertex:        m (map, 1 partition)",
        "state:         running",
        "rate:          3/s in, 0/s out",
        "this run:      read=5 done=5",
    ]
    assert "call of chunk: p50 2.0 ms, p99 50.0 ms" in lines
    noon = f"{NOON.astimezone():%H:%M:%S}"
    assert lines[-3:] == [
        f"KeyError: 'password' (steps.py:6), 7 times, last message in-3; last at {noon}",
        "  Traceback:",
        '    File "steps.py", line 6',
    ]


def test_the_details_of_a_vertex_show_its_parked_message_and_the_due_time():
    look = troubled().vertex("look")
    lines = list(describe_details(troubled(), look))
    (parked,) = [line for line in lines if line.startswith("parked:")]
    assert re.fullmatch(
        r"parked:        1 parked until \d\d:\d\d:00, in 7 min \(waits for the moon\)", parked
    )
