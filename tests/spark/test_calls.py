"""Calls of user code: how many messages each one receives."""

from __future__ import annotations

import time

import pytest

from ebbflow import Limits, Pipeline, Response
from ebbflow.connectors import Generator

pytestmark = pytest.mark.slow


def test_a_sink_with_a_fixed_cost_per_call_receives_full_batches(run, journal):
    def store(data):
        time.sleep(0.3)
        journal.write(len(data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=8_000))
    summary = run(pipeline.sink("out", store, limits=Limits(read_batch_size=500)))

    calls = journal.read()
    assert summary.vertices["out"].done == sum(calls) == 8_000
    assert calls.count(500) >= 10
    assert len(calls) < 40
