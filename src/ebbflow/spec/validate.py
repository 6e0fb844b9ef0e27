"""Plain data → the model, with a finding for every wrong field.

A wrong field does not hide other problems: it is set aside, so that a model can still be made and
checked by the rules about vertices and edges. ``concerns`` then shows which of their findings only
follow from a field that has been reported already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ebbflow.connectors.registry import section_in
from ebbflow.connectors.schema.fields import shown
from ebbflow.connectors.schema.secrets import ClusterSection, ClusterValues
from ebbflow.domain.spelling import did_you_mean

CODES: dict[str, str] = {
    "EB001": "the file cannot be read",
    "EB002": "the file is not valid YAML",
    "EB003": "a key is written twice in one mapping",
    "EB004": "the file has no pipeline in it",
    "EB005": "apiVersion or kind is not one that Ebbflow knows",
    "EB006": "the file holds several pipelines, and it is not clear which is meant",
    "EB101": "a field that does not exist",
    "EB102": "a required field is missing",
    "EB103": "a value of the wrong type",
    "EB104": "a value that is not allowed",
    "EB105": "not a duration",
    "EB106": "not base64",
    "EB107": "a name that is not a DNS label (RFC 1035)",
    "EB108": "a name that NATS does not allow for a bucket",
    "EB109": "a secret that is not named by a variable, a file or a key of a Secret",
    "EB201": "the pipeline has no vertices",
    "EB202": "the pipeline has no edges",
    "EB203": "the pipeline or MonoVertex has no source",
    "EB204": "the pipeline or MonoVertex has no sink",
    "EB205": "two vertices have the same name",
    "EB206": "a vertex is not exactly one of source, udf and sink",
    "EB207": "a source, udf, sink, serving store or binding does not say exactly one kind",
    "EB208": "user code is asked for but not named",
    "EB209": "a bypass leads to a sink that is not there",
    "EB210": "SQL, a DataFrame function or a Spark sink where it cannot be",
    "EB211": "a serve sink without a serving store, or next to another sink",
    "EB212": "a connector of another package that cannot be loaded or used here",
    "EB213": "a sink that writes exactly once next to another one, or in several partitions",
    "EB301": "an edge names a vertex that does not exist",
    "EB302": "the same edge is written twice",
    "EB303": "a tag condition has no values",
    "EB304": "a vertex has edges it cannot have, or lacks edges it needs",
    "EB305": "a vertex is in no edge",
    "EB306": "no source leads to a vertex, or the graph falls apart into separate ones",
    "EB401": "a python: target is not of the form module:attribute",
    "EB402": "a python: target cannot be imported, is missing or is not callable",
    "EB403": "user code that cannot be instantiated, or cannot be called as its place requires",
    "EB501": "a back-off whose cap is below its interval",
    "EB502": "onFailure is fallback, but there is no fallback sink",
    "EB601": "serving sources or stores of a pipeline that are missing, or that are too many",
    "EB602": "a serving source without a sink that answers",
    "EB603": "something that would leave a caller without an answer",
    "EB701": "an audit table that does not say where it is",
    "EB702": "an option that the audit table cannot have",
    "EB703": "a retention where Ebbflow cannot delete rows",
    "EB901": "a feature of Numaflow that Ebbflow does not have yet",
    "EB902": "a container that no function is bound to",
}
"""Every code and what it means, in one line."""

FieldPath = tuple[str | int, ...]
"""The path of a field, as written in YAML: ``("spec", "vertices", 0, "name")``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with the field at ``path``; ``at_key`` points at its name, not its value."""

    code: str
    message: str
    path: FieldPath
    at_key: bool = False


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping",
}
_LIMITS = {
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "finite_number": "finite",
    "literal_error": "{expected}",
}
_ROUNDS = 8

M = TypeVar("M", bound=BaseModel)


def validate(
    model: type[M], data: Any, *, python_names: bool = False, values: ClusterValues | None = None
) -> tuple[M | None, list[Finding]]:
    """Returns the data as that model, and what is wrong with its fields.

    ``python_names`` accepts ``read_batch_size`` as well as ``readBatchSize``. The model reads
    Secrets and ConfigMaps from ``values``. With findings, the model only serves to find more
    problems; it is ``None`` if too little of the data is valid.
    """
    findings: list[Finding] = []
    rest = _copy(data)
    for _ in range(_ROUNDS):
        try:
            spec = model.model_validate(rest, by_alias=True, by_name=python_names, context=values)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            findings = findings or [_finding(model, detail) for detail in errors]
            for detail in errors:
                _set_aside(rest, detail["loc"], detail["type"])
        else:
            return spec, findings
    return None, findings


def concerns(finding: Finding, path: FieldPath) -> bool:
    """Returns whether the finding is about this field, something in it or something around it."""
    shorter = min(len(finding.path), len(path))
    return finding.path[:shorter] == path[:shorter]


def _finding(model: type[BaseModel], error: ErrorDetails) -> Finding:
    kind, path = error["type"], error["loc"]
    label = _label(path)
    if kind in CODES:
        return Finding(kind, f"{label}: {error['msg']}", path)
    if kind == "extra_forbidden":
        return Finding("EB101", _unknown(model, path), path, at_key=True)
    if kind == "missing":
        return Finding("EB102", f"{label} is missing", path)
    if kind in _LIMITS:
        allowed = _LIMITS[kind].format(**error.get("ctx", {}))
        return Finding("EB104", f"{label} must be {allowed}, not {shown(error['input'])}", path)
    if kind in _EXPECTED:
        quoted = _quote_input(
            error, hidden=kind == "model_type" and _is_secret(_section(model, path))
        )
        return Finding("EB103", f"{label} must be {_EXPECTED[kind]}, not {quoted}", path)
    return Finding("EB103", f"{label}: {error['msg']}", path)


def _quote_input(error: ErrorDetails, hidden: bool) -> str:
    value = error["input"]
    if hidden and not isinstance(value, list):
        return "a single value"
    quotable = isinstance(value, bool | int | float)
    return shown(value) + ("; put it in quotes" * (error["type"] == "string_type" and quotable))


def _is_secret(section: type[BaseModel]) -> bool:
    """Returns whether a section refers to secrets, or has a section that does.

    A wrong value in its place may be the secret itself.
    """
    inner = [_class_of(field) for field in section.model_fields.values()]
    return any(_names_secrets(part) for part in [section, *filter(None, inner)])


def _names_secrets(section: type[BaseModel]) -> bool:
    inner = [_class_of(field) for field in section.model_fields.values()]
    return any(issubclass(part, ClusterSection) for part in [section, *filter(None, inner)])


def _label(path: FieldPath) -> str:
    names = [index for index, part in enumerate(path) if isinstance(part, str)]
    last = names[-1] if names else len(path)
    return repr("".join(f"[{p}]" if isinstance(p, int) else p for p in path[last:]) or "pipeline")


def _unknown(model: type[BaseModel], path: FieldPath) -> str:
    name = str(path[-1])
    section = _section(model, path[:-1])
    known = [str(field.alias) for field in section.model_fields.values()]
    unusable: Collection[str] = getattr(section, "unusable", tuple)()
    names = [field for field in known if field not in unusable]
    return f"unknown field {name!r}; {did_you_mean(name, names, 'valid here:')}"


def _section(section: type[BaseModel], path: FieldPath) -> type[BaseModel]:
    """Returns the class of the mapping at ``path`` inside a section."""
    for part in path:
        for name, field in section.model_fields.items():
            if part in (name, field.alias):
                section = _class_of(field) or section
    return section


def _class_of(field: FieldInfo) -> type[BaseModel] | None:
    shipped = section_in(field)
    return _class_in(field.annotation) if shipped is None else shipped.section


def _class_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_class_in, get_args(annotation))), None)


def _copy(value: Any) -> Any:
    # Not deepcopy: user code must stay the same object.
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _set_aside(data: Any, path: FieldPath, kind: str) -> None:
    """Removes the wrong field, or replaces it with a placeholder if it is required."""
    if kind == "missing" and path[-1] not in _PLACEHOLDERS:
        path, kind = path[:-1], ""  # without it the whole section cannot be read
    for part in path[:-1]:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return
    last = path[-1] if path else None
    if isinstance(data, dict) and isinstance(last, str):
        data.pop(last, None)
        if last in _PLACEHOLDERS and kind != "extra_forbidden":
            data[last] = _copy(_PLACEHOLDERS[last])
    elif isinstance(data, list) and isinstance(last, int):
        data[last] = {} if kind == "model_type" else ""


_PLACEHOLDERS: dict[str, Any] = {
    "metadata": {},
    "spec": {},
    "name": "",
    "from": "",
    "to": "",
    "bucket": "-",
}
"""The required fields of sections, and the values that replace them."""
