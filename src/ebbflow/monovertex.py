"""The Python builder of a MonoVertex: source, map and sinks in one step, without buffers between.

    (
        MonoVertex("orders")
        .source(generator={"messages": 100}, transformer=first_look)
        .map(enrich)
        .sink(store, fallback="log")
        .bypass(fallback=["bad"])
    )

Each part is given once. As with ``Pipeline``, the rules that check YAML check it when ``spec`` is
read or the MonoVertex runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

from ebbflow.builder import Builder
from ebbflow.errors import Problem, SpecError
from ebbflow.schema.literals import Mode, OnFailure, SinkMode, TagOperator
from ebbflow.spec import from_python as parts
from ebbflow.spec.from_python import (
    CodeChoice,
    Policy,
    ServingOptions,
    SinkChoice,
    SinkKinds,
    SourceKinds,
    Store,
    named_options,
)

if TYPE_CHECKING:
    from ebbflow.spec.model import MonoVertexSpec


class MonoVertex(Builder):
    """Builds a MonoVertex part by part; ``run`` runs it and ``spec`` gives the checked model.

    ``partitions`` is the number of tasks, one if left out. ``limits``, ``breaker`` and mappings for
    ``on_error`` and ``on_unavailable`` have YAML's fields, in camel case or snake case, as for the
    steps of a ``Pipeline``. ``serving_store`` is a class of
    yours, ``"nats"`` or ``{"nats": {"ttl": "1h"}}``. ``inter_step_buffer`` is about the streams of
    redeliveries and dead letters, with YAML's fields: ``{"replicas": 3}``. ``audit`` is the
    table of what became of every message, as for a ``Pipeline``.
    """

    @named_options
    def __init__(
        self,
        name: str,
        *,
        partitions: int | None = None,
        limits: Mapping[str, Any] | None = None,
        on_error: Policy | None = None,
        on_unavailable: Mapping[str, Any] | None = None,
        breaker: Mapping[str, Any] | None = None,
        serving_store: Store | None = None,
        inter_step_buffer: Mapping[str, Any] | None = None,
        audit: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._bypass: dict[str, Any] = {}
        self._body: dict[str, Any] = {"bypass": self._bypass}
        self._body["limits"] = parts.fields_of(limits or {})
        if partitions is not None:
            self._body["partitions"] = partitions
        if on_error is not None:
            self._body["onError"] = {"backoff": parts.backoff(on_error)}
        if on_unavailable is not None:
            self._body["onUnavailable"] = parts.on_unavailable(on_unavailable)
        if breaker is not None:
            self._body["breaker"] = dict(breaker)
        if serving_store is not None:
            self._body["servingStore"] = parts.store(serving_store)
        if inter_step_buffer is not None:
            self._body["interStepBuffer"] = parts.fields_of(inter_step_buffer)
        if audit is not None:
            self._body["audit"] = dict(audit)

    @named_options
    def source(
        self,
        code: CodeChoice | None = None,
        *,
        transformer: CodeChoice | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        **kinds: Unpack[SourceKinds],
    ) -> Self:
        """Reads from user code, or from ``generator={"messages": 100, "rpu": 5}``.

        ``retry`` and ``on_failure`` say what happens to messages that the transformer reports as
        failed.
        """
        part = parts.source(code, kinds, transformer, retry, on_failure)
        return self._give(self._body, "source", part)

    @named_options
    def serve(
        self,
        *,
        transformer: CodeChoice | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[ServingOptions],
    ) -> Self:
        """Takes requests in over HTTP, in place of ``source``; callers get what the sink serves.

        ``ports={"http": 8080}`` and the like are YAML's fields. Answers are kept in the
        ``serving_store``, in NATS if there is none.
        """
        part = parts.serving_source(options, transformer, retry, on_failure)
        return self._give(self._body, "source", part)

    @named_options
    def map(
        self,
        code: CodeChoice,
        *,
        mode: Mode = "unary",
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
    ) -> Self:
        """Changes each message; ``mode`` says what one call of the code gets."""
        return self._give(self._body, "udf", parts.udf(code, mode, retry, on_failure))

    @named_options
    def sink(
        self,
        code: CodeChoice | None = None,
        *,
        mode: SinkMode = "batch",
        log: bool = False,
        blackhole: bool = False,
        serve: bool = False,
        fallback: SinkChoice | None = None,
        on_success: SinkChoice | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        **kinds: Unpack[SinkKinds],
    ) -> Self:
        """Writes to user code, or with ``log=True``, ``blackhole=True`` or ``serve=True``.

        ``mode`` says what one call of the code gets. ``fallback`` gets the messages that the sink
        cannot write, ``on_success`` those that it passes on.
        """
        part = parts.sink(
            code,
            kinds,
            mode=mode,
            log=log,
            blackhole=blackhole,
            serve=serve,
            fallback=fallback,
            on_success=on_success,
            retry=retry,
            on_failure=on_failure,
        )
        return self._give(self._body, "sink", part)

    @named_options
    def bypass(
        self,
        *,
        sink: str | Iterable[str] | None = None,
        fallback: str | Iterable[str] | None = None,
        on_success: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
    ) -> Self:
        """Sends messages with these tags straight to one of the sinks, past all that is left.

        May be called again, for another sink with another operator.
        """
        for target, tags in (("sink", sink), ("fallback", fallback), ("onSuccess", on_success)):
            if tags is not None:
                self._give(self._bypass, target, parts.conditions(tags, operator))
        return self

    @property
    def spec(self) -> MonoVertexSpec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        from ebbflow.spec.lint import build
        from ebbflow.spec.model import MonoVertexSpec

        return build(MonoVertexSpec, {"metadata": {"name": self._name}, "spec": self._body})

    def _give(self, holder: dict[str, Any], name: str, part: dict[str, Any]) -> Self:
        # Taking the later one would leave the earlier silently without effect.
        if name in holder:
            place = f"MonoVertex {self._name}" + (", bypass" if holder is self._bypass else "")
            raise SpecError([Problem("", 0, 0, "EB003", f"{name!r} is already given", place)])
        holder[name] = part
        return self
