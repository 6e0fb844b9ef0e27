"""Every problem of a pipeline at once: ``lint`` and ``load`` for files, ``check`` and ``build``.

Files and pipelines built in Python go through the same rules; only the way a place is named
differs. Problems come in the order in which a reader meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ebbflow.errors import Problem, SpecError
from ebbflow.schema.fields import shown
from ebbflow.spec.document import read
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import API_VERSION, MonoVertexSpec, PipelineSpec, Spec
from ebbflow.spec.rules.graph import check_graph
from ebbflow.spec.rules.spark import check_batches, check_no_batches
from ebbflow.spec.rules.support import KINDS_NOT_YET, check_support
from ebbflow.spec.rules.vertices import check_monovertex, check_name, check_store, check_vertices
from ebbflow.spec.validate import concerns, validate

S = TypeVar("S", bound=Spec)

_FIELDS = ("apiVersion", "kind", "metadata", "spec")
_KINDS: dict[str, type[Spec]] = {"Pipeline": PipelineSpec, "MonoVertex": MonoVertexSpec}


def lint(path: str | Path) -> list[Problem]:
    """Every problem in every document of the file, in order; none if it can be run."""
    return _examine_file(Path(path))[1]


def load(path: str | Path) -> Spec:
    """Returns the one pipeline in the file, of either kind; ``SpecError`` has all problems."""
    specs, problems = _examine_file(Path(path))
    if len(specs) > 1 and not problems:
        message = f"one pipeline is expected here, but the file holds {len(specs)}"
        problems = [Problem(str(path), 1, 1, "EB006", message)]
    if problems:
        raise SpecError(problems)
    return specs[0]


def check(spec: Spec, search: Path | None = None) -> list[Problem]:
    """Every problem of a model made in Python; ``search`` is where its modules are looked for."""
    data = spec.model_dump(by_alias=True)
    return [_tell(finding, spec.NOUN, data) for finding in _rules(spec, search)]


def build(model: type[S], data: Mapping[str, Any]) -> S:
    """Returns a model from what a builder collected; ``SpecError`` has all problems.

    Fields may have Python's names or YAML's.
    """
    spec, findings = _examine(model, data, None, python_names=True)
    if findings or spec is None:
        raise SpecError([_tell(finding, model.NOUN, data) for finding in findings])
    return spec


def _examine_file(file: Path) -> tuple[list[Spec], list[Problem]]:
    documents, problems = read(file)
    specs: list[Spec] = []
    for document in documents:
        spec, findings = _examine_document(document.data, file.parent)
        specs += [spec] if spec is not None else []
        problems += [*document.problems, *map(document.problem, findings)]
    return specs, sorted(problems, key=lambda problem: (problem.line, problem.column))


def _examine_document(data: Any, search: Path) -> tuple[Spec | None, list[Finding]]:
    header = list(_header(data))
    model = _model(data) if isinstance(data, dict) else None
    if model is None:
        return None, header
    # A wrong apiVersion has been reported; the rest is still worth reading.
    spec, findings = _examine(
        model, {**data, "apiVersion": API_VERSION}, search, python_names=False
    )
    return spec, [*header, *findings]


def _model(data: Mapping[str, Any]) -> type[Spec] | None:
    """Returns what the document says it is, or what it looks like if it does not say."""
    if "kind" in data:
        return _KINDS.get(str(data["kind"]))
    spec = data.get("spec")
    return MonoVertexSpec if isinstance(spec, dict) and "source" in spec else PipelineSpec


def _header(data: Any) -> Iterator[Finding]:
    if not isinstance(data, dict):
        message = f"a pipeline is a mapping of {', '.join(_FIELDS)}, not {shown(data)}"
        yield Finding("EB103", message, ())
        return
    if data.get("apiVersion") != API_VERSION:
        yield from _wrong_header("apiVersion", data, API_VERSION)
    kind = data.get("kind")
    if kind in KINDS_NOT_YET:
        yield Finding("EB901", f"kind {kind} is not supported yet", ("kind",))
    elif kind not in tuple(_KINDS):
        yield from _wrong_header("kind", data, " or ".join(_KINDS))


def _wrong_header(field: str, data: Mapping[str, Any], expected: str) -> Iterator[Finding]:
    if field in data:
        message = f"unknown {field} {shown(data[field])}; expected {expected}"
        yield Finding("EB005", message, (field,))
    else:
        yield Finding("EB102", f"{field!r} is missing; write {field}: {expected}", (field,))


def _examine(
    model: type[S], data: Any, search: Path | None, *, python_names: bool
) -> tuple[S | None, list[Finding]]:
    spec, wrong = validate(model, data, python_names=python_names)
    if spec is None:
        return None, wrong
    echoes = [finding.path for finding in wrong]
    more = [
        finding
        for finding in _rules(spec, search)
        if not any(concerns(finding, path) for path in echoes)
    ]
    return spec, [*wrong, *more]


def _rules(spec: Spec, search: Path | None) -> Iterable[Finding]:
    yield from check_name(spec.name, ("metadata", "name"))
    if isinstance(spec, PipelineSpec):
        yield from check_vertices(spec, search)
        yield from check_graph(spec)
        yield from check_batches(spec)
    else:
        yield from check_monovertex(spec, search)
        yield from check_no_batches(spec)
    yield from check_store(spec.serving_store, search)
    yield from check_support(spec)


def _tell(finding: Finding, noun: str, data: Mapping[str, Any]) -> Problem:
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
