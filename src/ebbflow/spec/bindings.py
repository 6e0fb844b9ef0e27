"""Bindings: which code, program or running function an image is bound to, from their own file.

    quay.io/numaio/numaflow-go/map-cat:
      command: [bin/map-cat]
    orders/enrich:v2:
      python: orders:enrich
    payments:
      sockets: /run/payments

A name is bound to every image whose name ends with it, whatever registry and folders come before
it. A name without a tag is bound to all tags. The longest name wins.

Ebbflow has its own code for images of Numaflow's examples, listed in ``BUILT_IN``. Such an image
is known by the last two parts of its name, whatever its registry and tag: those of
``quay.io/numaio/numaflow-go/map-cat:stable`` are ``numaflow-go`` and ``map-cat``. The folder must
be that of one of Numaflow's SDKs, so a user's own ``team/map-cat`` is not replaced. Most names mean
the same in every SDK; where they do not, the table also has the folder. The code itself is in
``numaflow.image_functions``, which lint does not import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.container import Container, Program
from ebbflow.connectors.schema.fields import shown
from ebbflow.connectors.schema.secrets import ClusterValues
from ebbflow.connectors.user_code import Bound, CodeSection
from ebbflow.domain.code import Mode
from ebbflow.domain.errors import Problem
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.services import ContainerType
from ebbflow.spec.document import read
from ebbflow.spec.model import Spec, Step
from ebbflow.spec.validate import FieldPath, Finding, validate
from ebbflow.usercode import targets

BINDINGS_FILE = "bindings.yaml"
"""The name of the bindings file next to a pipeline, which is read if no other is named."""

NO_MODE = "'mode' is for Python code; a function in its own process says its mode itself"


class Binding(Program):
    """What an image is bound to: exactly one of ``command``, ``python`` and ``sockets``."""

    python: fields.Text | None = Field(
        default=None, description="the function or class, `module:attribute`"
    )
    mode: Mode | None = Field(default=None, description="what one call of it receives")


@dataclass(frozen=True, slots=True)
class Bindings:
    """The bindings of one file; relative paths in them start from its ``folder``."""

    file: str = ""
    by_name: Mapping[str, Binding] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the file is."""
        return Path(self.file).parent

    def find(self, image: str) -> str | None:
        """Returns the name under which an image is bound; ``None`` if it is not."""
        fitting = [name for name in self.by_name if _matches(name, image)]
        return max(fitting, key=_precision, default=None)


def read_bindings(file: Path, values: ClusterValues | None) -> tuple[Bindings, list[Problem]]:
    """Returns the bindings of a file, with all problems."""
    documents, problems = read(file)
    bindings: dict[str, Binding] = {}
    for document in documents:
        problems += document.problems
        for name, binding, findings in _each(document.data, values):
            problems += map(document.problem, findings)
            if binding is not None:
                bindings[name] = binding
    return Bindings(str(file), bindings), sorted(problems, key=lambda p: (p.line, p.column))


def find_file(spec: Path, named: Path | None) -> Path | None:
    """Returns the bindings file of a pipeline: the one that is named, else the one next to it."""
    nearby = spec.parent / BINDINGS_FILE
    return named or (nearby if nearby.is_file() else None)


def _each(
    data: Any, values: ClusterValues | None
) -> Iterator[tuple[str, Binding | None, list[Finding]]]:
    if not isinstance(data, dict):
        message = f"bindings are a mapping of images, not {shown(data)}"
        yield "", None, [Finding("EB103", message, ())]
        return
    for name, fields_of in data.items():
        if not isinstance(fields_of, dict):
            message = f"write command:, python: or sockets: for {name!r}, not {shown(fields_of)}"
            yield name, None, [Finding("EB103", message, (name,))]
            continue
        binding, wrong = validate(Binding, fields_of, values=values)
        findings = [Finding(f.code, f.message, (name, *f.path), f.at_key) for f in wrong]
        if binding is not None and not wrong:
            findings += _check(name, binding)
        yield name, binding, findings


def _check(name: str, binding: Binding) -> Iterator[Finding]:
    kinds = [kind for kind in ("command", "python", "sockets") if getattr(binding, kind)]
    if len(kinds) != 1:
        said = f"not {' and '.join(kinds)}" if kinds else "it has none of them"
        message = f"{name!r} must have exactly one of command, python and sockets; {said}"
        yield Finding("EB207", message, (name,), at_key=True)
    elif binding.python is None and binding.mode is not None:
        yield Finding("EB104", NO_MODE, (name, "mode"))
    elif binding.python is not None and not targets.is_well_formed(binding.python):
        message = f"{binding.python!r} is not of the form module:attribute"
        yield Finding("EB401", message, (name, "python"))


# --- images -------------------------------------------------------------------------------------


def _matches(name: str, image: str) -> bool:
    path, tag = split_image(name)
    whole, its_tag = split_image(image)
    parts, own = path.split("/"), whole.split("/")
    return own[-len(parts) :] == parts and tag in ("", its_tag)


def _precision(name: str) -> tuple[int, bool]:
    path, tag = split_image(name)
    return path.count("/"), bool(tag)


def split_image(image: str) -> tuple[str, str]:
    """Returns the path of an image and its tag or digest, which may be empty."""
    path, _, digest = image.partition("@")
    at = path.rfind(":")
    if at > path.rfind("/"):  # else it is the port of a registry
        path, tag = path[:at], path[at + 1 :]
        return path, digest or tag
    return path, digest


ContainerRuntime = Literal["docker"]
"""The programs that can run images."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A section of user code: its path, its vertex and its role."""

    path: FieldPath
    vertex: str
    container: ContainerType
    section: CodeSection


@dataclass(slots=True)
class Binder:
    """Binds specs. ``used`` are the names of bindings that matched an image.

    ``folder`` is where relative paths of the spec's own containers start.
    """

    bindings: Bindings = field(default_factory=Bindings)
    runtime: ContainerRuntime | None = None
    folder: Path = Path()
    used: set[str] = field(default_factory=set)

    def bind(self, spec: Spec) -> None:
        """Binds every container of the spec for which a function can be found."""
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
        """The names of bindings that matched no image."""
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
    """Returns a program as a function; relative paths start from the folder."""
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
    for step in spec.steps:
        yield from _of_step(step)
    if spec.serving_store is not None:
        yield CodePlace(("spec", "servingStore"), spec.name, "udstore", spec.serving_store)


def _of_step(step: Step) -> Iterator[CodePlace]:
    source, sink = step.source, step.sink
    parts: list[tuple[FieldPath, ContainerType, object]] = []
    if source is not None:
        parts.append((("source", "udsource"), "udsource", getattr(source, "udsource", None)))
        parts.append((("source", "transformer"), "transformer", source.transformer))
    parts.append((("udf",), "udf", step.udf))
    if sink is not None:
        parts.append((("sink", "udsink"), "udsink", getattr(sink, "udsink", None)))
        fallback, on_success = sink.fallback, sink.on_success
        inside = getattr(fallback, "udsink", None)
        parts.append((("sink", "fallback", "udsink"), "fb-udsink", inside))
        inside = getattr(on_success, "udsink", None)
        parts.append((("sink", "onSuccess", "udsink"), "ons-udsink", inside))
    for inner, part, section in parts:
        if isinstance(section, CodeSection):
            yield CodePlace((*step.path, *inner), step.name, part, section)


# --- images that Ebbflow has code for -----------------------------------------------------------

_IMAGE = re.compile(
    r"(?:.*/)?(?P<sdk>numaflow-(?:go|python|java|rs))(?:-examples)?/(?P<name>[^/:@]+)(?:[:@].*)?"
)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The code that replaces an image, where it can be used, and what one call of it receives.

    ``mode`` is that of a map, a transformer or a sink; a source has none.
    """

    place: ContainerType
    target: str
    mode: Mode | None


def _entries(container: ContainerType, mode: Mode | None, **names: str) -> dict[str, BuiltIn]:
    """Returns entries for functions that run in one mode, each with the names of its images."""
    return {
        name: BuiltIn(container, f"ebbflow.numaflow.image_functions:{function}", mode)
        for function, images in names.items()
        for name in images.split()
    }


BUILT_IN: dict[str, BuiltIn] = {
    **_entries(
        "udf",
        "columnar",
        cat="map-cat batchmap-cat map-forward-message map-async-forward-message multiproc",
        even_odd="map-even-odd even-odd",
        even_odd_keys="numaflow-rs/map-even-odd",
        flatmap="map-flatmap map-flatmap-stream flat-map-stream batch-map-flatmap",
        flatmap_with_keys="batchmap-flatmap flatmap-stream",
    ),
    **_entries(
        "udf",
        "unary",
        even_odd_bytes="numaflow-python/even-odd",
        filter_greetings="map-filter",
        filter_small_ids="map-filter-id",
        RetryRounds="map-retry",
        add_metadata="map-metadata",
        tag_for_bypass="map-bypass-cat",
    ),
    **_entries(
        "transformer",
        "columnar",
        assign_event_time="mapt-assign-event-time source-transformer-now",
        filter_event_time="mapt-event-time-filter mapt-event-time-filter-function "
        "async-mapt-event-time-filter",
    ),
    **_entries(
        "transformer",
        "unary",
        filter_keyed_greetings="mapt-filter",
        add_event_time="transformer-metadata",
        tag_for_bypass_now="source-transformer-bypass",
    ),
    **_entries(
        "udsink",
        "columnar",
        log="sink-log async-sink-log simple-sink",
        log_metadata="sink-metadata",
        send_to_fallback="fb-sink-log",
        send_to_on_success="on-success-log",
        send_to_either="all-sinks on-success-sink",
        serve_payloads="sink-serve",
        fail="sink-failure sink-retry-e2e",
        panic="sink-panic",
    ),
    **_entries(
        "udsource",
        None,
        CountingSource="source-simple-source simple-source",
        CountingMetadataSource="source-metadata",
    ),
}
"""The code that replaces each image, by its name, or by its folder and name."""


def find_built_in(image: str) -> BuiltIn | None:
    """Returns what replaces an image, or ``None`` if nothing does."""
    parts = _IMAGE.fullmatch(image)
    if parts is None:
        return None
    name = parts["name"]
    return BUILT_IN.get(f"{parts['sdk']}/{name}") or BUILT_IN.get(name)
