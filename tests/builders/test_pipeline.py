import importlib
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from ebbflow import Backoff, Limits
from ebbflow.builders import NatsStore, Pipeline
from ebbflow.connectors import Blackhole, Generator, Log, registry
from ebbflow.domain.errors import SetupError, SpecError
from ebbflow.operations.pipeline_run import PipelineRun
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spec.lint import load
from ebbflow.spec.model import PipelineSpec
from ebbflow.spec.sections import ServingStoreSpec, SinkSpec
from ebbflow.status.run_report import QuietWatcher

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
        retryStrategy:
          backoff: {interval: 1s, steps: 4, factor: 1.0, cap: 5s, jitter: 0.0}
          onFailure: drop
  - name: split
    partitions: 2
    ordered: {enabled: false}
    limits: {callTimeout: 100ms}
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
      retryStrategy:
        backoff: {interval: 1s, steps: 3, factor: 1.0, cap: 5s, jitter: 0.0}
        onFailure: fallback
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
    return Pipeline("orders").source("in", Generator(messages=100))


def test_the_builder_and_yaml_give_equal_models(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(YAML)
    built = (
        Pipeline(
            "orders",
            limits=Limits(read_batch_size=100),
            ordered=True,
            serving_store=NatsStore(bucket="answers", ttl="10m"),
        )
        .source(
            "in",
            Generator(messages=100, rpu=5),
            transformer="os.path:basename",
            retry=Backoff("1s", steps=4, cap="5s"),
            on_failure="drop",
        )
        .map(
            "split",
            "os.path:join",
            mode="batch",
            retry=Backoff("1s", steps=2, cap="5s"),
            on_full="discard_latest",
            partitions=2,
            ordered=False,
            limits=Limits(call_timeout="100ms"),
            on_error=Backoff("2s", steps=3, cap="10s"),
        )
        .sink(
            "big",
            "os.path:split",
            mode="columnar",
            fallback="os.path:exists",
            on_success=Log(),
            retry=Backoff("1s", steps=3, cap="5s"),
            on_failure="fallback",
            tags=["big"],
        )
        .sink("rest", Log(), fallback=Blackhole(), tags=["big"], operator="not")
        .edge("split", "split", tags=["again"], on_full="discard_latest")
    )
    assert built.spec == load(tmp_path / "orders.yaml")


def test_each_step_reads_from_the_one_before() -> None:
    assert edges(started().map("a", enrich).map("b", enrich).sink("out", Blackhole())) == [
        ("in", "a"),
        ("a", "b"),
        ("b", "out"),
    ]


def test_two_sinks_in_a_row_read_from_the_same_step() -> None:
    assert edges(started().sink("log", Log()).sink("store", enrich)) == [
        ("in", "log"),
        ("in", "store"),
    ]


def test_after_names_the_steps_to_read_from() -> None:
    pipeline = started().map("a", enrich).map("b", enrich, after="in")
    assert edges(pipeline.sink("out", Log(), after=["a", "b"])) == [
        ("in", "a"),
        ("in", "b"),
        ("a", "out"),
        ("b", "out"),
    ]


def test_an_edge_may_be_added_explicitly() -> None:
    pipeline = started().sink("out", Log(), after=()).edge("in", "out", tags="new")
    (edge,) = pipeline.spec.edges
    assert edge.conditions is not None
    assert edge.conditions.tags is not None
    assert (edge.conditions.tags.operator, edge.conditions.tags.values) == ("or", ("new",))


def test_a_backoff_is_kept_unchanged() -> None:
    policy = Backoff("2s", 0, 2.0, "60s")
    spec = started().sink("out", Log(), on_error=policy, retry=Backoff("3s", 2)).spec
    vertex = spec.vertex("out")
    assert vertex.on_error.policy(served=False) == policy
    assert vertex.sink.retry_strategy.policy == Backoff("3s", 2)


RETRIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"on_failure": "drop"}, {"retryStrategy": {"onFailure": "drop"}}),
]


@pytest.mark.parametrize(("options", "written"), RETRIES)
def test_a_retry_strategy_is_written_only_when_one_of_its_options_is_set(
    options: dict[str, Any], written: dict[str, Any]
) -> None:
    spec = started().sink("out", Log(), **options).spec
    assert spec.vertex("out").sink == SinkSpec.model_validate({"log": {}, **written})


def test_a_serving_store_may_be_a_class() -> None:
    class Answers:
        def put(self, id: str, payloads: list[bytes]) -> None: ...

        def get(self, id: str) -> list[bytes]: ...

    store = Pipeline("orders", serving_store=Answers).source("in", Generator()).sink("out", Log())
    assert store.spec.serving_store == ServingStoreSpec(python=Answers)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"fallback": "steps"}, "EB401 'steps' is not of the form module:attribute"),
    (
        {"fallback": "nowhere:fn"},
        "EB402 cannot use 'nowhere:fn': "
        "there is no module 'nowhere' next to the pipeline or on the Python path",
    ),
    (
        {"on_failure": "fallback"},
        "EB502 onFailure is fallback, but there is no fallback sink",
    ),
]


@pytest.mark.parametrize(("options", "problem"), MISTAKES)
def test_the_options_of_a_sink_are_checked(options: dict[str, Any], problem: str) -> None:
    pipeline = started().sink("out", Log(), **options)
    assert problems(pipeline) == [f"pipeline orders, vertex out: {problem}"]


def test_retries_of_a_transformer_require_a_transformer() -> None:
    pipeline = Pipeline("orders").source("in", Generator(), retry=Backoff("1ms", steps=3))
    assert problems(pipeline.sink("out", Log())) == [
        "pipeline orders, vertex in: EB208 'transformer' has no code: "
        "name a Python function with python: module:attribute"
    ]


def test_functions_are_pickled_with_the_spec() -> None:
    spec = started().map("enrich", lambda datum: 42).sink("out", enrich).spec
    copy: PipelineSpec = pickle.loads(cloudpickle.dumps(spec))
    udf = copy.vertex("enrich").udf
    assert udf is not None
    assert callable(udf.python)
    assert udf.python(None) == 42


def test_problems_name_the_vertex_or_edge_in_place_of_a_line() -> None:
    pipeline = (
        Pipeline("Orders")
        .source("in", Generator())
        .map("enrich", "nowhere:fn")
        .sink("out")
        .edge("enrich", "ot")
    )
    assert problems(pipeline) == [
        "pipeline Orders: EB107 'Orders' is not a valid name: use at most 63 lower-case letters, "
        "digits and '-', starting with a letter and not ending with '-'",
        "pipeline Orders, vertex enrich: EB402 cannot use 'nowhere:fn': "
        "there is no module 'nowhere' next to the pipeline or on the Python path",
        "pipeline Orders, vertex out: EB207 'sink' needs one of "
        + ", ".join(registry.SINKS)
        + ". In Python, give a function, a class, or a connector such as Log(), not None",
        "pipeline Orders, edge enrich → ot: EB301 there is no vertex 'ot'; did you mean 'out'?",
    ]


def test_user_code_must_be_callable_or_a_name() -> None:
    pipeline = started().map("enrich", 5).sink("out", Log())  # type: ignore[arg-type]
    assert problems(pipeline) == [
        "pipeline orders, vertex enrich: EB401 'python': 5 is not of the form module:attribute"
    ]


def test_run_passes_on_the_checked_spec_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(run: PipelineRun) -> SimpleNamespace:
        return SimpleNamespace(run=run, had_nothing_to_do=False, dead_letters=0, ended="drained")

    monkeypatch.setattr(PipelineRun, "execute", execute)
    result: Any = started().sink("out", Log()).run(drain=True)
    assert result.run.pipeline == "orders"
    assert isinstance(result.run._relay._to, QuietWatcher)
    assert result.run._options == RunOptions(drain=True)


def test_a_pipeline_with_problems_is_not_run() -> None:
    with pytest.raises(SpecError, match="EB204 the pipeline has no sink"):
        started().run()


def test_a_run_during_the_import_of_its_code_is_refused_and_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_program.py").write_text(
        "from ebbflow import Datum, Message, Pipeline\n"
        "from ebbflow.connectors import Generator, Log\n"
        "def same(datum: Datum) -> Message:\n"
        "    return Message(datum.value)\n"
        "begun = Pipeline('p').source('in', Generator(messages=1)).map('m', same)\n"
        "begun.sink('out', Log()).run(drain=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(PipelineRun, "execute", lambda run: pytest.fail("the run began"))
    with pytest.raises(SetupError) as caught:
        importlib.import_module("imported_program")
    assert str(caught.value) == (
        "run() was called while imported_program is being imported, and Spark's workers would "
        'import it too. Put the call in a function, or under: if __name__ == "__main__":'
    )


def test_a_builder_whose_result_was_discarded_is_explained() -> None:
    begun = Pipeline("p")
    begun.source("in", Generator()).sink("out", Log())
    assert problems(begun) == [
        "pipeline p: EB201 the pipeline has no vertices: give it a source and a sink. "
        "A builder never changes: keep what its methods return, p = p.sink(...)"
    ]


def test_a_builder_never_changes_so_a_cell_can_run_twice() -> None:
    begun = started()
    first, second = begun.sink("out", Log()), begun.sink("out", Log())
    assert first.spec == second.spec
    assert problems(begun) == problems(started())


def test_a_notebook_shows_the_graph_or_the_problems() -> None:
    drawn = started().sink("out", Log())._repr_html_()
    assert drawn.startswith("<svg")
    assert ">out<" in drawn
    assert "EB204 the pipeline has no sink" in started()._repr_html_()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_dead_letters": "1"}, "run() takes a whole number for max_dead_letters, not '1'"),
        ({"nats_port": True}, "run() takes a whole number for nats_port, not True"),
        ({"state": 5}, "run() takes a path for state, not 5"),
        ({"drain": "yes"}, "run() takes True or False for drain, not 'yes'"),
        ({"conf": "a=b"}, "run() takes a mapping of Spark's settings for conf, not 'a=b'"),
    ],
)
def test_a_run_option_of_the_wrong_type_is_an_error_at_the_call(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        RunOptions.of(options)  # type: ignore[arg-type]
