"""The Python builder: the same pipeline as in YAML, written as a chain of calls.

    Pipeline("orders").source("in", Generator(messages=100)).map("enrich", enrich).sink(
        "store", store
    )

Each map and sink reads from the source or map before it. Two sinks in a row therefore read from
the same step. ``after`` names other steps to read from, and ``tags`` says which messages follow::

    (
        Pipeline("orders")
        .source("in", "shop:Orders")
        .map("split", split)
        .sink("big", store_big, tags=["big"])
        .sink("rest", Log(), after="split", tags=["big"], operator="not")
    )

A sink may have a fallback sink, and may be called again for messages that it reports as failed::

    .sink("store", store, retry=Backoff("1s", steps=3), on_failure="fallback", fallback=Log())

A pipeline that begins with ``serve`` answers requests with the messages of a ``Serve`` sink::

    Pipeline("ask").serve("in", ports=Ports(http=8080)).map("think", think).sink("out", Serve())

Sources and sinks are user code, or connectors of ``ebbflow.connectors``. This module exports the
settings that options take, such as ``Audit`` and ``Breaker``.

Pipelines in Python are checked by the same rules as YAML, when ``spec`` is read or ``run`` is
called. The model is imported only then: importing this module must stay cheap, because every Spark
worker does it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
)

from typing_extensions import override

from ebbflow.domain.code import Code, Mode, OnFailure, SinkMode, TagOperator
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import Problem, SetupError, SpecError
from ebbflow.domain.spelling import named_options
from ebbflow.spec import from_python as parts
from ebbflow.spec.from_python import (
    CodeChoice,
    OnFull,
    OnUnavailable,
    ServingOptions,
    SinkChoice,
    SourceChoice,
    Store,
)
from ebbflow.spec.typed import Audit, Breaker, InterStepBuffer, Limits, NatsStore, Publish
from ebbflow.usercode.codecs import Decode, Encode, coded_map, coded_sink

if TYPE_CHECKING:
    from ebbflow.operations.pipeline_run import PipelineRun
    from ebbflow.runtime.run_setup import Attachment, RunOptionNames
    from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec
    from ebbflow.status.run_report import Summary, Watcher

__all__ = [
    "Audit",
    "Breaker",
    "InterStepBuffer",
    "MonoVertex",
    "NatsStore",
    "OnUnavailable",
    "Pipeline",
    "Publish",
]

P = ParamSpec("P")
B = TypeVar("B", bound="Builder")


class Builder:
    """A pipeline or MonoVertex that is written in Python.

    Builders are immutable: each method returns a new builder with the part added. So a notebook
    cell may run twice, and several pipelines may share their first steps.
    """

    _name: str
    _body: dict[str, Any]

    def _copy(self) -> Self:
        """Returns a builder with the same parts, which can be changed independently."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        raise NotImplementedError

    def run(
        self,
        *,
        quiet: bool | None = None,
        watcher: Watcher | None = None,
        ui: bool | str = False,
        metrics: bool | str = False,
        **options: Unpack[RunOptionNames],
    ) -> Summary:
        """Checks the pipeline and runs it on this driver; blocks until the run ends.

        It ends when it is drained (``drain=True``), timed out (``timeout="5m"``) or stopped with
        Ctrl-C. In a terminal and in a notebook it shows its progress. Elsewhere, and with
        ``quiet=True``, it shows the output of vertices and ``log`` sinks, the addresses it listens
        on and what needs attention; the rest goes to the logger ``ebbflow``. ``quiet=False`` shows
        progress everywhere; your own ``watcher`` receives everything instead.

        ``ui`` serves a web UI of the run, and ``metrics`` only its metrics and health: ``True``,
        or the address to listen on as ``"HOST:PORT"``. The run reports the addresses.

        Spark stays open, so the next run of this process starts within a second.

        Raises ``SpecError`` if the pipeline has problems, ``TypeError`` for an option that does not
        exist, ``SetupError`` if this machine is not ready, and ``EngineLost`` if Spark kept dying.
        An exception in user code affects only its message and does not end the run.
        """
        if quiet is False and watcher is not None:
            raise TypeError("run() takes quiet=False or a watcher, not both")
        if watcher is not None:
            return self._prepare(watcher, ui, metrics, options).execute()
        from ebbflow.operations.pipeline_run import NotebookView, is_notebook
        from ebbflow.status.run_report import QuietWatcher

        notebook = quiet is not True and is_notebook()
        if not notebook and (quiet is False or (quiet is None and sys.stdout.isatty())):
            return self._run_on_display(ui, metrics, options)
        viewer = QuietWatcher()
        view = NotebookView(viewer, self._name) if notebook else None
        summary = self._prepare(view or viewer, ui, metrics, options).execute()
        if view is not None:
            view.show(summary.status)
        viewer.end(summary)
        return summary

    def start(
        self,
        *,
        watcher: Watcher | None = None,
        ui: bool | str = False,
        metrics: bool | str = False,
        **options: Unpack[RunOptionNames],
    ) -> PipelineRun:
        """Starts the pipeline in the background and returns a handle once it is running.

            with orders.start(drain=True) as run:
                print(run.status())
                summary = run.wait(timeout="60s")

        Takes the options of ``run`` and raises the same errors. Unless you pass a ``watcher``,
        vertices print to standard output, and problems go to the logger ``ebbflow``. The run ends
        with this process at the latest: use the handle as a context manager, or call ``stop``.
        """
        from ebbflow.status.run_report import QuietWatcher

        viewer = watcher or QuietWatcher()
        return self._prepare(viewer, ui, metrics, options, "start").start()

    def _prepare(
        self,
        watcher: Watcher,
        ui: bool | str,
        metrics: bool | str,
        options: RunOptionNames,
        call: str = "run",
    ) -> PipelineRun:
        """Makes every check that needs no Spark, and returns a run that has not started."""
        from ebbflow.runtime.run_setup import RunOptions

        checked = RunOptions.of(options, call)  # a misspelt option is reported before anything else
        spec = self.spec
        _refuse_during_import(self._body, call)
        from ebbflow.operations.pipeline_run import PipelineRun

        attachments: list[Attachment] = []
        if ui or metrics:
            from ebbflow.ui.web_ui import attach_web_ui

            attachments = attach_web_ui(ui, metrics)
        return PipelineRun(spec, checked, watcher, attachments)

    def _run_on_display(
        self, ui: bool | str, metrics: bool | str, options: RunOptionNames
    ) -> Summary:
        from ebbflow.status.terminal import open_display
        from ebbflow.status.terminal.overview import show_end

        with open_display(draining=options.get("drain", False)) as display:
            summary = self._prepare(display, ui, metrics, options).execute()
        show_end(display, summary)
        return summary

    def _repr_html_(self) -> str:
        """Returns the graph as a picture for notebooks, or what is wrong with the pipeline."""
        from html import escape

        from ebbflow.spec.echo import outline
        from ebbflow.spec.graph.drawings import draw_svg

        try:
            return draw_svg(outline(self.spec))
        except SpecError as error:
            return f"<pre>{escape(str(error))}</pre>"


def _explained(error: SpecError) -> SpecError:
    """Returns the error with what to write in Python, where its words are those of YAML."""
    return SpecError([_with_hint(problem) for problem in error.problems])


def _with_hint(problem: Problem) -> Problem:
    hint = _HINTS.get(problem.code)
    if hint is None or (problem.code == "EB207" and " needs one of " not in problem.message):
        return problem
    return replace(problem, message=f"{problem.message}. {hint}")


_KEEP = "A builder never changes: keep what its methods return, p = p.sink(...)"
_HINTS = {
    "EB201": _KEEP,
    "EB204": _KEEP,
    "EB207": "In Python, give a function, a class, or a connector such as Log(), not None",
}


def _refuse_during_import(body: Mapping[str, Any], call: str) -> None:
    """Raises ``SetupError`` if code of the pipeline is in a module that is still being imported.

    Python holds the lock of that module, so that the run could never send its code to Spark.
    """
    for name in _modules_of(body):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if name != "__main__" and getattr(spec, "_initializing", False):
            raise SetupError(
                f"{call}() was called while {name} is being imported, and Spark's workers would "
                "import it too.",
                'Put the call in a function, or under: if __name__ == "__main__":',
            )


def _modules_of(part: Any) -> Iterator[str]:
    """Yields the modules of the functions and classes in a pipeline."""
    if isinstance(part, Mapping):
        for each in part.values():
            yield from _modules_of(each)
    elif isinstance(part, list):
        for each in part:
            yield from _modules_of(each)
    elif callable(part):
        inner = getattr(part, "func", part)
        name = getattr(inner, "__module__", None)
        if isinstance(name, str):
            yield name


def _on_a_copy(method: Callable[Concatenate[B, P], B]) -> Callable[Concatenate[B, P], B]:
    """Returns the method, wrapped so that it changes and returns a copy of its builder."""

    @functools.wraps(method)
    def call(builder: B, /, *args: P.args, **kwargs: P.kwargs) -> B:
        return method(builder._copy(), *args, **kwargs)

    return call


def _settings(**options: Any) -> dict[str, Any]:
    """Returns the settings that are not ``None``, in their YAML form."""
    return parts.settings({name: value for name, value in options.items() if value is not None})


class VertexOptions(TypedDict, total=False):
    """The options of every vertex.

    ``limits=Limits(read_batch_size=50)``, ``on_error=Backoff("2s", steps=3)``,
    ``on_unavailable=OnUnavailable([Down], interval="1s")``, ``breaker=Breaker(share=0.2)``. With
    ``inline=False`` the task of the previous vertex never runs this vertex itself.
    """

    partitions: int
    inline: bool
    limits: Limits
    ordered: bool
    on_error: Backoff
    on_unavailable: OnUnavailable
    breaker: Breaker


class ServeOptions(VertexOptions, ServingOptions):
    """The options of a serving source: those of its vertex, and how it accepts requests."""


class Pipeline(Builder):
    """Builds a pipeline step by step; ``run`` runs it and ``spec`` gives the checked model.

    ``serving_store`` is your own class, ``"nats"`` or ``NatsStore(ttl="1h")``. ``limits`` and
    ``ordered`` apply to every step that does not set its own. ``inter_step_buffer`` configures the
    streams: ``InterStepBuffer(replicas=3)``. ``audit`` writes the outcome of every message to a
    table: ``Audit(format="parquet", options={"path": "audit"})``. With ``inline=False`` every
    vertex has its own tasks, and messages always go through buffers.
    """

    @named_options
    def __init__(
        self,
        name: str,
        *,
        limits: Limits | None = None,
        serving_store: Store | None = None,
        ordered: bool = False,
        inter_step_buffer: InterStepBuffer | None = None,
        audit: Audit | None = None,
        inline: bool | None = None,
    ) -> None:
        self._name = name
        self._vertices: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._body: dict[str, Any] = {"vertices": self._vertices, "edges": self._edges}
        self._body |= parts.settings({"ordered": ordered})
        self._body |= _settings(
            limits=limits,
            serving_store=serving_store,
            inter_step_buffer=inter_step_buffer,
            audit=audit,
            inline=inline,
        )
        self._previous: str | None = None

    @named_options
    @_on_a_copy
    def source(
        self,
        name: str,
        source: SourceChoice | None = None,
        *,
        transformer: CodeChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Adds a source: user code, or a connector such as ``Generator(messages=100)``.

        The transformer gets each message before it is first stored. ``retry`` and ``on_failure``
        say what happens to messages that it reports as failed.
        """
        part = parts.source_section(source, transformer, retry, on_failure)
        self._add({"name": name, "source": part}, options)
        self._previous = name
        return self

    @named_options
    @_on_a_copy
    def serve(
        self,
        name: str,
        *,
        transformer: CodeChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[ServeOptions],
    ) -> Self:
        """Adds a source that accepts requests over HTTP; callers receive what sinks serve.

        ``ports=Ports(http=8080)`` says where it listens. Answers are kept in the pipeline's
        ``serving_store``, or in NATS if it has none. The other options are those of ``source``.
        """
        part = parts.serving_source(options, transformer, retry, on_failure)
        self._add({"name": name, "source": part}, options)
        self._previous = name
        return self

    @named_options
    @_on_a_copy
    def map(
        self,
        name: str,
        code: CodeChoice | None = None,
        *,
        mode: Mode = "unary",
        decode: Decode | None = None,
        encode: Encode | None = None,
        sql: str | None = None,
        dataframe: Code | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
        after: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retry_until_success",
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Adds a map that reads from the previous step, or from the steps named by ``after``.

        ``after=()`` leaves it unconnected, so that ``edge`` can connect it. ``mode`` says what one
        call of the code receives: one message, a batch, or a table of them. Instead of code, pass
        ``sql`` over the view ``messages``, or ``dataframe``, a function from DataFrame to
        DataFrame. With ``decode`` the code receives a value instead of a ``Datum``: ``"json"``,
        ``"text"``, a pydantic model or a function of bytes; ``encode`` writes what it returns.
        """
        code = coded_map(code, mode, decode, encode)
        part = parts.udf(code, mode, retry, on_failure, sql, dataframe)
        self._add({"name": name, "udf": part}, options)
        self._connect(name, after, tags, operator, on_full)
        self._previous = name
        return self

    @named_options
    @_on_a_copy
    def sink(
        self,
        name: str,
        sink: SinkChoice | None = None,
        *,
        mode: SinkMode = "batch",
        decode: Decode | None = None,
        fallback: SinkChoice | None = None,
        on_success: SinkChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
        after: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retry_until_success",
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Adds a sink: user code, or a connector such as ``Log()`` or ``Kafka(...)``.

        A sink is connected like a map. ``mode`` says what one call of the code receives: a list of
        messages, or a table of them. ``fallback`` receives the messages that the sink cannot write,
        ``on_success`` those that it passes on. With ``decode`` the code receives a list of values,
        all of which count as written when it returns.
        """
        part = parts.sink_section(
            coded_sink(sink, mode, decode),
            mode=mode,
            fallback=fallback,
            on_success=on_success,
            retry=retry,
            on_failure=on_failure,
        )
        self._add({"name": name, "sink": part}, options)
        self._connect(name, after, tags, operator, on_full)
        return self

    @named_options
    @_on_a_copy
    def edge(
        self,
        from_: str,
        to: str,
        *,
        tags: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
        on_full: OnFull = "retry_until_success",
    ) -> Self:
        """Connects two steps by name, in addition to the connections of the chain.

        A map may be connected to itself or to an earlier map; its messages then loop.
        """
        self._add_edge(from_, to, tags, operator, on_full)
        return self

    @property
    def spec(self) -> PipelineSpec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        from ebbflow.spec.lint import build
        from ebbflow.spec.model import PipelineSpec

        try:
            return build(PipelineSpec, {"metadata": {"name": self._name}, "spec": self._body})
        except SpecError as error:
            raise _explained(error) from None

    def _add(self, vertex: dict[str, Any], options: VertexOptions) -> None:
        self._vertices.append(vertex | parts.settings(options))

    @override
    def _copy(self) -> Self:
        other = copy(self)
        other._vertices, other._edges = list(self._vertices), list(self._edges)
        other._body = {**self._body, "vertices": other._vertices, "edges": other._edges}
        return other

    def _add_edge(
        self,
        from_: str,
        to: str,
        tags: str | Iterable[str] | None,
        operator: TagOperator,
        on_full: OnFull,
    ) -> None:
        edge: dict[str, Any] = {"from": from_, "to": to, "onFull": parts.on_full(on_full)}
        if tags is not None:
            edge["conditions"] = parts.conditions(tags, operator)
        self._edges.append(edge)

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
            self._add_edge(step, name, listed, operator, on_full)


class MonoVertex(Builder):
    """Builds a MonoVertex part by part; ``run`` runs it and ``spec`` gives the checked model.

    ``partitions`` is the number of tasks, by default one. ``inter_step_buffer`` configures the
    streams of redeliveries and dead letters. The other options are those of a ``Pipeline`` and its
    steps.
    """

    @named_options
    def __init__(
        self,
        name: str,
        *,
        partitions: int | None = None,
        limits: Limits | None = None,
        on_error: Backoff | None = None,
        on_unavailable: OnUnavailable | None = None,
        breaker: Breaker | None = None,
        serving_store: Store | None = None,
        inter_step_buffer: InterStepBuffer | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._name = name
        self._bypass: dict[str, Any] = {}
        self._body: dict[str, Any] = {"bypass": self._bypass}
        self._body |= _settings(
            limits=limits,
            partitions=partitions,
            on_error=on_error,
            on_unavailable=on_unavailable,
            breaker=breaker,
            serving_store=serving_store,
            inter_step_buffer=inter_step_buffer,
            audit=audit,
        )

    @named_options
    @_on_a_copy
    def source(
        self,
        source: SourceChoice | None = None,
        *,
        transformer: CodeChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
    ) -> Self:
        """Reads from user code, or from a connector such as ``Generator(messages=100, rpu=5)``.

        ``retry`` and ``on_failure`` say what happens to messages that the transformer reports as
        failed.
        """
        part = parts.source_section(source, transformer, retry, on_failure)
        return self._set_part(self._body, "source", part)

    @named_options
    @_on_a_copy
    def serve(
        self,
        *,
        transformer: CodeChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
        **options: Unpack[ServingOptions],
    ) -> Self:
        """Accepts requests over HTTP, instead of ``source``; callers receive what the sink serves.

        ``ports=Ports(http=8080)`` says where it listens. Answers are kept in the
        ``serving_store``, or in NATS if there is none.
        """
        part = parts.serving_source(options, transformer, retry, on_failure)
        return self._set_part(self._body, "source", part)

    @named_options
    @_on_a_copy
    def map(
        self,
        code: CodeChoice,
        *,
        mode: Mode = "unary",
        decode: Decode | None = None,
        encode: Encode | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
    ) -> Self:
        """Changes each message; ``mode`` says what one call of the code receives.

        ``decode`` and ``encode`` are those of a map of a ``Pipeline``.
        """
        code = coded_map(code, mode, decode, encode)
        return self._set_part(self._body, "udf", parts.udf(code, mode, retry, on_failure))

    @named_options
    @_on_a_copy
    def sink(
        self,
        sink: SinkChoice | None = None,
        *,
        mode: SinkMode = "batch",
        decode: Decode | None = None,
        fallback: SinkChoice | None = None,
        on_success: SinkChoice | None = None,
        retry: Backoff | None = None,
        on_failure: OnFailure | None = None,
    ) -> Self:
        """Writes to user code, or to a connector such as ``Log()``, ``Kafka(...)`` or ``Serve()``.

        ``mode`` says what one call of the code receives. ``fallback`` receives the messages that
        the sink cannot write, ``on_success`` those that it passes on. With ``decode`` the code
        receives a list of values, all of which count as written when it returns.
        """
        part = parts.sink_section(
            coded_sink(sink, mode, decode),
            mode=mode,
            fallback=fallback,
            on_success=on_success,
            retry=retry,
            on_failure=on_failure,
        )
        return self._set_part(self._body, "sink", part)

    @named_options
    @_on_a_copy
    def bypass(
        self,
        *,
        sink: str | Iterable[str] | None = None,
        fallback: str | Iterable[str] | None = None,
        on_success: str | Iterable[str] | None = None,
        operator: TagOperator = "or",
    ) -> Self:
        """Sends messages with these tags straight to one of the sinks, skipping the other steps.

        Call it again to use another operator for another sink.
        """
        for target, tags in (("sink", sink), ("fallback", fallback), ("onSuccess", on_success)):
            if tags is not None:
                self._set_part(self._bypass, target, parts.conditions(tags, operator))
        return self

    @property
    def spec(self) -> MonoVertexSpec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        from ebbflow.spec.lint import build
        from ebbflow.spec.model import MonoVertexSpec

        try:
            return build(MonoVertexSpec, {"metadata": {"name": self._name}, "spec": self._body})
        except SpecError as error:
            raise _explained(error) from None

    @override
    def _copy(self) -> Self:
        other = copy(self)
        other._bypass = dict(self._bypass)
        other._body = {**self._body, "bypass": other._bypass}
        return other

    def _set_part(self, holder: dict[str, Any], name: str, part: dict[str, Any]) -> Self:
        # Replacing the earlier part would discard it silently.
        if name in holder:
            place = f"MonoVertex {self._name}" + (", bypass" if holder is self._bypass else "")
            raise SpecError([Problem("", 0, 0, "EB003", f"{name!r} is already given", place)])
        holder[name] = part
        return self
