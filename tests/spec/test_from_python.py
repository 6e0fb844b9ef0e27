"""A misspelt option of a builder is rejected at the call, with a suggestion."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Function, Limits, MonoVertex, Pipeline, connectors
from ebbflow.connectors import Generator, Kafka, Log, Nats, NatsAuth
from ebbflow.connectors.part import class_name
from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.domain.errors import SpecError
from ebbflow.spec.bindings import code_places


def pipeline() -> Any:
    return Pipeline("orders").source("in", Generator())


def monovertex() -> Any:
    return MonoVertex("orders")


def enrich(datum: Any) -> Any:
    return datum


MISSPELT: dict[str, tuple[Callable[[], Any], str]] = {
    "a map's partitions": (
        lambda: pipeline().map("enrich", enrich, partition=2),
        "Pipeline.map() has no option 'partition'; did you mean 'partitions'?",
    ),
    "a map's error policy": (
        lambda: pipeline().map("enrich", enrich, on_eror={"steps": 1}),
        "Pipeline.map() has no option 'on_eror'; did you mean 'on_error'?",
    ),
    "YAML's name instead of Python's": (
        lambda: pipeline().sink("out", enrich, onError={"steps": 1}),
        "Pipeline.sink() has no option 'onError'; did you mean 'on_error'?",
    ),
    "a kind of source, in the older form": (
        lambda: pipeline().source("more", generator={}),
        "Pipeline.source() has no option 'generator'; give Generator(...) of ebbflow.connectors in "
        "place of the code",
    ),
    "a kind of sink, in the older form": (
        lambda: monovertex().sink(log=True),
        "MonoVertex.sink() has no option 'log'; give Log(...) of ebbflow.connectors in place of "
        "the code",
    ),
    "a connector's option": (
        lambda: Generator(mesages=1),
        "Generator() has no option 'mesages'; did you mean 'messages'?",
    ),
    "a limit": (
        lambda: Limits(read_batchsize=1),
        "Limits() has no option 'read_batchsize'; did you mean 'read_batch_size'?",
    ),
    "a source's retries": (
        lambda: monovertex().source(enrich, retries={}),
        "MonoVertex.source() has no option 'retries'; did you mean 'retry'?",
    ),
    "a connector's class instead of a connector": (
        lambda: pipeline().sink("out", Log),
        "Log is the class of a connector; write Log(...)",
    ),
    "an edge": (
        lambda: pipeline().edge("in", "out", tag="big"),
        "Pipeline.edge() has no option 'tag'; did you mean 'tags'?",
    ),
    "a bypass": (
        lambda: monovertex().bypass(fall_back="big"),
        "MonoVertex.bypass() has no option 'fall_back'; did you mean 'fallback'?",
    ),
    "a pipeline": (
        lambda: Pipeline("orders", limit={}),  # type: ignore[call-arg]
        "Pipeline() has no option 'limit'; did you mean 'limits'?",
    ),
    "a MonoVertex": (
        lambda: MonoVertex("orders", partition=2),  # type: ignore[call-arg]
        "MonoVertex() has no option 'partition'; did you mean 'partitions'?",
    ),
    "a run": (
        lambda: pipeline().sink("out", Log()).run(drian=True),  # type: ignore[call-arg]
        "run() has no option 'drian'; did you mean 'drain'?",
    ),
    "a run in the background": (
        lambda: pipeline().sink("out", Log()).start(drian=True),
        "start() has no option 'drian'; did you mean 'drain'?",
    ),
}


@pytest.mark.parametrize(("call", "message"), MISSPELT.values(), ids=list(MISSPELT))
def test_a_misspelt_option_is_rejected_at_the_call(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == message


def test_an_unrecognisable_option_is_rejected_with_all_valid_ones() -> None:
    with pytest.raises(TypeError) as raised:
        monovertex().map(enrich, banana=1)
    assert str(raised.value) == (
        "MonoVertex.map() has no option 'banana'; it takes code, mode, decode, encode, retry, "
        "on_failure"
    )


@pytest.mark.parametrize("builder", [Pipeline, MonoVertex])
def test_no_method_of_a_builder_ignores_unknown_options(builder: type) -> None:
    made: Any = builder("orders")
    methods = {
        name: getattr(made, name)
        for name, _ in inspect.getmembers(builder, inspect.isfunction)
        if not name.startswith("_") and name not in ("run", "start")
    }
    assert {"source", "map", "sink"} <= methods.keys()
    for name, method in methods.items():
        with pytest.raises(TypeError, match=rf"{name}\(\) has no option 'banana'; it takes "):
            method(banana=1)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Pipeline("orders").source("in", {"generator": {}}),  # type: ignore[arg-type]
        "a source or sink is user code or a connector of ebbflow.connectors, such as Log(), not "
        "{'generator': {}}",
    ),
    (lambda: pipeline().source("in", Log()), "Log is a sink, and cannot be used as a source"),
    (lambda: pipeline().sink("out", Log(), limits={}), "limits takes Limits(...), not dict"),
    (
        lambda: pipeline().sink("out", Log(), retry={"steps": 3}),
        'a back-off is Backoff("1s", steps=3), not dict',
    ),
    (
        lambda: pipeline().sink("out", Log(), on_error="5s"),
        'a back-off is Backoff("1s", steps=3), not str',
    ),
    (
        lambda: Pipeline("orders").serve("in", ports={"http": 8080}),  # type: ignore[typeddict-item]
        "ports takes Ports(...), not dict",
    ),
]


@pytest.mark.parametrize(("build", "problem"), WRONG)
def test_an_option_of_the_wrong_type_is_rejected_at_the_call(
    build: Callable[[], Any], problem: str
) -> None:
    with pytest.raises(TypeError) as raised:
        build()
    assert str(raised.value) == problem


VALUES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Generator(messages=0),
        "Generator(): EB104 'messages' must be at least 1, not 0",
    ),
    (
        lambda: Limits(call_timeout=5),  # type: ignore[arg-type]
        "Limits(): EB105 'call_timeout': 5 has no unit; write \"5s\" or timedelta(seconds=5)",
    ),
    (
        lambda: Nats(url="nats://a:1", subject="s", auth=NatsAuth()),
        "NatsAuth(): EB104 'pipeline': write exactly one of basic, token, nkey, creds",
    ),
    (
        lambda: pipeline().sink("out", Kafka(brokers=["a:1"], topic="t", consumer_group="g")),
        "Kafka(): EB101 unknown field 'consumer_group'; valid here: brokers, config, tls, sasl, "
        "topic, setKey, setTimestamp, exactlyOnce",
    ),
]


@pytest.mark.parametrize(("build", "problem"), VALUES)
def test_a_wrong_value_is_reported_at_the_call_as_lint_reports_it(
    build: Callable[[], Any], problem: str
) -> None:
    with pytest.raises(SpecError) as raised:
        build()
    assert str(raised.value) == problem


def test_every_connector_has_a_class_with_the_options_of_its_sections() -> None:
    for kind in (SOURCES.keys() | SINKS.keys()) - {"udsource", "udsink"}:
        made = getattr(connectors, class_name(kind))
        assert kind == made.KIND
        assert (made.SOURCE is not None, made.SINK is not None) == (kind in SOURCES, kind in SINKS)


def test_the_connector_classes_are_generated_from_the_models() -> None:
    command = [sys.executable, "scripts/typed_parts.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run make typed"


def test_a_connector_has_a_readable_repr_and_compares_by_value() -> None:
    assert repr(Generator(messages=5)) == "Generator(messages=5)"
    assert Generator(messages=5) == Generator(messages=5) != Generator(messages=6)
    with pytest.raises(ImportError, match="has no connector 'Kafak'; did you mean 'Kafka'"):
        from ebbflow.connectors import Kafak  # type: ignore[attr-defined]  # noqa: F401


def test_a_function_in_its_own_process_can_be_used_wherever_code_can(tmp_path: Path) -> None:
    env = {"LEVEL": "high"}
    spec = (
        MonoVertex("all", serving_store=Function(["store"]))
        .source(Function(["source"]), transformer=Function(["transformer"]))
        .map(Function(["./map", "-x"], env=env, working_dir=tmp_path))
        .sink(
            Function(["sink"]),
            fallback=Function(sockets=tmp_path / "run"),
            on_success=Function(["success"]),
        )
        .spec
    )
    plans = {place.container: place.section.plan_function() for place in code_places(spec)}
    assert plans["udf"].command == ("./map", "-x")
    assert plans["udf"].cwd == str(tmp_path)
    assert plans["udf"].env == (("LEVEL", "high"),)
    assert plans["fb-udsink"].folder == str(tmp_path / "run")
    names = ("udstore", "udsource", "transformer", "udsink", "ons-udsink")
    commands = ["store", "source", "transformer", "sink", "success"]
    assert [(plans[name].command or ())[0] for name in names] == commands  # type: ignore[index]


def test_a_function_in_its_own_process_declares_its_own_mode() -> None:
    pipeline = Pipeline("orders").source("in", Generator()).map("a", Function(["a"]), mode="batch")
    with pytest.raises(SpecError, match="EB104 'mode' is for Python code"):
        _ = pipeline.sink("out", Log()).spec
    with pytest.raises(SpecError, match="has no image and no command"):
        _ = Pipeline("orders").source("in", Function()).sink("out", Log()).spec
