"""Binds a spec: decides for each container what runs in its place.

In this order: a binding for its image; Docker, if that is asked for; its own command; code of
Ebbflow's for images of Numaflow's examples. A section with ``python`` is bound to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ebbflow.connectors.schema.container import Container, Program
from ebbflow.connectors.user_code.spec import Bound, CodeSection
from ebbflow.numaflow.images import find_built_in
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.services import ContainerType
from ebbflow.spec.bindings import Binding, Bindings
from ebbflow.spec.findings import FieldPath
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec
from ebbflow.spec.sections import SinkSpec, SourceSpec, Udf

ContainerRuntime = Literal["docker"]
"""What can run images."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A section of user code: where it is, whose it is and the part that it plays."""

    path: FieldPath
    vertex: str
    container: ContainerType
    section: CodeSection


@dataclass(slots=True)
class Binder:
    """Binds specs. ``used`` are the names of bindings that stood for an image.

    ``folder`` is where relative paths of the spec's own containers begin.
    """

    bindings: Bindings = field(default_factory=Bindings)
    runtime: ContainerRuntime | None = None
    folder: Path = Path()
    used: set[str] = field(default_factory=set)

    def bind(self, spec: Spec) -> None:
        """Binds every container of the spec, as far as there is something to bind it to."""
        for place in code_places(spec):
            container = place.section.container
            if place.section.python is None and container is not None:
                place.section.bind(self._bound(container, place.container))

    def _bound(self, container: Container, part: ContainerType) -> Bound | None:
        image = container.image
        if image is not None and (name := self.bindings.find(image)) is not None:
            self.used.add(name)
            return _by_binding(container, part, self.bindings.by_name[name], self.bindings.folder)
        if image is not None and self.runtime == "docker":
            return Bound((container,), function=_in_docker(container, part))
        if container.command or container.sockets is not None:
            plan = _as_program(container, part, container, container.args, self.folder)
            return Bound((container,), function=plan)
        return None if image is None else _built_in(container, image, part)

    @property
    def unused(self) -> list[str]:
        """The names of bindings that stood for no image."""
        return [name for name in self.bindings.by_name if name not in self.used]


def _by_binding(container: Container, part: ContainerType, binding: Binding, folder: Path) -> Bound:
    programs = (container, binding)
    if binding.python is not None:
        return Bound(programs, binding.python, binding.mode)
    args = binding.args or container.args
    return Bound(programs, function=_as_program(container, part, binding, args, folder))


def _as_program(
    container: Container, part: ContainerType, program: Program, args: tuple[str, ...], folder: Path
) -> FunctionPlan:
    """Returns the function that is this program; relative paths begin in the folder."""
    here = folder.resolve()
    if program.sockets is not None:
        return FunctionPlan(part, container.image, folder=str(here / program.sockets))
    cwd = str(here / (program.working_dir or ""))
    return FunctionPlan(part, container.image, program.command, args, cwd=cwd)


def _in_docker(container: Container, part: ContainerType) -> FunctionPlan:
    return FunctionPlan(
        part,
        container.image,
        container.command,
        container.args,
        cwd=container.working_dir,
        docker=True,
    )


def _built_in(container: Container, image: str, part: ContainerType) -> Bound | None:
    built_in = find_built_in(image)
    if built_in is None or built_in.place != part.removeprefix("fb-").removeprefix("ons-"):
        return None
    return Bound((container,), built_in.target, built_in.mode)


# --- where code is ------------------------------------------------------------------------------


def code_places(spec: Spec) -> Iterator[CodePlace]:
    """Yields every section of user code in a spec."""
    if isinstance(spec, PipelineSpec):
        for index, vertex in enumerate(spec.vertices):
            path: FieldPath = ("spec", "vertices", index)
            yield from _of_step(vertex.name, path, vertex.source, vertex.udf, vertex.sink)
    elif isinstance(spec, MonoVertexSpec):
        body = spec.spec
        yield from _of_step(spec.name, ("spec",), body.source, body.udf, body.sink)
    if spec.serving_store is not None:
        yield CodePlace(("spec", "servingStore"), spec.name, "udstore", spec.serving_store)


def _of_step(
    vertex: str,
    path: FieldPath,
    source: SourceSpec | None,
    udf: Udf | None,
    sink: SinkSpec | None,
) -> Iterator[CodePlace]:
    parts: list[tuple[FieldPath, ContainerType, object]] = []
    if source is not None:
        parts.append((("source", "udsource"), "udsource", getattr(source, "udsource", None)))
        parts.append((("source", "transformer"), "transformer", source.transformer))
    parts.append((("udf",), "udf", udf))
    if sink is not None:
        parts.append((("sink", "udsink"), "udsink", getattr(sink, "udsink", None)))
        fallback, on_success = sink.fallback, sink.on_success
        inside = getattr(fallback, "udsink", None)
        parts.append((("sink", "fallback", "udsink"), "fb-udsink", inside))
        inside = getattr(on_success, "udsink", None)
        parts.append((("sink", "onSuccess", "udsink"), "ons-udsink", inside))
    for inner, part, section in parts:
        if isinstance(section, CodeSection):
            yield CodePlace((*path, *inner), vertex, part, section)
