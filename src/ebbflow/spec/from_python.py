"""Parts of a spec as plain data, from the arguments that the Python builders take.

Only arguments that were passed are written, so that the model's defaults apply. Connectors, limits
and other parts were checked when they were created (``connectors.part``). Lint reports all other
problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar

from ebbflow.connectors.part import Connector, Part, plain_value
from ebbflow.connectors.typed import BearerToken, Certificate, Ports
from ebbflow.domain.code import Code, Function, Mode, OnFailure, SinkMode, TagOperator
from ebbflow.domain.durations import Backoff, Duration
from ebbflow.domain.spelling import did_you_mean, named_options
from ebbflow.engine.system_errors import named
from ebbflow.spec.typed import Audit, Breaker, InterStepBuffer, Limits, NatsStore

CodeChoice = Code | Function
"""User code: a Python function or class, or a function in its own process."""

SourceChoice = CodeChoice | Connector
"""A source: user code or a connector."""

SinkChoice = CodeChoice | Connector
"""A sink: user code or a connector."""

Store = CodeChoice | Literal["nats"] | NatsStore
"""A store for answers: the user's own class, ``"nats"``, or ``NatsStore(ttl="1h")``."""

OnFull = Literal["retry_until_success", "discard_latest"]
"""What happens to a message when its target buffer is full: it waits, or is dropped."""

ON_FULL = {"retry_until_success": "retryUntilSuccess", "discard_latest": "discardLatest"}
"""The same in YAML."""

Fields = dict[str, Any]
K = TypeVar("K")


class OnUnavailable(Part):
    """What to do while a system that user code needs is unavailable.

    ``errors`` are further exceptions that mean this, as classes or as ``"module:Class"``. The other
    options say how long to wait between two tries. The vertex tries for as long as it takes.
    """

    MODELS = ("ebbflow.spec.sections:OnUnavailableSpec",)

    @named_options
    def __init__(
        self,
        errors: Iterable[type[BaseException] | str] = (),
        *,
        interval: Duration | None = None,
        factor: float | None = None,
        cap: Duration | None = None,
        jitter: float | None = None,
    ) -> None:
        waits = {"interval": interval, "factor": factor, "cap": cap, "jitter": jitter}
        chosen = {name: value for name, value in waits.items() if value is not None}
        super().__init__(errors=sorted(named(errors)), backoff=chosen)


class ServingOptions(TypedDict, total=False):
    """How requests are accepted and answered: the fields of a serving source in YAML."""

    host: str
    ports: Ports
    auth: BearerToken
    tls: Certificate
    read_timeout: Duration
    ack_wait: Duration
    max_in_flight: int
    msg_id_header_key: str
    request_timeout_seconds: int
    cors: Sequence[str]


def code_fields(code: CodeChoice | None) -> Fields:
    """Returns the fields of a section that name its code."""
    if isinstance(code, Function):
        return {"container": code.to_container()}
    return {"python": code}


def source_section(
    source: SourceChoice | None,
    transformer: CodeChoice | None,
    retry: Backoff | None,
    on_failure: OnFailure | None,
) -> Fields:
    """Returns a source; the retries are its transformer's."""
    part: Fields = {}
    if isinstance(source, Connector):
        part = source.section("source")
    elif source is not None:
        part["udsource"] = code_fields(_code(source))
    retried = _retry_strategy(retry, on_failure)
    if transformer is not None or retried:
        part["transformer"] = {**code_fields(transformer), **retried}
    return part


def serving_source(
    options: Mapping[str, Any],
    transformer: CodeChoice | None,
    retry: Backoff | None,
    on_failure: OnFailure | None,
) -> Fields:
    """Returns a serving source; the retries are its transformer's."""
    names = [name for name in ServingOptions.__annotations__ if name in options]
    serving = {name: _checked_option(name, options[name]) for name in names}
    return {"serving": serving, **source_section(None, transformer, retry, on_failure)}


def _checked_option(name: str, value: Any) -> Any:
    kinds: dict[str, type[Part]] = {"ports": Ports, "auth": BearerToken, "tls": Certificate}
    return _part_fields(name, kinds[name])(value) if name in kinds else plain_value(value)


def _code(choice: Any) -> CodeChoice:
    """Returns user code; ``TypeError`` for a connector that is a class, a mapping or a name."""
    if isinstance(choice, type) and issubclass(choice, Connector):
        name = choice.__name__
        raise TypeError(f"{name} is the class of a connector; write {name}(...)")
    if isinstance(choice, Mapping) or choice in ("log", "blackhole", "serve"):
        raise TypeError(
            "a source or sink is user code or a connector of ebbflow.connectors, such as Log(), "
            f"not {choice!r:.60}"
        )
    return choice  # type: ignore[no-any-return]


def udf(
    code: CodeChoice | None,
    mode: Mode,
    retry: Backoff | None,
    on_failure: OnFailure | None,
    sql: str | None = None,
    dataframe: Code | None = None,
) -> Fields:
    """Returns a map."""
    choices = {**code_fields(code), "sql": sql, "dataframe": dataframe}
    part = {name: value for name, value in choices.items() if value is not None}
    return {**part, "mode": mode, **_retry_strategy(retry, on_failure)}


def sink_section(
    sink: SinkChoice | None,
    *,
    mode: SinkMode,
    fallback: SinkChoice | None,
    on_success: SinkChoice | None,
    retry: Backoff | None,
    on_failure: OnFailure | None,
) -> Fields:
    """Returns a sink with its fallback and on-success sinks."""
    part = _retry_strategy(retry, on_failure)
    if sink is not None or mode != "batch":
        part |= _chosen_sink(sink, mode)
    more = {"fallback": fallback, "onSuccess": on_success}
    return part | {name: _chosen_sink(each) for name, each in more.items() if each is not None}


def on_full(choice: OnFull) -> str:
    """Returns YAML's value for it; ``ValueError`` for anything else, including YAML's own value."""
    if choice not in ON_FULL:
        meant = did_you_mean(str(choice), ON_FULL, "it is one of")
        raise ValueError(f"on_full cannot be {choice!r}; {meant}")
    return ON_FULL[choice]


def conditions(tags: str | Iterable[str], operator: TagOperator) -> Fields:
    """Returns the conditions on a message to follow an edge."""
    return {"tags": {"operator": operator, "values": listed(tags)}}


def store(choice: Store) -> Fields:
    """Returns a store for answers."""
    if isinstance(choice, Mapping):
        raise TypeError('serving_store takes a class, "nats" or NatsStore(...), not a mapping')
    if choice == "nats":
        return {"nats": {}}
    return {"nats": choice.to_plain()} if isinstance(choice, NatsStore) else code_fields(choice)


def backoff(policy: Backoff) -> Fields:
    """Returns the fields of a back-off."""
    if not isinstance(policy, Backoff):
        raise TypeError(f'a back-off is Backoff("1s", steps=3), not {type(policy).__name__}')
    return {
        "interval": timedelta(milliseconds=policy.interval),
        "steps": policy.steps,
        "factor": policy.factor,
        "cap": timedelta(milliseconds=policy.cap),
        "jitter": policy.jitter,
    }


def _part_fields(option: str, kind: type[Part]) -> Callable[[Any], Fields]:
    """Returns a function that writes an option whose value must be a part of this kind."""

    def write(value: Any) -> Fields:
        if not isinstance(value, kind):
            raise TypeError(f"{option} takes {kind.__name__}(...), not {type(value).__name__}")
        return value.to_plain()

    return write


_SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "partitions": ("partitions", lambda count: count),
    "limits": ("limits", _part_fields("limits", Limits)),
    "inline": ("inline", lambda enabled: enabled),
    "ordered": ("ordered", lambda enabled: {"enabled": enabled}),
    "on_error": ("onError", lambda policy: {"backoff": backoff(policy)}),
    "on_unavailable": ("onUnavailable", _part_fields("on_unavailable", OnUnavailable)),
    "breaker": ("breaker", _part_fields("breaker", Breaker)),
    "serving_store": ("servingStore", store),
    "inter_step_buffer": ("interStepBuffer", _part_fields("inter_step_buffer", InterStepBuffer)),
    "audit": ("audit", _part_fields("audit", Audit)),
}
"""Options of a whole pipeline or of a step → their names in YAML, and what writes them."""


def settings(options: Mapping[str, Any]) -> Fields:
    """Returns the options that are settings of a pipeline or of a step, in their YAML form."""
    known = {name: how for name, how in _SETTINGS.items() if name in options}
    return {field: write(options[name]) for name, (field, write) in known.items()}


def listed(names: str | Iterable[str]) -> list[str]:
    """Returns the names as a list; a single text is one name, not a list of characters."""
    return [names] if isinstance(names, str) else list(names)


def _retry_strategy(retry: Backoff | None, on_failure: OnFailure | None) -> Fields:
    """Returns the retry strategy, if there is one."""
    if retry is None and on_failure is None:
        return {}
    waits = {} if retry is None else {"backoff": backoff(retry)}
    ends = {} if on_failure is None else {"onFailure": on_failure}
    return {"retryStrategy": {**waits, **ends}}


def _chosen_sink(choice: SinkChoice | None, mode: SinkMode = "batch") -> Fields:
    if isinstance(choice, Connector):
        return choice.section("sink")
    code = None if choice is None else _code(choice)
    return {"udsink": code_fields(code) | ({} if mode == "batch" else {"mode": mode})}
