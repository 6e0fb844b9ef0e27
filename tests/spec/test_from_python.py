"""A misspelt option of a builder is refused at the call, with the one that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Function, MonoVertex, Pipeline
from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.domain.errors import SpecError
from ebbflow.spec.bindings import code_places
from ebbflow.spec.from_python import SinkKinds, SourceKinds


def pipeline() -> Any:
    return Pipeline("orders").source("in", generator={})


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
    "YAML's name in place of Python's": (
        lambda: pipeline().sink("out", enrich, onError={"steps": 1}),
        "Pipeline.sink() has no option 'onError'; did you mean 'on_error'?",
    ),
    "a kind of source": (
        lambda: pipeline().source("more", generatr={}),
        "Pipeline.source() has no option 'generatr'; did you mean 'generator'?",
    ),
    "a kind of sink": (
        lambda: monovertex().sink(kafak={}),
        "MonoVertex.sink() has no option 'kafak'; did you mean 'kafka'?",
    ),
    "a source's retries": (
        lambda: monovertex().source(enrich, retries={}),
        "MonoVertex.source() has no option 'retries'; did you mean 'retry'?",
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
        lambda: pipeline().sink("out", log=True).run(drian=True),  # type: ignore[call-arg]
        "run() has no option 'drian'; did you mean 'drain'?",
    ),
}


@pytest.mark.parametrize(("call", "told"), MISSPELT.values(), ids=list(MISSPELT))
def test_a_misspelt_option_is_refused_at_the_call(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == told


def test_what_looks_like_nothing_is_answered_with_all_there_is() -> None:
    with pytest.raises(TypeError) as raised:
        monovertex().map(enrich, banana=1)
    assert str(raised.value) == (
        "MonoVertex.map() has no option 'banana'; it takes code, mode, retry, on_failure"
    )


@pytest.mark.parametrize("builder", [Pipeline, MonoVertex])
def test_no_method_of_a_builder_swallows_options(builder: type) -> None:
    made: Any = builder("orders")
    methods = {
        name: getattr(made, name)
        for name, _ in inspect.getmembers(builder, inspect.isfunction)
        if not name.startswith("_") and name != "run"
    }
    assert {"source", "map", "sink"} <= methods.keys()
    for name, method in methods.items():
        with pytest.raises(TypeError, match=rf"{name}\(\) has no option 'banana'; it takes "):
            method(banana=1)


NO_MAPPINGS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Pipeline("orders").source("in", generator=5).sink("out", log=True),  # type: ignore[typeddict-item]
        "pipeline orders, vertex in: EB103 'generator' must be a mapping, not 5",
    ),
    (
        lambda: pipeline().sink("out", log=True, limits=5),
        "pipeline orders, vertex out: EB103 'limits' must be a mapping, not 5",
    ),
    (
        lambda: pipeline().sink("out", log=True, retry=5),
        "pipeline orders, vertex out: EB103 'backoff' must be a mapping, not 5",
    ),
    (
        lambda: pipeline().sink("out", log=True, on_error="5s"),
        "pipeline orders, vertex out: EB103 'backoff' must be a mapping, not '5s'",
    ),
]


@pytest.mark.parametrize(("build", "problem"), NO_MAPPINGS)
def test_fields_that_are_no_mapping_are_a_problem_like_any_other(
    build: Callable[[], Any], problem: str
) -> None:
    with pytest.raises(SpecError) as raised:
        _ = build().spec
    assert [str(one) for one in raised.value.problems] == [problem]


def test_the_kinds_that_editors_complete_are_those_of_the_registry() -> None:
    by_argument = {"udsource", "udsink", "log", "blackhole", "serve"}
    assert SourceKinds.__annotations__.keys() == SOURCES.keys() - by_argument
    assert SinkKinds.__annotations__.keys() == SINKS.keys() - by_argument


def test_a_function_of_its_own_process_stands_wherever_code_can(tmp_path: Path) -> None:
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


def test_a_function_of_its_own_process_says_its_mode_itself() -> None:
    pipeline = Pipeline("orders").source("in", generator={}).map("a", Function(["a"]), mode="batch")
    with pytest.raises(SpecError, match="EB104 'mode' is for Python code"):
        _ = pipeline.sink("out", log=True).spec
    with pytest.raises(SpecError, match="has no image and no command"):
        _ = Pipeline("orders").source("in", Function()).sink("out", log=True).spec
