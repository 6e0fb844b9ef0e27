import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbflow import Backoff, Limits
from ebbflow.builders import MonoVertex
from ebbflow.connectors import Generator, Log
from ebbflow.domain.errors import SpecError
from ebbflow.operations.pipeline_run import PipelineRun
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spec.lint import load
from ebbflow.status.run_report import QuietWatcher

YAML = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: orders}
spec:
  partitions: 2
  limits: {readBatchSize: 100}
  onError: {backoff: {interval: 2s, steps: 3, factor: 1.0, cap: 5s, jitter: 0.0}}
  servingStore: {python: "queue:Queue"}
  source:
    generator: {messages: 100}
    transformer:
      python: "os.path:basename"
      retryStrategy: {backoff: {interval: 1ms, steps: 2, factor: 1.0, cap: 5s, jitter: 0.0}}
  udf: {python: "os.path:join", mode: columnar, retryStrategy: {onFailure: drop}}
  sink:
    udsink: {python: "os.path:split", mode: pandas}
    fallback: {log: {}}
    onSuccess: {udsink: {python: "os.path:exists"}}
    retryStrategy:
      backoff: {interval: 1s, steps: 3, factor: 1.0, cap: 5s, jitter: 0.0}
      onFailure: fallback
  bypass:
    sink: {tags: {operator: not, values: [new]}}
    fallback: {tags: {values: [bad]}}
    onSuccess: {tags: {values: [done, paid]}}
"""


def enrich(datum: Any) -> None: ...


def started() -> MonoVertex:
    return MonoVertex("orders").source(Generator(messages=100))


def problems(monovertex: MonoVertex) -> list[str]:
    with pytest.raises(SpecError) as caught:
        _ = monovertex.spec
    return str(caught.value).splitlines()


def test_the_builder_and_yaml_give_equal_models(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(YAML)
    built = (
        MonoVertex(
            "orders",
            partitions=2,
            limits=Limits(read_batch_size=100),
            on_error=Backoff("2s", steps=3, cap="5s"),
            serving_store="queue:Queue",
        )
        .source(
            Generator(messages=100),
            transformer="os.path:basename",
            retry=Backoff("1ms", steps=2, cap="5s"),
        )
        .map("os.path:join", mode="columnar", on_failure="drop")
        .sink(
            "os.path:split",
            mode="pandas",
            fallback=Log(),
            on_success="os.path:exists",
            retry=Backoff("1s", steps=3, cap="5s"),
            on_failure="fallback",
        )
        .bypass(fallback="bad", on_success=["done", "paid"])
        .bypass(sink=["new"], operator="not")
    )
    assert built.spec == load(tmp_path / "orders.yaml")


def test_a_map_may_be_left_out() -> None:
    assert started().sink(Log()).spec.udf is None


def test_functions_are_kept_unchanged() -> None:
    spec = started().map(enrich).sink(enrich, fallback=enrich).spec
    assert spec.udf is not None
    assert spec.sink.fallback is not None
    assert spec.sink.fallback.udsink is not None
    assert spec.udf.python is spec.sink.fallback.udsink.python is enrich


def test_problems_name_the_monovertex_in_place_of_a_line() -> None:
    monovertex = (
        MonoVertex("orders", partitions=-1)
        .source(Generator())
        .map("nowhere:fn")
        .bypass(fallback=["bad"])
        .sink(Log())
    )
    assert problems(monovertex) == [
        "MonoVertex orders: EB104 'partitions' must be at least 0, not -1",
        "MonoVertex orders: EB402 cannot use 'nowhere:fn': "
        "there is no module 'nowhere' next to the pipeline or on the Python path",
        "MonoVertex orders: EB209 bypass to 'fallback', but the sink has no 'fallback'",
    ]


TWICE = [
    (lambda: started().source(Generator()), "MonoVertex orders: EB003 'source' is already given"),
    (lambda: started().map(enrich).map(enrich), "MonoVertex orders: EB003 'udf' is already given"),
    (
        lambda: started().sink(Log()).sink(Log()),
        "MonoVertex orders: EB003 'sink' is already given",
    ),
    (
        lambda: started().bypass(sink="a").bypass(sink="b"),
        "MonoVertex orders, bypass: EB003 'sink' is already given",
    ),
]


@pytest.mark.parametrize(("build", "expected"), TWICE)
def test_a_part_given_twice_is_refused(build: Any, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        build()
    assert str(caught.value) == expected


def test_run_passes_on_the_checked_spec_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(run: PipelineRun) -> SimpleNamespace:
        return SimpleNamespace(run=run, had_nothing_to_do=False, dead_letters=0, ended="drained")

    monkeypatch.setattr(PipelineRun, "execute", execute)
    result: Any = started().sink(Log()).run(drain=True)
    assert result.run.pipeline == "orders"
    assert isinstance(result.run._relay._to, QuietWatcher)
    assert result.run._options == RunOptions(drain=True)


def test_a_monovertex_with_problems_is_not_run() -> None:
    with pytest.raises(SpecError, match="EB204 the MonoVertex has no sink"):
        started().run()


def test_the_builders_are_imported_without_the_model() -> None:
    code = "import sys, ebbflow.builders, ebbflow.builders; print('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
