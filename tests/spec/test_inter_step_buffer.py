"""The options of a pipeline's streams: replicas, and how persistently to publish."""

from __future__ import annotations

import math

import pytest

from ebbflow import MonoVertex, Pipeline
from ebbflow.builders import InterStepBuffer, Publish
from ebbflow.connectors import Generator, Log
from ebbflow.domain.errors import SpecError
from ebbflow.nats.publish import BUFFER
from ebbflow.runtime.planning import make_plans

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  interStepBuffer: %s
  vertices:
    - {name: in, source: {generator: {}}}
    - {name: out, sink: {log: {}}}
  edges: [{from: in, to: out}]
"""


def pipeline(**options):
    return Pipeline("orders", **options).source("in", Generator()).sink("out", Log())


def retries_of(built):
    return {plan.run.publish for plan in make_plans(built.spec, None, 2**20, None)}


def test_vertices_retry_forever_by_default():
    assert retries_of(pipeline()) == {BUFFER}
    assert (BUFFER.attempts, BUFFER.ack_wait) == (-1, math.inf)


def test_every_vertex_publishes_as_the_spec_says():
    publish = Publish(retry_wait="300ms", retry_attempts=5, ack_wait="20s")
    buffer = InterStepBuffer(publish=publish)
    (retry,) = retries_of(pipeline(inter_step_buffer=buffer))

    assert (retry.wait, retry.attempts, retry.ack_wait) == (0.3, 5, 20)


def test_a_monovertex_has_the_same_options_for_redeliveries_and_dead_letters():
    buffer = InterStepBuffer(replicas=3, publish=Publish(ack_wait="20s"))
    mono = MonoVertex("orders", inter_step_buffer=buffer).source(Generator()).sink(Log())

    assert mono.spec.inter_step_buffer.replicas == 3
    assert [retry.ack_wait for retry in retries_of(mono)] == [20]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{replicas: 0}", "5:31: EB104 'replicas' must be at least 1, not 0"),
        ("{replicas: 7}", "5:31: EB104 'replicas' must be at most 5, not 7"),
        (
            "{publish: {retryAttempts: -2}}",
            "5:46: EB104 'retryAttempts' must be at least -1, not -2",
        ),
        (
            "{publish: {retryWait: 0s}}",
            "5:42: EB105 'retryWait': must be longer than 0; write for example 250ms",
        ),
        ("{publish: {ackWait: 5}}", "5:40: EB105 'ackWait': 5 has no unit; write for example 1s"),
        (
            "{publish: {acWait: 5s}}",
            "5:31: EB101 unknown field 'acWait'; did you mean 'ackWait'?",
        ),
    ],
)
def test_a_wrong_value_is_reported_where_it_is(problems_of, text, problem):
    assert problems_of(SPEC % text) == [problem]


def test_numaflows_compression_is_accepted_without_effect(problems_of):
    assert problems_of(SPEC % "{compression: {type: gzip}}") == []


def test_the_builder_rejects_what_yaml_rejects():
    with pytest.raises(SpecError, match="replicas"):
        _ = pipeline(inter_step_buffer=InterStepBuffer(replicas=9)).spec


def test_the_size_limit_of_a_buffer_applies_only_to_what_is_stored_in_it():
    mono = MonoVertex("m").source(Generator()).sink(Log())
    (single,) = make_plans(mono.spec, None, 2**20, None)
    assert single.largest_output > 2**30
    assert single.largest < 2**20, "what its source stores"
    vertices = {plan.vertex: plan for plan in make_plans(pipeline().spec, None, 2**20, None)}
    assert all(plan.largest_output == plan.largest for plan in vertices.values() if plan.edges)
