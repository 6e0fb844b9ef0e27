"""The Python builder: the same pipeline as in YAML, written as a chain of calls.

    Pipeline("orders").source("in", generator={"messages": 100}).map("enrich", enrich).sink(
        "store", store
    )

Each map and sink reads from the source or map before it. Two sinks in a row therefore read from
the same step. ``after`` names other steps to read from, and ``tags`` says which messages follow::

    (
        Pipeline("orders")
        .source("in", "shop:Orders")
        .map("split", split)
        .sink("big", store_big, tags=["big"])
        .sink("rest", log=True, after="split", tags=["big"], operator="not")
    )

A sink may have others behind it, and may be called again for what it reports as failed::

    .sink("store", store, retry={"interval": "1s", "steps": 3}, on_failure="fallback",
          fallback="log")

A pipeline answers requests if it begins with ``serve``, and a sink serves what it gets::

    Pipeline("ask").serve("in", ports={"http": 8080}).map("think", think).sink("out", serve=True)

``retry`` is a ``Backoff`` or its fields. ``fallback`` and ``on_success`` are user code, ``"log"``
or ``"blackhole"``; a text with a colon in it is user code.

The rules that check YAML check a pipeline in Python too, when ``spec`` is read or ``run`` called.
The model is imported only then: importing this module must stay cheap, because every Spark worker
does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from ebbflow.domain.code import Code, Mode, OnFailure, OnFull, SinkMode, TagOperator
from ebbflow.domain.errors import Problem, SpecError
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
    from collections.abc import Sequence

    from ebbflow.runtime.run_setup import Attachment, RunOptionNames
    from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec
    from ebbflow.status.run_report import Summary, Watcher


class Builder:
    """A pipeline or MonoVertex that is written in Python."""

    @property
    def spec(self) -> Spec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        raise NotImplementedError

    def run(
        self,
        *,
        quiet: bool = True,
        watcher: Watcher | None = None,
        ui: bool | str = False,
        metrics: bool | str = False,
        **options: Unpack[RunOptionNames],
    ) -> Summary:
        """Checks the pipeline and runs it on this driver; blocks until it has ended.

        It ends when it is drained (``drain=True``), timed out (``timeout="5m"``) or stopped with
        Ctrl-C. It shows what vertices print, a ``log`` sink included, where it listens, and what
        needs attention; the logger ``ebbflow`` has the rest. ``quiet=False`` shows what
        ``ebbflow run`` shows; your own ``watcher`` receives everything instead.

        ``ui`` serves a web UI of the run, and ``metrics`` its metrics and health alone: ``True``,
        or where to listen as ``"HOST:PORT"``. The addresses are told like all else.

        Raises ``SpecError`` if the pipeline has problems, ``TypeError`` for an option that does not
        exist, ``SetupError`` if this machine is not ready, and ``EngineLost`` if Spark kept dying.
        An exception in user code is the outcome of its message and does not end the run.
        """
        from ebbflow.runtime.run_setup import RunOptions

        RunOptions.of(options)  # a misspelt option is told before anything is started
        if not quiet and watcher is not None:
            raise TypeError("run() takes quiet=False or a watcher, not both")
        spec = self.spec
        from ebbflow.spark.run import run_pipeline

        beside: list[Attachment] = []
        if ui or metrics:
            from ebbflow.ui.web_ui import attach_web_ui

            beside = attach_web_ui(ui, metrics)

        if watcher is not None:
            return run_pipeline(spec, watcher=watcher, beside=beside, **options)
        if quiet:
            return _run_quietly(spec, beside, options)
        from ebbflow.status.terminal import open_display
        from ebbflow.status.terminal.overview import show_end

        with open_display(draining=options.get("drain", False)) as display:
            summary = run_pipeline(spec, watcher=display, beside=beside, **options)
        show_end(display, summary)
        return summary


def _run_quietly(spec: Spec, beside: Sequence[Attachment], options: RunOptionNames) -> Summary:
    """Runs a pipeline and draws nothing; says so if there was nothing to do."""
    from ebbflow.spark.run import run_pipeline
    from ebbflow.status.run_report import NOTHING_READ, START_OVER, QuietWatcher

    watcher = QuietWatcher()
    summary = run_pipeline(spec, watcher=watcher, beside=beside, **options)
    if summary.had_nothing_to_do:
        watcher.stage(f"{NOTHING_READ} {START_OVER}")
    return summary


def _given(**options: Any) -> dict[str, Any]:
    """Returns the settings that are not left out, as YAML has them."""
    return parts.settings({name: value for name, value in options.items() if value is not None})


class VertexOptions(TypedDict, total=False):
    """The options of every vertex.

    ``limits`` and a mapping for ``on_error`` have YAML's fields, in camel case or snake case:
    ``limits={"read_batch_size": 50}``, ``on_error={"interval": "2s", "steps": 3}``,
    ``on_unavailable={"errors": [Down], "interval": "1s"}``, ``breaker={"share": 0.2}``. With
    ``inline=False`` the task of the vertex before never runs this one itself.
    """

    partitions: int
    inline: bool
    limits: Mapping[str, Any]
    ordered: bool
    on_error: Policy
    on_unavailable: Mapping[str, Any]
    breaker: Mapping[str, Any]


class SourceOptions(VertexOptions, SourceKinds):
    """The options of a source, and the places its messages can come from."""


class ServeOptions(VertexOptions, ServingOptions):
    """The options of a serving source: of its vertex, and how it takes requests in."""


class SinkOptions(VertexOptions, SinkKinds):
    """The options of a sink, and the places its messages can go to."""


class Pipeline(Builder):
    """Builds a pipeline step by step; ``run`` runs it and ``spec`` gives the checked model.

    ``serving_store`` is a class of yours, ``"nats"`` or ``{"nats": {"ttl": "1h"}}``. ``limits`` and
    ``ordered`` hold for every step that does not say otherwise. ``inter_step_buffer`` has YAML's
    fields: ``{"replicas": 3, "publish": {"ack_wait": "30s"}}``. ``audit`` keeps a table of what
    became of every message: ``{"format": "parquet", "options": {"path": "audit"}}``. With
    ``inline=True`` tasks may run the next vertices themselves, without a buffer in between.
    """

    @named_options
    def __init__(
        self,
        name: str,
        *,
        limits: Mapping[str, Any] | None = None,
        serving_store: Store | None = None,
        ordered: bool = False,
        inter_step_buffer: Mapping[str, Any] | None = None,
        audit: Mapping[str, Any] | None = None,
        inline: bool | None = None,
    ) -> None:
        self._name = name
        self._vertices: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._body: dict[str, Any] = {"vertices": self._vertices, "edges": self._edges}
        self._body |= parts.settings({"limits": limits or {}, "ordered": ordered})
        self._body |= _given(
            serving_store=serving_store,
            inter_step_buffer=inter_step_buffer,
            audit=audit,
            inline=inline,
        )
        self._previous: str | None = None

    @named_options
    def source(
        self,
        name: str,
        code: CodeChoice | None = None,
        *,
        transformer: CodeChoice | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[SourceOptions],
    ) -> Self:
        """Adds a source: user code, or one of YAML's such as ``generator={"messages": 100}``.

        The transformer gets each message before it is first stored. ``retry`` and ``on_failure``
        say what happens to messages that it reports as failed.
        """
        part = parts.source_section(code, options, transformer, retry, on_failure)
        self._add({"name": name, "source": part}, options)
        self._previous = name
        return self

    @named_options
    def serve(
        self,
        name: str,
        *,
        transformer: CodeChoice | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[ServeOptions],
    ) -> Self:
        """Adds a source that takes requests in over HTTP; callers get what sinks serve.

        ``ports={"http": 8080}`` and the like are YAML's fields. Answers are kept in the pipeline's
        ``serving_store``, in NATS if it says none. The rest is as for ``source``.
        """
        part = parts.serving_source(options, transformer, retry, on_failure)
        self._add({"name": name, "source": part}, options)
        self._previous = name
        return self

    @named_options
    def map(
        self,
        name: str,
        code: CodeChoice | None = None,
        *,
        mode: Mode = "unary",
        sql: str | None = None,
        dataframe: Code | None = None,
        retry: Policy | None = None,
        on_failure: OnFailure | None = None,
        after: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retryUntilSuccess",
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Adds a map that reads from the step before it, or from those named by ``after``.

        ``after=()`` connects it to nothing; ``edge`` can then do so. ``mode`` says what one
        call of the code gets: one message, a batch, or a table of them. In place of code there may
        be ``sql`` over the view ``messages``, or a function ``dataframe`` from DataFrame to
        DataFrame.
        """
        part = parts.udf(code, mode, retry, on_failure, sql, dataframe)
        self._add({"name": name, "udf": part}, options)
        self._connect(name, after, tags, operator, on_full)
        self._previous = name
        return self

    @named_options
    def sink(
        self,
        name: str,
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
        after: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retryUntilSuccess",
        **options: Unpack[SinkOptions],
    ) -> Self:
        """Adds a sink: user code, ``log=True``, ``blackhole=True`` or one of YAML's kinds.

        A sink is connected like a map. ``mode`` says what one call of the code gets: a list of
        messages, or a table of them. ``fallback`` gets the messages that the sink cannot write,
        ``on_success`` those that it passes on.
        """
        part = parts.sink_section(
            code,
            options,
            mode=mode,
            log=log,
            blackhole=blackhole,
            serve=serve,
            fallback=fallback,
            on_success=on_success,
            retry=retry,
            on_failure=on_failure,
        )
        self._add({"name": name, "sink": part}, options)
        self._connect(name, after, tags, operator, on_full)
        return self

    @named_options
    def edge(
        self,
        from_: str,
        to: str,
        *,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retryUntilSuccess",
    ) -> Self:
        """Connects two steps by name, in addition to what the chain connects.

        A map may be connected to itself or to an earlier one; its messages then go round.
        """
        edge: dict[str, Any] = {"from": from_, "to": to, "onFull": on_full}
        if tags is not None:
            edge["conditions"] = parts.conditions(tags, operator)
        self._edges.append(edge)
        return self

    @property
    def spec(self) -> PipelineSpec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        from ebbflow.spec.lint import build
        from ebbflow.spec.model import PipelineSpec

        return build(PipelineSpec, {"metadata": {"name": self._name}, "spec": self._body})

    def _add(self, vertex: dict[str, Any], options: VertexOptions) -> None:
        self._vertices.append(vertex | parts.settings(options))

    def _connect(
        self,
        name: str,
        after: str | Iterable[str] | None,
        tags: str | Iterable[str] | None,
        operator: TagOperator,
        on_full: OnFull,
    ) -> None:
        before = self._previous if after is None else after
        listed = None if tags is None else parts.listed(tags)
        for step in [] if before is None else parts.listed(before):
            self.edge(step, name, tags=listed, operator=operator, on_full=on_full)


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
        self._body |= parts.settings({"limits": limits or {}})
        self._body |= _given(
            partitions=partitions,
            on_error=on_error,
            on_unavailable=on_unavailable,
            breaker=breaker,
            serving_store=serving_store,
            inter_step_buffer=inter_step_buffer,
            audit=audit,
        )

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
        part = parts.source_section(code, kinds, transformer, retry, on_failure)
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
        part = parts.sink_section(
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
