import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

from ebbflow.errors import SpecError
from ebbflow.options import Backoff
from ebbflow.pipeline import Pipeline
from ebbflow.spec.lint import load
from ebbflow.spec.model import PipelineSpec

YAML = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  limits: {readBatchSize: 100}
  vertices:
  - name: in
    source: {generator: {messages: 100, rpu: 5}, transformer: {python: "os.path:basename"}}
  - name: split
    partitions: 2
    limits: {readTimeout: 100ms}
    onError: {backoff: {interval: 2s, steps: 3, factor: 1.0, cap: 10s, jitter: 0.0}}
    udf: {python: "os.path:join"}
  - {name: big, sink: {udsink: {python: "os.path:split"}}}
  - {name: rest, sink: {log: {}}}
  edges:
  - {from: in, to: split}
  - {from: split, to: big, conditions: {tags: {values: [big]}}}
  - {from: split, to: rest, conditions: {tags: {operator: not, values: [big]}}}
"""


def enrich(datum: Any) -> None: ...


def edges(pipeline: Pipeline) -> list[tuple[str, str]]:
    return [(edge.from_, edge.to) for edge in pipeline.spec.edges]


def problems(pipeline: Pipeline) -> list[str]:
    with pytest.raises(SpecError) as caught:
        _ = pipeline.spec
    return str(caught.value).splitlines()


def started() -> Pipeline:
    return Pipeline("orders").source("in", generator={"messages": 100})


def test_the_builder_and_yaml_give_equal_models(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(YAML)
    built = (
        Pipeline("orders", limits={"read_batch_size": 100})
        .source("in", generator={"messages": 100, "rpu": 5}, transformer="os.path:basename")
        .map(
            "split",
            "os.path:join",
            partitions=2,
            limits={"readTimeout": "100ms"},
            on_error=Backoff(interval=2_000, steps=3, cap=10_000),
        )
        .sink("big", "os.path:split", tags=["big"])
        .sink("rest", log=True, tags=["big"], operator="not")
    )
    assert built.spec == load(tmp_path / "orders.yaml")


def test_each_step_reads_from_the_one_before() -> None:
    assert edges(started().map("a", enrich).map("b", enrich).sink("out", blackhole=True)) == [
        ("in", "a"),
        ("a", "b"),
        ("b", "out"),
    ]


def test_two_sinks_in_a_row_read_from_the_same_step() -> None:
    assert edges(started().sink("log", log=True).sink("store", enrich)) == [
        ("in", "log"),
        ("in", "store"),
    ]


def test_after_names_the_steps_to_read_from() -> None:
    pipeline = started().map("a", enrich).map("b", enrich, after="in")
    assert edges(pipeline.sink("out", log=True, after=["a", "b"])) == [
        ("in", "a"),
        ("in", "b"),
        ("a", "out"),
        ("b", "out"),
    ]


def test_an_edge_may_be_given_by_itself() -> None:
    pipeline = started().sink("out", log=True, after=()).edge("in", "out", tags="new")
    (edge,) = pipeline.spec.edges
    assert edge.conditions is not None
    assert edge.conditions.tags is not None
    assert (edge.conditions.tags.operator, edge.conditions.tags.values) == ("or", ("new",))


def test_the_policy_for_errors_may_be_a_mapping() -> None:
    spec = started().sink("out", log=True, on_error={"interval": "2s", "steps": 0}).spec
    assert spec.vertex("out").on_error.policy == Backoff(2_000, 0, 2.0, 60_000)


def test_functions_and_classes_travel_with_the_spec() -> None:
    spec = started().map("enrich", lambda datum: 42).sink("out", enrich).spec
    copy: PipelineSpec = pickle.loads(cloudpickle.dumps(spec))
    udf = copy.vertex("enrich").udf
    assert udf is not None
    assert callable(udf.python)
    assert udf.python(None) == 42


def test_problems_name_the_vertex_or_edge_in_place_of_a_line() -> None:
    pipeline = (
        Pipeline("Orders", limits={"read_batch_size": 0})
        .source("in", generator={"mesages": 1})
        .map("enrich", "nowhere:fn", limits={"read_timeout": 5})
        .sink("out")
        .edge("enrich", "ot")
    )
    assert problems(pipeline) == [
        "pipeline Orders, vertex in: EB101 unknown field 'mesages'; did you mean 'messages'?",
        "pipeline Orders, vertex enrich: EB105 'read_timeout': 5 has no unit; write for example 1s",
        "pipeline Orders: EB104 'read_batch_size' must be at least 1, not 0",
        "pipeline Orders: EB107 'Orders' is not a valid name: use at most 63 lower-case letters, "
        "digits and '-', starting with a letter and not ending with '-'",
        "pipeline Orders, vertex enrich: EB402 cannot use 'nowhere:fn': "
        "there is no module 'nowhere' beside the pipeline or on the Python path",
        "pipeline Orders, vertex out: EB207 'sink' needs one of "
        "log, blackhole, udsink, kafka, pulsar, sqs, serve",
        "pipeline Orders, edge enrich → ot: EB301 there is no vertex 'ot'; did you mean 'out'?",
    ]


def test_user_code_must_be_callable_or_named() -> None:
    pipeline = started().map("enrich", 5).sink("out", log=True)  # type: ignore[arg-type]
    assert problems(pipeline) == [
        "pipeline orders, vertex enrich: EB401 'python': 5 is not of the form module:attribute"
    ]


def test_run_hands_the_checked_spec_and_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModuleType("ebbflow.spark.run")
    runner.run_pipeline = lambda spec, **options: (spec.name, options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ebbflow.spark.run", runner)
    assert started().sink("out", log=True).run(drain=True) == ("orders", {"drain": True})


def test_a_pipeline_with_problems_is_not_run() -> None:
    with pytest.raises(SpecError, match="EB204 the pipeline has no sink"):
        started().run()
