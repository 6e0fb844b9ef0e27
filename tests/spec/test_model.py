import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark import cloudpickle

from ebbflow.connectors.builtin import GeneratorSpec
from ebbflow.domain.durations import DEFAULT_ON_ERROR, Backoff
from ebbflow.domain.errors import Problem, SpecError
from ebbflow.spec.kubernetes import NO_EFFECT
from ebbflow.spec.lint import check, load
from ebbflow.spec.model import EffectiveLimits, PipelineSpec, VertexKind
from ebbflow.spec.sections import RetrySpec, ServingStoreSpec

FULL = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata:
  name: orders
  namespace: shop
  labels: {team: checkout}
  annotations: {numaflow.numaproj.io/instance: "0"}
  creationTimestamp: 2025-03-01T10:00:00Z
spec:
  interStepBufferServiceName: shared
  interStepBuffer: {compression: {type: lz4}}
  lifecycle: {desiredPhase: Running, pauseGracePeriodSeconds: 60}
  watermark: {disabled: false, maxDelay: 2s, idleSource: {threshold: 5s, incrementBy: 3s}}
  templates:
    daemon: {replicas: 1, containerTemplate: {resources: {limits: {memory: 500Mi}}}}
    vertex: {podTemplate: {nodeSelector: {pool: batch}}}
  limits:
    readBatchSize: 200
    bufferMaxLength: 10000
    bufferUsageLimit: 70
    readTimeout: 500ms
  vertices:
    - name: in
      scale: {min: 1, max: 3, lookbackSeconds: 60}
      containerTemplate:
        env: [{name: LOG_LEVEL, value: debug}]
        resources: {requests: {cpu: 100m}}
      source:
        generator:
          rpu: 50
          duration: 1s
          msgSize: 16
          keyCount: 4
          messages: 1000
        transformer:
          python: handlers:first_look
          container: {image: "shop/first-look:1.2", env: [{name: A, value: b}]}
    - name: enrich
      partitions: 2
      metadata: {labels: {tier: gold}}
      nodeSelector: {disk: ssd}
      tolerations: [{key: spot, operator: Exists}]
      affinity: {nodeAffinity: {}}
      serviceAccountName: orders
      imagePullSecrets: [{name: registry}]
      updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%}}
      volumes: [{name: cache, emptyDir: {}}]
      initContainers: [{name: warm-up, image: "shop/warm:1"}]
      sidecars: [{name: proxy, image: "shop/proxy:1"}]
      limits: {readBatchSize: 50}
      udf:
        python: handlers:enrich
        container:
          image: shop/enrich:7
          volumeMounts: [{name: cache, mountPath: /cache}]
          livenessProbe: {periodSeconds: 10}
      onError: {backoff: {interval: 2m, steps: 3}}
    - name: store
      sink:
        udsink:
          python: handlers:Store
          container: {image: "shop/store:3"}
    - name: rest
      sink: {log: {}}
  edges:
    - from: in
      to: enrich
      onFull: retryUntilSuccess
    - from: enrich
      to: store
      conditions: {tags: {operator: and, values: [paid, complete]}}
    - from: enrich
      to: rest
      conditions: {tags: {operator: not, values: [paid, complete]}}
status: {phase: Running}
"""


@pytest.fixture
def spec(folder: Path) -> PipelineSpec:
    (folder / "orders.yaml").write_text(FULL)
    loaded = load(folder / "orders.yaml")
    assert isinstance(loaded, PipelineSpec)
    return loaded


def test_a_complete_numaflow_pipeline_lints_when_its_python_code_is_named(
    problems_of: Callable[[str], list[str]],
) -> None:
    assert problems_of(FULL) == []


def test_a_misspelt_kubernetes_field_is_reported(
    problems_of: Callable[[str], list[str]],
) -> None:
    assert problems_of(FULL.replace("tolerations:", "toleration:")) == [
        "42:7: EB101 unknown field 'toleration'; did you mean 'tolerations'?"
    ]


def test_the_fields_without_effect_are_listed() -> None:
    assert "interStepBufferServiceName" in NO_EFFECT["spec"]
    assert "compression" in NO_EFFECT["spec.interStepBuffer"]
    assert "pauseGracePeriodSeconds" in NO_EFFECT["spec.lifecycle"]
    assert {"containerTemplate", "scale", "volumes", "sidecars"} <= set(
        NO_EFFECT["spec.vertices[]"]
    )


def test_vertices_and_edges_are_found_by_name(spec: PipelineSpec) -> None:
    assert spec.name == "orders"
    assert [vertex.kind for vertex in spec.vertices] == ["source", "map", "sink", "sink"]
    assert spec.vertex("enrich").kind is VertexKind.MAP
    assert [edge.to for edge in spec.edges_from("enrich")] == ["store", "rest"]
    assert [edge.from_ for edge in spec.edges_into("enrich")] == ["in"]
    with pytest.raises(KeyError, match="nothing"):
        spec.vertex("nothing")


def test_a_source_and_a_sink_know_their_kind(spec: PipelineSpec) -> None:
    source, sink = spec.vertex("in").source, spec.vertex("store").sink
    assert source is not None
    assert sink is not None
    assert (source.kind, sink.kind) == ("generator", "udsink")


def test_limits_of_a_vertex_override_those_of_the_pipeline(spec: PipelineSpec) -> None:
    assert spec.limits_of("enrich") == EffectiveLimits(
        read_batch_size=50,
        buffer_max_length=10_000,
        buffer_usage_limit=70,
        read_timeout=500,
        concurrency=50,
    )
    assert spec.limits_of(spec.vertex("store")).read_batch_size == 200


def test_the_call_timeout_of_a_vertex_overrides_that_of_the_pipeline() -> None:
    vertices = [{"name": "in"}, {"name": "out", "limits": {"callTimeout": "500ms"}}]
    body = {"vertices": vertices, "limits": {"callTimeout": "1m"}}
    spec = PipelineSpec.model_validate({"metadata": {"name": "a"}, "spec": body})

    assert [spec.limits_of(name).call_timeout for name in ("in", "out")] == [60_000, 500]
    with pytest.raises(ValidationError, match="must be longer than 0"):
        PipelineSpec.model_validate(
            {"metadata": {"name": "a"}, "spec": body | {"limits": {"callTimeout": "0s"}}}
        )


def test_unset_limits_have_numaflows_defaults() -> None:
    spec = PipelineSpec.model_validate(
        {"metadata": {"name": "a"}, "spec": {"vertices": [{"name": "in"}]}}
    )
    assert spec.limits_of("in") == EffectiveLimits(500, 30_000, 80, 1_000, 500)


def test_an_error_policy_takes_missing_fields_from_the_default(spec: PipelineSpec) -> None:
    # The default cap of a minute would cut the interval that was asked for.
    assert spec.vertex("enrich").on_error.policy(served=False) == Backoff("120s", 3, 2.0, "120s")
    assert spec.vertex("store").on_error.policy(served=False) == DEFAULT_ON_ERROR


RETRY_STRATEGIES = [
    ({}, Backoff("1ms", 65_535), "retry"),
    ({"onFailure": "drop"}, Backoff("1ms", 65_535), "drop"),
    (
        {"backoff": {"interval": "1s", "steps": 3, "factor": 2, "cap": "5s", "jitter": 0.1}},
        Backoff("1s", 3, 2.0, "5s", 0.1),
        "retry",
    ),
]


@pytest.mark.parametrize(("written", "policy", "on_failure"), RETRY_STRATEGIES)
def test_a_retry_strategy_takes_missing_fields_from_numaflows_defaults(
    written: dict[str, object], policy: Backoff, on_failure: str
) -> None:
    strategy = RetrySpec.model_validate(written)
    assert (strategy.policy, strategy.on_failure) == (policy, on_failure)


def test_answers_in_nats_are_kept_for_two_hours_by_default() -> None:
    nats = ServingStoreSpec.model_validate({"nats": {"bucket": "answers"}}).nats
    assert nats is not None
    assert (nats.bucket, nats.ttl) == ("answers", 7_200_000)


ORDERED = [
    ({}, None, False),
    ({}, {"enabled": True}, True),
    ({"enabled": True}, None, True),
    ({"enabled": True}, {"enabled": False}, False),
    ({"enabled": True}, {}, False),
]


@pytest.mark.parametrize(("pipeline", "vertex", "expected"), ORDERED)
def test_the_ordered_option_of_a_vertex_overrides_that_of_the_pipeline(
    pipeline: dict[str, bool], vertex: dict[str, bool] | None, expected: bool
) -> None:
    step = {"name": "a", "udf": {"python": "os:getcwd"}, "ordered": vertex}
    source = {"name": "in", "source": {"generator": {}}, "ordered": {"enabled": True}}
    body = {"vertices": [source, step], "ordered": pipeline}
    spec = PipelineSpec.model_validate({"metadata": {"name": "a"}, "spec": body})
    assert spec.is_ordered("a") is spec.is_ordered(spec.vertex("a")) is expected
    assert not spec.is_ordered("in")


def test_a_pipeline_is_paused_by_its_desired_phase(spec: PipelineSpec, folder: Path) -> None:
    (folder / "paused.yaml").write_text(FULL.replace("Phase: Running", "Phase: Paused"))
    assert (spec.paused, load(folder / "paused.yaml").paused) == (False, True)


def test_a_value_blob_may_span_several_lines() -> None:
    assert GeneratorSpec.model_validate({"valueBlob": "aGVs\nbG8=\n"}).blob == b"hello"


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_spec_survives_pickling(spec: PipelineSpec, pickler: object) -> None:
    assert pickle.loads(pickler.dumps(spec)) == spec  # type: ignore[attr-defined]


def test_a_spec_survives_a_json_round_trip(spec: PipelineSpec) -> None:
    assert PipelineSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec


def test_a_loaded_spec_passes_the_checks_for_models(spec: PipelineSpec, folder: Path) -> None:
    assert check(spec, folder) == []


def test_a_spec_error_survives_pickling_with_its_problems() -> None:
    problems = [
        Problem("a.yaml", 3, 7, "EB101", "unknown field 'x'"),
        Problem("", 0, 0, "EB202", "no edges", place="pipeline orders"),
    ]
    error = pickle.loads(pickle.dumps(SpecError(problems)))
    assert error.problems == tuple(problems)
    assert str(error) == ("a.yaml:3:7: EB101 unknown field 'x'\npipeline orders: EB202 no edges")


def test_one_of_several_pipelines_in_a_file_is_loaded_by_its_name(folder: Path) -> None:
    (folder / "two.yaml").write_text(f"{FULL}---\n{FULL.replace('orders', 'returns')}")
    assert load(folder / "two.yaml", name="returns").name == "returns"


@pytest.mark.parametrize(
    ("second", "name", "problem"),
    [
        (
            "returns",
            None,
            "the file holds 2 pipelines: orders, returns; choose one with --name NAME",
        ),
        ("orders", None, "the file holds 2 pipelines named orders"),
        (
            "returns",
            "return",
            "there is no pipeline 'return' in this file; did you mean 'returns'?",
        ),
    ],
)
def test_an_ambiguous_choice_among_several_pipelines_is_rejected(
    folder: Path, second: str, name: str | None, problem: str
) -> None:
    (folder / "two.yaml").write_text(f"{FULL}---\n{FULL.replace('orders', second)}")
    with pytest.raises(SpecError) as caught:
        load(folder / "two.yaml", name=name)
    assert str(caught.value) == f"{folder / 'two.yaml'}:1:1: EB006 {problem}"


def test_loading_reports_every_problem(folder: Path) -> None:
    (folder / "bad.yaml").write_text(
        FULL.replace("rpu: 50", "rpu: x").replace("to: rest", "to: res")
    )
    with pytest.raises(SpecError) as caught:
        load(folder / "bad.yaml")
    assert [problem.code for problem in caught.value.problems] == ["EB103", "EB301"]
