"""Every problem of a pipeline at once: ``lint`` and ``load`` for files, ``check`` and ``build``.

Files and pipelines built in Python go through the same rules; only their places are named
differently. Problems are sorted by their place in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section
from ebbflow.connectors.schema.secrets import ClusterValues
from ebbflow.domain.errors import Problem, SpecError
from ebbflow.domain.spelling import did_you_mean
from ebbflow.spec.bindings import (
    BINDINGS_FILE,
    Binder,
    Bindings,
    ContainerRuntime,
    find_file,
    read_bindings,
)
from ebbflow.spec.document import Document, read
from ebbflow.spec.kinds import (
    BufferServiceDocument,
    Readable,
    Runnable,
    ServingPipelineSpec,
    check_header,
    is_companion,
    is_of_another_system,
    model_of,
    spec_of,
    values_in,
)
from ebbflow.spec.model import PipelineSpec, Spec
from ebbflow.spec.rules.graph import check_graph
from ebbflow.spec.rules.serving import check_answers, check_serving, check_serving_pipeline
from ebbflow.spec.rules.vertices import (
    check_audit,
    check_batches,
    check_monovertex,
    check_name,
    check_no_batches,
    check_store,
    check_support,
    check_vertices,
)
from ebbflow.spec.validate import FieldPath, Finding, concerns, validate

EXAMPLES = ".test.yaml"
"""The end of the name of a file with examples for a spec, which is not itself a spec."""

S = TypeVar("S", bound=Readable)
B = TypeVar("B", bound=Spec)


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The contents of a file: its pipelines, every problem, and notes for whoever runs it.

    ``binder`` has bound its containers.
    """

    path: str
    specs: tuple[Spec, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    binder: Binder = field(default_factory=Binder)

    def choose(self, name: str | None = None) -> Spec:
        """Returns the pipeline of that name, or the only one; ``SpecError`` has all problems."""
        if self.problems:
            raise SpecError(self.problems)
        names = [spec.name for spec in self.specs]
        chosen = [spec for spec in self.specs if name in (None, spec.name)]
        if not names:
            raise self._error("EB004", "there is no pipeline in this file")
        if not chosen:
            meant = did_you_mean(str(name), names, "there are")
            raise self._error("EB006", f"there is no pipeline {name!r} in this file; {meant}")
        if len({spec.name for spec in chosen}) > 1:
            message = f"the file holds {len(names)} pipelines: {', '.join(names)}"
            raise self._error("EB006", f"{message}; choose one with --name NAME")
        if len(chosen) > 1:
            raise self._error("EB006", f"the file holds {len(chosen)} pipelines named {names[0]}")
        return chosen[0]

    def _error(self, code: str, message: str) -> SpecError:
        return SpecError([Problem(self.path, 1, 1, code, message)])


def lint(path: str | Path) -> list[Problem]:
    """Every problem in every document of the file, in order; none if it can be run."""
    return list(read_specs(path).problems)


def load(
    path: str | Path,
    *,
    name: str | None = None,
    secrets: Path | None = None,
    bind: Path | None = None,
    containers: ContainerRuntime | None = None,
) -> Spec:
    """Returns the pipeline of that name in the file; ``SpecError`` has all problems.

    Without a name the file must hold one pipeline, of either kind. ``secrets`` is the folder with
    the values of Kubernetes' Secrets and ConfigMaps. ``bind`` is the file with the bindings of its
    images, ``bindings.yaml`` next to it if left out; ``containers`` runs images without one.
    """
    return read_specs(path, secrets=secrets, bind=bind, containers=containers).choose(name)


def read_specs(
    path: str | Path,
    *,
    secrets: Path | None = None,
    bind: Path | None = None,
    containers: ContainerRuntime | None = None,
) -> SpecFile:
    """Returns the contents of the file, with all problems."""
    file = Path(path)
    if file.name == BINDINGS_FILE:
        return SpecFile(str(path), (), tuple(read_bindings(file, None)[1]), ())
    if file.name.endswith(EXAMPLES):
        return SpecFile(str(path), (), (), ())
    documents, problems = read(file)
    # Documents of other systems are ignored, unless the file holds nothing else.
    ours = [each for each in documents if not is_of_another_system(each.data)] or documents
    others = [each for each in documents if each not in ours]
    resources = [each for each in ours if is_companion(each.data)]
    companions, wrong_resources = _examine_all(resources, file.parent, None)
    values = ClusterValues.of(secrets, values_in(companions))
    binder, unbound = _read_binder(file, bind, containers, values)
    pipelines = [each for each in ours if each not in resources]
    read_as, wrong = _examine_all(pipelines, file.parent, values, binder)
    runnable = [each for each in read_as if isinstance(each, Runnable)]
    specs = tuple(spec for each in runnable if (spec := spec_of(each)) is not None)
    problems = sorted(
        [*problems, *wrong_resources, *wrong], key=lambda problem: (problem.line, problem.column)
    )
    problems = [*unbound, *problems]
    notes = () if problems else notes_on(runnable, companions, others)
    return SpecFile(str(path), specs, tuple(problems), notes, binder)


def _read_binder(
    file: Path, bind: Path | None, containers: ContainerRuntime | None, values: ClusterValues
) -> tuple[Binder, list[Problem]]:
    """Returns the binder for the containers of a file, with all problems of the bindings."""
    named = find_file(file, bind)
    bindings, problems = (Bindings(), []) if named is None else read_bindings(named, values)
    return Binder(bindings, containers, file.parent), problems


def check(spec: Spec, search: Path | None = None) -> list[Problem]:
    """Every problem of a model made in Python; ``search`` is where its modules are looked for."""
    data = spec.model_dump(by_alias=True)
    return [_to_problem(finding, spec.NOUN, data) for finding in _rules(spec, search)]


def build(model: type[B], data: Mapping[str, Any]) -> B:
    """Returns a model from what a builder collected; ``SpecError`` has all problems.

    Fields may have Python's names or YAML's.
    """
    spec, findings = _examine(model, data, None, python_names=True, binder=Binder())
    if findings or spec is None:
        raise SpecError([_to_problem(finding, model.NOUN, data) for finding in findings])
    return spec


def _examine_all(
    documents: Iterable[Document],
    search: Path,
    values: ClusterValues | None,
    binder: Binder | None = None,
) -> tuple[list[Readable], list[Problem]]:
    read_as: list[Readable] = []
    problems: list[Problem] = []
    for document in documents:
        resource, findings = _examine_document(document.data, search, values, binder)
        read_as += [resource] if resource is not None else []
        problems += [*document.problems, *map(document.problem, findings)]
    return read_as, problems


def _examine_document(
    data: Any, search: Path, values: ClusterValues | None, binder: Binder | None
) -> tuple[Readable | None, list[Finding]]:
    header = [*check_header(data)]
    model = model_of(data) if isinstance(data, dict) else None
    if model is None:
        return None, header
    # A wrong apiVersion has been reported; the rest is still worth reading.
    data = {**data, "apiVersion": model.VERSION}
    resource, findings = _examine(model, data, search, values=values, binder=binder)
    return resource, [*header, *findings]


def _examine(
    model: type[S],
    data: Any,
    search: Path | None,
    *,
    python_names: bool = False,
    values: ClusterValues | None = None,
    binder: Binder | None = None,
) -> tuple[S | None, list[Finding]]:
    spec, wrong = validate(model, data, python_names=python_names, values=values)
    if spec is None:
        return None, wrong
    if binder is not None and (runs := spec_of(spec)) is not None:
        binder.bind(runs)
    reported = [finding.path for finding in wrong]
    more = [
        finding
        for finding in _rules(spec, search)
        if not any(concerns(finding, path) for path in reported)
    ]
    return spec, [*wrong, *more]


def _rules(spec: Readable, search: Path | None) -> Iterable[Finding]:
    if isinstance(spec, ServingPipelineSpec):
        for finding in _rules(spec.as_pipeline, search):
            yield replace(finding, path=spec.place(finding.path))
        yield from check_serving_pipeline(spec)
    if not isinstance(spec, Spec):
        return
    yield from check_name(spec.name, ("metadata", "name"))
    if isinstance(spec, PipelineSpec):
        yield from check_vertices(spec, search)
        yield from check_graph(spec)
        yield from check_batches(spec)
    else:
        yield from check_monovertex(spec, search)
        yield from check_no_batches(spec)
    yield from check_store(spec.serving_store, search)
    yield from check_answers(spec)
    yield from check_serving(spec)
    yield from check_audit(spec)
    yield from check_support(spec)


def _to_problem(finding: Finding, noun: str, data: Mapping[str, Any]) -> Problem:
    parts = [f"{noun} {data['metadata']['name']}", *_part(finding.path, data)]
    return Problem("", 0, 0, finding.code, finding.message, ", ".join(parts))


def _part(path: FieldPath, data: Mapping[str, Any]) -> list[str]:
    match path:
        case ("spec", "vertices", int(index), *_):
            return [f"vertex {data['spec']['vertices'][index]['name']}"]
        case ("spec", "edges", int(index), *_):
            edge = data["spec"]["edges"][index]
            return [f"edge {edge['from']} → {edge['to']}"]
    return []


def notes_on(
    specs: Iterable[Runnable], companions: Iterable[Readable], others: Sequence[Document]
) -> tuple[str, ...]:
    """Returns a line each for fields without effect or with less, and for documents not read."""
    idle = [field for spec in specs for field in fields_without_effect(spec)]
    idle += [
        f"{companion.kind} {companion.name}"
        for companion in companions
        if isinstance(companion, BufferServiceDocument)
    ]
    unread = [f"{other.data['kind']} in line {other.values[()].line}" for other in others]
    endless = [name for spec in specs for name in _name_endless_calls(spec)]
    notes = (
        ("without effect here", dict.fromkeys(idle)),
        ("limits.callTimeout ends Spark jobs, but not the DataFrame function itself", endless),
        ("not read", dict.fromkeys(unread)),
    )
    return tuple(f"{what}: {', '.join(names)}" for what, names in notes if names)


def _name_endless_calls(spec: Runnable) -> Iterator[str]:
    """Yields the vertices whose code runs on the driver, where no limit can end it."""
    if not isinstance(spec, PipelineSpec):
        return
    for vertex in spec.vertices:
        calls_on_driver = vertex.udf is not None and vertex.udf.dataframe is not None
        if calls_on_driver and spec.limits_of(vertex).call_timeout is not None:
            yield f"vertex {vertex.name}"


def fields_without_effect(spec: Runnable) -> list[str]:
    """Returns the fields that are set without effect, each once, however many vertices set it.

    Labels and the like are not among them: they mean nothing to a run in Numaflow either.
    """
    return list(dict.fromkeys(_idle_in(spec.spec, "spec")))


def _idle_in(section: Section, path: str) -> Iterator[str]:
    for name, info in type(section).model_fields.items():
        value, where = getattr(section, name), f"{path}.{info.alias}"
        if (info.description or "").startswith(WITHOUT_EFFECT):
            yield from [where] if value not in (None, False) else []
        elif isinstance(value, Section):
            yield from _idle_in(value, where)
        elif isinstance(value, tuple):
            sections = [item for item in value if isinstance(item, Section)]
            yield from (idle for item in sections for idle in _idle_in(item, f"{where}[]"))
