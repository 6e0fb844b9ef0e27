"""Parts of a spec as plain data, from the arguments that the Python builders take.

Nothing is checked here: a wrong argument becomes a wrong field, which lint then reports with the
rest. Only what was given is written, so that defaults stay those of the model. The one exception is
an option that does not exist, which is refused where it is written: a method that takes its options
as ``**options: Unpack[SomeTypedDict]`` would swallow a misspelt one, and Python's own refusal does
not say which one was meant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from ebbflow.domain.code import Code, Function, Mode, OnFailure, SinkMode, TagOperator
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import did_you_mean
from ebbflow.engine.system_errors import named

Policy = Backoff | Mapping[str, Any]
"""A back-off, or its fields: ``{"interval": "2s", "steps": 3}``, in camel case or snake case."""

CodeChoice = Code | Function
"""User code: a Python function or class, or a function in a process of its own."""

SinkChoice = CodeChoice | Literal["log", "blackhole"] | Mapping[str, Any]
"""A sink: user code, the name of a built-in sink, or such a name with its fields.

A text with a colon is code.
"""

Store = CodeChoice | Literal["nats"] | Mapping[str, Any]
"""A store for answers: a class of the user's, ``"nats"``, or ``{"nats": {"ttl": "1h"}}``."""

Part = dict[str, Any]


class SourceKinds(TypedDict, total=False):
    """Where messages can come from, beside user code; each with YAML's fields, in either case."""

    generator: Mapping[str, Any]
    http: Mapping[str, Any]
    jetstream: Mapping[str, Any]
    nats: Mapping[str, Any]
    kafka: Mapping[str, Any]
    spark: Mapping[str, Any]
    serving: Mapping[str, Any]


class SinkKinds(TypedDict, total=False):
    """Where messages can go to, beside user code; each with YAML's fields, in either case."""

    http: Mapping[str, Any]
    file: Mapping[str, Any]
    jetstream: Mapping[str, Any]
    nats: Mapping[str, Any]
    kafka: Mapping[str, Any]
    spark: Mapping[str, Any]


class ServingOptions(TypedDict, total=False):
    """How requests are taken in and answered: YAML's fields of a serving source."""

    host: str
    ports: Mapping[str, Any]
    auth: Mapping[str, Any]
    tls: Mapping[str, Any]
    read_timeout: Any
    ack_wait: Any
    max_in_flight: int
    msg_id_header_key: str
    request_timeout_seconds: int
    cors: Sequence[str]


def copy_fields(fields: Any) -> Any:
    """Returns a copy of the fields; what is no mapping stays as it is, for lint to report."""
    return dict(fields) if isinstance(fields, Mapping) else fields


def kinds_of(options: Mapping[str, Any], names: Iterable[str]) -> Part:
    """Those of the options that choose a kind of source or sink."""
    return {name: copy_fields(options[name]) for name in names if name in options}


def _shipped() -> Iterable[str]:
    """Returns the connectors that other packages ship."""
    from ebbflow.connectors.registry import find_shipped  # ``import ebbflow`` needs no pydantic

    return find_shipped()


def code_fields(code: CodeChoice | None) -> Part:
    """Returns how a section says what its code is."""
    if isinstance(code, Function):
        return {"container": code.to_container()}
    return {"python": code}


def source_section(
    code: CodeChoice | None,
    kinds: Mapping[str, Any],
    transformer: CodeChoice | None,
    retry: Policy | None,
    on_failure: OnFailure | None,
) -> Part:
    """Returns a source; the retries are its transformer's."""
    part = kinds_of(kinds, (*SourceKinds.__annotations__, *_shipped()))
    if code is not None:
        part["udsource"] = code_fields(code)
    retried = _retry_strategy(retry, on_failure)
    if transformer is not None or retried:
        part["transformer"] = {**code_fields(transformer), **retried}
    return part


def serving_source(
    options: Mapping[str, Any],
    transformer: CodeChoice | None,
    retry: Policy | None,
    on_failure: OnFailure | None,
) -> Part:
    """Returns a serving source; the retries are its transformer's."""
    settings = kinds_of(options, ServingOptions.__annotations__)
    return source_section(None, {"serving": settings}, transformer, retry, on_failure)


def udf(
    code: CodeChoice | None,
    mode: Mode,
    retry: Policy | None,
    on_failure: OnFailure | None,
    sql: str | None = None,
    dataframe: Code | None = None,
) -> Part:
    """Returns a map."""
    ways = {**code_fields(code), "sql": sql, "dataframe": dataframe}
    part = {name: value for name, value in ways.items() if value is not None}
    return {**part, "mode": mode, **_retry_strategy(retry, on_failure)}


def sink_section(
    code: CodeChoice | None,
    kinds: Mapping[str, Any],
    *,
    mode: SinkMode,
    log: bool,
    blackhole: bool,
    serve: bool,
    fallback: SinkChoice | None,
    on_success: SinkChoice | None,
    retry: Policy | None,
    on_failure: OnFailure | None,
) -> Part:
    """Returns a sink with those behind it."""
    part = _retry_strategy(retry, on_failure)
    part |= kinds_of(kinds, (*SinkKinds.__annotations__, *_shipped()))
    if code is not None or mode != "batch":
        part["udsink"] = code_fields(code) | ({} if mode == "batch" else {"mode": mode})
    built_in = {"log": log, "blackhole": blackhole, "serve": serve}
    part |= {name: {} for name, chosen in built_in.items() if chosen}
    beside = {"fallback": fallback, "onSuccess": on_success}
    return part | {name: _chosen_sink(sink) for name, sink in beside.items() if sink is not None}


def conditions(tags: str | Iterable[str], operator: TagOperator) -> Part:
    """Returns what a message must be like to go one way."""
    return {"tags": {"operator": operator, "values": listed(tags)}}


def store(choice: Store) -> Part:
    """Returns a store for answers; a text without a colon is a kind of store."""
    if isinstance(choice, Mapping):
        return dict(choice)
    if isinstance(choice, str) and ":" not in choice:
        return {choice: {}}
    return code_fields(choice)


def backoff(policy: Policy) -> Any:
    """Returns the fields of a back-off."""
    if not isinstance(policy, Backoff):
        return copy_fields(policy)
    return {
        "interval": timedelta(milliseconds=policy.interval),
        "steps": policy.steps,
        "factor": policy.factor,
        "cap": timedelta(milliseconds=policy.cap),
        "jitter": policy.jitter,
    }


def on_unavailable(options: Mapping[str, Any]) -> Part:
    """Returns what to do about systems that are away; errors may be given as classes."""
    waits = {name: value for name, value in options.items() if name != "errors"}
    waits = dict(waits.pop("backoff", waits))
    return {"errors": sorted(named(options.get("errors", ()))), "backoff": waits}


_SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "partitions": ("partitions", lambda count: count),
    "limits": ("limits", copy_fields),
    "inline": ("inline", lambda enabled: enabled),
    "ordered": ("ordered", lambda enabled: {"enabled": enabled}),
    "on_error": ("onError", lambda policy: {"backoff": backoff(policy)}),
    "on_unavailable": ("onUnavailable", on_unavailable),
    "breaker": ("breaker", dict),
    "serving_store": ("servingStore", store),
    "inter_step_buffer": ("interStepBuffer", copy_fields),
    "audit": ("audit", dict),
}
"""Options of a whole pipeline or of a step → their names in YAML, and what writes them."""


def settings(options: Mapping[str, Any]) -> Part:
    """Those of the options that are settings of a pipeline or of a step, as YAML has them."""
    given = {name: how for name, how in _SETTINGS.items() if name in options}
    return {field: write(options[name]) for name, (field, write) in given.items()}


def listed(names: str | Iterable[str]) -> list[str]:
    """Returns the names as a list; a lone text is one name, and not a list of letters."""
    return [names] if isinstance(names, str) else list(names)


def _retry_strategy(retry: Policy | None, on_failure: OnFailure | None) -> Part:
    """Returns the retry strategy, if there is one; ``onFailure`` may be among its fields."""
    if retry is None and on_failure is None:
        return {}
    waits = {} if retry is None else backoff(retry)
    known = ("on_failure", "onFailure") if isinstance(waits, dict) else ()
    ends = {name: waits.pop(name) for name in known if name in waits}
    ends = ends if on_failure is None else {"onFailure": on_failure}
    return {"retryStrategy": {"backoff": waits, **ends}}


def _chosen_sink(choice: SinkChoice) -> Part:
    if isinstance(choice, Mapping):
        return dict(choice)
    if isinstance(choice, str) and ":" not in choice:
        return {choice: {}}
    return {"udsink": code_fields(choice)}


P = ParamSpec("P")
R = TypeVar("R")


def named_options(method: Callable[P, R]) -> Callable[P, R]:
    """Returns the method, which raises ``TypeError`` for a keyword that it does not take."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _names(method)
        for name in kwargs:
            if name not in known:
                meant = did_you_mean(name, known, "it takes")
                raise TypeError(f"{_display_name(method)} has no option {name!r}; {meant}")
        return method(*args, **kwargs)

    return call


@functools.cache
def _names(method: Callable[..., object]) -> tuple[str, ...]:
    """Returns what may be given by name, that of the typed dictionary behind ``**`` included."""
    names: list[str] = []
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
            continue
        (options,) = get_args(get_type_hints(method)[name])
        hints = get_type_hints(options)
        names += hints
        if any(kinds.__annotations__.keys() <= hints.keys() for kinds in (SourceKinds, SinkKinds)):
            names += _shipped()
    return tuple(names)


def _display_name(method: Callable[..., object]) -> str:
    return f"{method.__qualname__.removesuffix('.__init__')}()"
