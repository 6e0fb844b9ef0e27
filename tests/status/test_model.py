"""The state of a pipeline is written and read back unchanged."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.accounts.numbers import BOUNDS, Histogram
from ebbflow.domain.outcome import Counts
from ebbflow.domain.records import from_json, to_json
from ebbflow.engine.outage import Waiting
from ebbflow.nats.publish import Tally
from ebbflow.status.model import (
    BackPressure,
    Cause,
    Concern,
    EdgeStatus,
    ErrorGroup,
    Latency,
    Parked,
    PipelineStatus,
    StatusSample,
    VertexSample,
    VertexStatus,
    WorkInFlight,
)
from ebbflow.status.stored import make_sample

NOON = datetime(2026, 11, 16, 12, 0, 0, 250_000, tzinfo=UTC)

BUSY = VertexStatus(
    name="enrich",
    kind="map",
    partitions=2,
    condition="busy",
    words="in a call for 63 s",
    counts=Counts(read=4, done=3, redelivered=1),
    totals=Counts(read=40, done=30, redelivered=10),
    rate_in=1.5,
    pending=4,
    pending_exact=False,
    oldest_waiting_seconds=390.0,
    drain_seconds=240.0,
    backlog_growing_seconds=60.0,
    falling_behind=True,
    source_pending=7,
    in_flight=WorkInFlight(4, NOON),
    in_call=63.0,
    parked=Parked(1, NOON, (Cause("waits for the moon", 1),)),
    dead_letters=2,
    dead_letter_causes=(Cause("KeyError: 'x'", 2),),
    run_dead_letter_causes=(Cause("and 3 more causes", 1, rest=True),),
    back_pressure=BackPressure("out", NOON),
    watermark=NOON,
    restarts=1,
    failure="KeyError: 'password'",
    errors=(ErrorGroup("KeyError", "'x'", "steps.py:6", 2, NOON, NOON, "in-3", "Traceback …"),),
    nack_reasons=(Cause("waits for the moon", 1),),
    nack_reason="waits for the moon",
    latency={"call": Latency(0.1, 0.2, 0.11, 50)},
    spreads={"call": Histogram([0] * len(BOUNDS) + [50], 5.5)},
    error_count=7,
    publishing=Tally(attempts=3, full=1, refusal="no room"),
    waiting=Waiting("the database", 3.0, 1.0),
    halted="too many dead letters",
    silent_because="Spark has no workers at the moment",
)

WHOLE = PipelineStatus(
    pipeline="orders",
    kind="MonoVertex",
    run="abc",
    host="here",
    pid=17,
    phase="ended",
    ended="timeout",
    began=NOON,
    at=NOON,
    numbers_at=NOON,
    vertices=(BUSY, VertexStatus("out")),
    edges=(EdgeStatus("enrich", "out", "any of a, b", 1.5, 3, 4),),
    links={"ui": "http://127.0.0.1:9000"},
    ready=True,
    problems=(Concern("error", "enrich", "it is stuck", "Look at line 6."),),
)


def test_a_status_survives_a_round_trip() -> None:
    assert PipelineStatus.from_bytes(WHOLE.to_bytes()) == WHOLE


def test_a_status_serialises_to_one_plain_json_document() -> None:
    document = json.loads(json.dumps(WHOLE.to_json()))
    assert document["vertices"][0]["parked"] == {
        "messages": 1,
        "next_due": "2026-11-16T12:00:00.250000+00:00",
        "reasons": [{"text": "waits for the moon", "count": 1, "rest": False}],
        "exact": True,
    }
    assert document == WHOLE.to_json()


def test_statuses_of_other_versions_are_read() -> None:
    later = WHOLE.to_json() | {"colour": "blue"}
    later["vertices"][0]["mood"] = "good"
    assert PipelineStatus.from_json(later) == WHOLE
    assert PipelineStatus.from_json({"pipeline": "orders"}) == PipelineStatus("orders")


def test_a_record_without_its_name_is_rejected() -> None:
    with pytest.raises(TypeError, match="pipeline"):
        PipelineStatus.from_json({})


def test_every_field_of_the_example_differs_from_its_default() -> None:
    """Otherwise the round-trip test would miss a field that is not written."""
    plain = VertexStatus("x")
    same = {f.name for f in dataclasses.fields(plain) if _is_same(BUSY, plain, f.name)}
    assert same == {
        "kind",
        "rate_out",
        "exhausted",
        "paused",
        "never_opened",
        "partitions_up",
        "silent",
        "batched",
    }


def _is_same(some: Any, other: Any, name: str) -> bool:
    return bool(getattr(some, name) == getattr(other, name))


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 10**12), max_size=4))
def test_a_sample_survives_a_round_trip(read: dict[str, int]) -> None:
    sample = StatusSample(
        NOON, {name: VertexSample(number, parked=1) for name, number in read.items()}
    )
    assert from_json(StatusSample, to_json(sample)) == sample


def test_a_vertex_is_found_by_its_name() -> None:
    assert WHOLE.vertex("out") == VertexStatus("out")
    assert WHOLE.vertex("nowhere") is None


@pytest.mark.parametrize(
    ("vertex", "exact"),
    [
        (VertexStatus("store", pending=7), True),
        (VertexStatus("store", pending=7, pending_exact=False), False),
        (VertexStatus("store", parked=Parked(9, exact=False)), False),
    ],
)
def test_a_sample_says_whether_its_numbers_are_estimates(vertex: VertexStatus, exact: bool) -> None:
    sample = make_sample(PipelineStatus("orders", at=NOON, vertices=(vertex,)))
    assert sample.vertices["store"].exact is exact


def test_the_python_prompt_shows_a_status_as_a_table() -> None:
    status = PipelineStatus("p", vertices=(VertexStatus("in"),))
    assert repr(status) == str(status)
    assert len(repr(status)) < 200
