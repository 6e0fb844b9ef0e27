import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from ebbflow.builders import Pipeline
from ebbflow.connectors import registry
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import SpecError
from ebbflow.spec.lint import load
from ebbflow.spec.model import PipelineSpec
from ebbflow.spec.sections import ServingStoreSpec, SinkSpec
from ebbflow.status.run_report import QuietWatcher
from tests.spec.linting import OWN_SINK

YAML = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  limits: {readBatchSize: 100}
  ordered: {enabled: true}
  servingStore: {nats: {bucket: answers, ttl: 10m}}
  vertices:
  - name: in
    source:
      generator: {messages: 100, rpu: 5}
      transformer:
        python: "os.path:basename"
        retryStrategy: {backoff: {interval: 1s}, onFailure: drop}
  - name: split
    partitions: 2
    ordered: {enabled: false}
    limits: {readTimeout: 100ms}
    onError: {backoff: {interval: 2s, steps: 3, factor: 1.0, cap: 10s, jitter: 0.0}}
    udf:
      python: "os.path:join"
      mode: batch
      retryStrategy: {backoff: {interval: 1s, steps: 2, factor: 1.0, cap: 5s, jitter: 0.0}}
  - name: big
    sink:
      udsink: {python: "os.path:split", mode: columnar}
      fallback: {udsink: {python: "os.path:exists"}}
      onSuccess: {log: {}}
      retryStrategy: {backoff: {interval: 1s, steps: 3}, onFailure: fallback}
  - {name: rest, sink: {log: {}, fallback: {blackhole: {}}}}
  edges:
  - {from: in, to: split, onFull: discardLatest}
  - {from: split, to: big, conditions: {tags: {values: [big]}}}
  - {from: split, to: rest, conditions: {tags: {operator: not, values: [big]}}}
  - {from: split, to: split, conditions: {tags: {values: [again]}}, onFull: discardLatest}
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
        Pipeline(
            "orders",
            limits={"read_batch_size": 100},
            ordered=True,
            serving_store={"nats": {"bucket": "answers", "ttl": "10m"}},
        )
        .source(
            "in",
            generator={"messages": 100, "rpu": 5},
            transformer="os.path:basename",
            retry={"interval": "1s", "on_failure": "drop"},
        )
        .map(
            "split",
            "os.path:join",
            mode="batch",
            retry=Backoff(interval=1_000, steps=2, cap=5_000),
            on_full="discardLatest",
            partitions=2,
            ordered=False,
            limits={"readTimeout": "100ms"},
            on_error=Backoff(interval=2_000, steps=3, cap=10_000),
        )
        .sink(
            "big",
            "os.path:split",
            mode="columnar",
            fallback="os.path:exists",
            on_success="log",
            retry={"interval": "1s", "steps": 3},
            on_failure="fallback",
            tags=["big"],
        )
        .sink("rest", log=True, fallback="blackhole", tags=["big"], operator="not")
        .edge("split", "split", tags=["again"], on_full="discardLatest")
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
    assert spec.vertex("out").on_error.policy(served=False) == Backoff(2_000, 0, 2.0, 60_000)


RETRIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"retry": {}}, {"retryStrategy": {"backoff": {}}}),
    ({"on_failure": "drop"}, {"retryStrategy": {"onFailure": "drop"}}),
    (
        {"retry": {"steps": 3, "onFailure": "drop"}},
        {"retryStrategy": {"backoff": {"steps": 3}, "onFailure": "drop"}},
    ),
    (
        {"retry": {"steps": 3, "on_failure": "retry"}, "on_failure": "drop"},
        {"retryStrategy": {"backoff": {"steps": 3}, "onFailure": "drop"}},
    ),
]


@pytest.mark.parametrize(("given", "written"), RETRIES)
def test_a_retry_strategy_is_there_only_when_something_is_said_about_it(
    given: dict[str, Any], written: dict[str, Any]
) -> None:
    spec = started().sink("out", log=True, **given).spec
    assert spec.vertex("out").sink == SinkSpec.model_validate({"log": {}, **written})


def test_a_serving_store_may_be_a_class() -> None:
    class Answers:
        def put(self, id: str, payloads: list[bytes]) -> None: ...

        def get(self, id: str) -> list[bytes]: ...

    store = (
        Pipeline("orders", serving_store=Answers).source("in", generator={}).sink("out", log=True)
    )
    assert store.spec.serving_store == ServingStoreSpec(python=Answers)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"fallback": "lgo"}, "EB101 unknown field 'lgo'; did you mean 'log'?"),
    (
        {"on_success": "pulsar"},
        f"EB901 the pulsar sink {OWN_SINK}",
    ),
    (
        {"fallback": "nowhere:fn"},
        "EB402 cannot use 'nowhere:fn': "
        "there is no module 'nowhere' beside the pipeline or on the Python path",
    ),
    ({"retry": {"intervall": "1s"}}, "EB101 unknown field 'intervall'; did you mean 'interval'?"),
    ({"retry": {"interval": 1}}, "EB105 'interval': 1 has no unit; write for example 1s"),
    (
        {"on_failure": "fallback"},
        "EB502 onFailure is fallback, but there is no fallback sink",
    ),
]


@pytest.mark.parametrize(("options", "problem"), MISTAKES)
def test_what_is_said_about_a_sink_is_checked(options: dict[str, Any], problem: str) -> None:
    pipeline = started().sink("out", log=True, **options)
    assert problems(pipeline) == [f"pipeline orders, vertex out: {problem}"]


def test_retries_of_a_transformer_need_one() -> None:
    pipeline = Pipeline("orders").source("in", generator={}, retry={"steps": 3})
    assert problems(pipeline.sink("out", log=True)) == [
        "pipeline orders, vertex in: EB208 'transformer' has no code: "
        "name a Python function with python: module:attribute"
    ]


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
        "pipeline Orders, vertex out: EB207 'sink' needs one of " + ", ".join(registry.SINKS),
        "pipeline Orders, edge enrich → ot: EB301 there is no vertex 'ot'; did you mean 'out'?",
    ]


def test_user_code_must_be_callable_or_named() -> None:
    pipeline = started().map("enrich", 5).sink("out", log=True)  # type: ignore[arg-type]
    assert problems(pipeline) == [
        "pipeline orders, vertex enrich: EB401 'python': 5 is not of the form module:attribute"
    ]


def test_run_hands_the_checked_spec_and_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_pipeline(spec: Any, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(name=spec.name, options=options, had_nothing_to_do=False)

    runner = ModuleType("ebbflow.spark.run")
    runner.run_pipeline = run_pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ebbflow.spark.run", runner)
    result: Any = started().sink("out", log=True).run(drain=True)
    assert result.name == "orders"
    assert isinstance(result.options.pop("watcher"), QuietWatcher)
    assert result.options == {"drain": True, "beside": []}


def test_a_pipeline_with_problems_is_not_run() -> None:
    with pytest.raises(SpecError, match="EB204 the pipeline has no sink"):
        started().run()
