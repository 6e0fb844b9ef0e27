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

Everything that YAML can be wrong about is checked here as well, by the same rules, when ``spec``
is asked for. The model is imported only then: importing this module must stay cheap, because
every Spark worker does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from ebbflow.options import Backoff

if TYPE_CHECKING:
    from ebbflow.spec.model import PipelineSpec

Code = str | Callable[..., Any]
"""User code: the function or class itself, or ``"module:attribute"``."""

Operator = Literal["and", "or", "not"]
"""Follow an edge if a message has all, any or none of the edge's tags."""


class VertexOptions(TypedDict, total=False):
    """What every vertex can be told.

    ``limits`` and a mapping for ``on_error`` have YAML's fields, in camel case or snake case:
    ``limits={"read_batch_size": 50}``, ``on_error={"interval": "2s", "steps": 3}``.
    """

    partitions: int
    limits: Mapping[str, Any]
    on_error: Backoff | Mapping[str, Any]


class Pipeline:
    """Builds a pipeline step by step; ``run`` runs it and ``spec`` gives the checked model."""

    def __init__(self, name: str, *, limits: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._limits = dict(limits or {})
        self._vertices: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._previous: str | None = None

    def source(
        self,
        name: str,
        code: Code | None = None,
        *,
        generator: Mapping[str, Any] | None = None,
        transformer: Code | None = None,
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Add a source: user code, or ``generator={"messages": 100, "rpu": 5}``.

        The transformer sees each message before it is first stored.
        """
        source: dict[str, Any] = {}
        if code is not None:
            source["udsource"] = {"python": code}
        if generator is not None:
            source["generator"] = dict(generator)
        if transformer is not None:
            source["transformer"] = {"python": transformer}
        self._add({"name": name, "source": source}, options)
        self._previous = name
        return self

    def map(
        self,
        name: str,
        code: Code,
        *,
        after: str | Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        operator: Operator = "or",
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Add a map that reads from the step before it, or from those named by ``after``.

        ``after=()`` connects it to nothing; ``edge`` can then do so.
        """
        self._add({"name": name, "udf": {"python": code}}, options)
        self._connect(name, after, tags, operator)
        self._previous = name
        return self

    def sink(
        self,
        name: str,
        code: Code | None = None,
        *,
        log: bool = False,
        blackhole: bool = False,
        after: str | Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        operator: Operator = "or",
        **options: Unpack[VertexOptions],
    ) -> Self:
        """Add a sink, either user code, ``log=True`` or ``blackhole=True``; connected as a map."""
        sink: dict[str, Any] = {}
        if code is not None:
            sink["udsink"] = {"python": code}
        if log:
            sink["log"] = {}
        if blackhole:
            sink["blackhole"] = {}
        self._add({"name": name, "sink": sink}, options)
        self._connect(name, after, tags, operator)
        return self

    def edge(
        self,
        from_: str,
        to: str,
        *,
        tags: Iterable[str] | None = None,
        operator: Operator = "or",
    ) -> Self:
        """Connect two steps by name, in addition to what the chain connects."""
        edge: dict[str, Any] = {"from": from_, "to": to}
        if tags is not None:
            edge["conditions"] = {"tags": {"operator": operator, "values": _listed(tags)}}
        self._edges.append(edge)
        return self

    @property
    def spec(self) -> PipelineSpec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        from ebbflow.spec.lint import build

        spec = {"vertices": self._vertices, "edges": self._edges, "limits": self._limits}
        return build({"metadata": {"name": self._name}, "spec": spec})

    def run(self, **options: Any) -> Any:
        """Check the pipeline and run it, with the options of ``ebbflow.spark.run.run_pipeline``."""
        spec = self.spec
        from ebbflow.spark.run import run_pipeline

        return run_pipeline(spec, **options)

    def _add(self, vertex: dict[str, Any], options: VertexOptions) -> None:
        if "partitions" in options:
            vertex["partitions"] = options["partitions"]
        if "limits" in options:
            vertex["limits"] = dict(options["limits"])
        if "on_error" in options:
            vertex["onError"] = {"backoff": _backoff(options["on_error"])}
        self._vertices.append(vertex)

    def _connect(
        self,
        name: str,
        after: str | Iterable[str] | None,
        tags: Iterable[str] | None,
        operator: Operator,
    ) -> None:
        before = self._previous if after is None else after
        listed = None if tags is None else _listed(tags)
        for one in [] if before is None else _listed(before):
            self.edge(one, name, tags=listed, operator=operator)


def _listed(names: str | Iterable[str]) -> list[str]:
    # A lone text is one name: as an iterable it would be its letters.
    return [names] if isinstance(names, str) else list(names)


def _backoff(policy: Backoff | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(policy, Backoff):
        return dict(policy)
    return {
        "interval": timedelta(milliseconds=policy.interval),
        "steps": policy.steps,
        "factor": policy.factor,
        "cap": timedelta(milliseconds=policy.cap),
        "jitter": policy.jitter,
    }
