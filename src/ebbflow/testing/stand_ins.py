"""Stand-ins for outside systems in a simulation.

A source that needs a system is replaced by messages of the test, a sink that needs one by a sink
that accepts everything. A generator, a source written in Python, a ``log`` or ``blackhole`` sink
and all other user code stay as they are. A vertex that needs Spark, or a function in its own
process, raises an error that names the vertex.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import PrivateAttr
from typing_extensions import override

from ebbflow.connectors.base import SOURCES, Pulled, SourceSection
from ebbflow.connectors.user_code import CodeSection, UserSinkSpec, UserSourceSpec
from ebbflow.domain.code import Code
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import Datum, Message, Response
from ebbflow.domain.user_source import Source, SourceMessage
from ebbflow.testing.conformance.rules import Sample

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec, Step
    from ebbflow.spec.sections import SinkSpec, SinkTarget, SourceSpec

SampleMessage = bytes | str | dict[str, Any] | list[Any] | Message | Datum | Sample | SourceMessage
"""A message of a test: bytes, text, a JSON value, or an object with keys and headers."""

SampleMessages = Sequence[SampleMessage] | Mapping[str, Sequence[SampleMessage]]
"""The messages of the only source, or of each source by vertex name."""

AS_THEY_ARE = frozenset({"log", "blackhole", "udsink", "serve"})
"""The kinds of sinks that need no system."""

Part = TypeVar("Part")


class GivenSource(Source):
    """Returns each message of a test once; Ebbflow keeps nacked messages."""

    nack = None  # type: ignore[assignment]

    def __init__(self, left: deque[SourceMessage]) -> None:
        self._left = left  # one queue for all partitions of the vertex

    @override
    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        return [self._left.popleft() for _ in range(min(limit, len(self._left)))]

    @override
    def ack(self, offsets: Sequence[bytes]) -> None:
        pass  # messages are removed when they are read

    @override
    def pending(self) -> int:
        return len(self._left)

    @property
    @override
    def exhausted(self) -> bool:
        return not self._left


class _GivenRequests(SourceSection):
    """Requests of a test. The kind of source stays as it is, because callers wait for answers."""

    _left: deque[SourceMessage] = PrivateAttr(default_factory=deque)

    @override
    def plan(self, pipeline: str, vertex: str) -> Pulled:
        return Pulled(cast("Code", partial(GivenSource, self._left)))


def _accept(data: list[Datum]) -> list[Response]:
    return [Response.ok(datum.id) for datum in data]


def with_stand_ins(spec: Spec, messages: SampleMessages | None) -> Spec:
    """Returns the spec with stand-ins; ``SetupError`` names a vertex that cannot be simulated."""
    by_source = _by_source(spec, messages)
    for step in spec.steps:
        _check_step(step)
    if spec.kind == "MonoVertex":
        (step,) = spec.steps
        body = spec.spec.model_copy(update=_replacements(step, by_source))
        return spec.model_copy(update={"spec": body})
    vertices = tuple(
        step.section.model_copy(update=_replacements(step, by_source)) for step in spec.steps
    )
    return spec.model_copy(update={"spec": spec.spec.model_copy(update={"vertices": vertices})})


def _by_source(
    spec: Spec, messages: SampleMessages | None
) -> Mapping[str, Sequence[SampleMessage]]:
    names = [step.name for step in spec.steps if step.source is not None]
    if messages is None:
        return {}
    if isinstance(messages, Mapping):
        for name in messages:
            if name not in names:
                raise SetupError(
                    f"Messages are given for {name}, and {spec.name} has no source of that name.",
                    f"Its sources are: {', '.join(names)}.",
                )
        return messages
    if isinstance(messages, bytes | str) or not isinstance(messages, Iterable):
        raise TypeError("messages must be a list of messages, or lists by the names of sources")
    if len(names) > 1:
        raise SetupError(
            f"{spec.name} has {len(names)} sources: {', '.join(names)}.",
            f"Give messages by source: messages={{{names[0]!r}: [...]}}.",
        )
    return {names[0]: messages}


def _check_step(step: Step) -> None:
    section = step.section
    udf = getattr(section, "udf", None)
    if udf is not None and udf.query is not None:
        raise SetupError(
            f"The vertex {step.name} is a query that Spark plans; it cannot be simulated.",
            "Test it on Spark: run the pipeline with ebbflow.testing.local_spark().",
        )
    for part in _code_sections(step):
        if part.python is None and part.in_process is None and part.container is not None:
            raise SetupError(
                f"The vertex {step.name} calls a function in its own process; "
                "it cannot be simulated.",
                "Bind its image to Python code in bindings.yaml, or run the pipeline.",
            )


def _code_sections(step: Step) -> list[CodeSection]:
    source, sink = step.source, getattr(step.section, "sink", None)
    parts: list[Any] = [getattr(step.section, "udf", None)]
    if source is not None:
        parts += [source.transformer, getattr(source, "udsource", None)]
    for target in (sink, *((sink.fallback, sink.on_success) if sink is not None else ())):
        parts.append(getattr(target, "udsink", None))
    return [part for part in parts if isinstance(part, CodeSection)]


def _replacements(step: Step, by_source: Mapping[str, Sequence[SampleMessage]]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if step.source is not None:
        changes["source"] = _source(step.name, step.source, by_source.get(step.name))
    sink: SinkSpec | None = getattr(step.section, "sink", None)
    if sink is not None:
        changes["sink"] = _sink(sink)
    return changes


def _source(name: str, source: SourceSpec, messages: Sequence[SampleMessage] | None) -> SourceSpec:
    kind = source.kind
    if messages is None and kind == "udsource":
        return source
    if messages is None and kind == "generator":
        if source.section.plan("", name).messages is None:  # type: ignore[union-attr]
            raise SetupError(
                f"The generator of {name} never ends, so the simulation would not either.",
                f"Say how many it makes, or give messages={{{name!r}: [...]}}.",
            )
        return source
    if messages is None:
        raise SetupError(
            f"The source {name} reads from {kind}, which a simulation does not connect to.",
            f"Give its messages: simulate(..., messages={{{name!r}: [...]}}).",
        )
    left = deque(source_message(each, number) for number, each in enumerate(messages))
    if SOURCES[kind].serves:
        requests = _GivenRequests()
        requests._left.extend(left)
        return source.model_copy(update={kind: requests})
    section = UserSourceSpec(python=cast("Code", partial(GivenSource, left)))
    return source.model_copy(update={kind: None, "udsource": section})


def _sink(sink: SinkSpec) -> SinkSpec:
    changes: dict[str, Any] = {
        role: _target(target)
        for role in ("fallback", "on_success")
        if (target := getattr(sink, role)) is not None
    }
    return _target(sink).model_copy(update=changes)


def _target(target: Part) -> Part:
    section = cast("SinkTarget", target)
    if section.kind in AS_THEY_ARE:
        return target
    accepting = UserSinkSpec(python=_accept)
    return cast("Part", section.model_copy(update={section.kind: None, "udsink": accepting}))


def source_message(message: SampleMessage, number: int) -> SourceMessage:
    """Returns a message of a test as a source's message; ``TypeError`` for another type."""
    offset = b"%d" % number
    match message:
        case SourceMessage():
            return message
        case Datum() | Message():
            return SourceMessage(
                message.value,
                (message.id.encode() or offset) if isinstance(message, Datum) else offset,
                keys=tuple(message.keys or ()),
                event_time=message.event_time,
                headers=message.headers if isinstance(message, Datum) else {},
            )
        case Sample():
            return SourceMessage(message.value, offset, keys=message.keys, headers=message.headers)
        case bytes():
            return SourceMessage(message, offset)
        case str():
            return SourceMessage(message.encode(), offset)
        case dict() | list():
            return SourceMessage(json.dumps(message).encode(), offset)
    raise TypeError(
        f"a message is bytes, text, a dict, a Message or a Datum, not {type(message).__name__}"
    )
