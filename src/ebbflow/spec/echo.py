"""A spec in forms that may be shown and stored: as normalised text without secrets, and as a shape.

A spec has one text, however it was written. It refers to secrets and does not hold them, so fields
that the schema defines as such references are shown. Values of variables are hidden, whatever their
names. Secrets that people wrote elsewhere nevertheless, such as a password in an address or in an
option, are hidden by their names.

``outline`` returns the shape: the facts that drawings, completion and ``send`` need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml
from pydantic import BaseModel

from ebbflow.connectors.schema.container import ResourceRef, Variable
from ebbflow.connectors.schema.secrets import KeyRef, SecretRef
from ebbflow.connectors.user_code import CodeSection
from ebbflow.spec.graph import PipelineShape, ShapeEdge, ShapeVertex
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec, Step
from ebbflow.spec.sections import EdgeSpec, SinkSpec, SourceSpec, Udf
from ebbflow.usercode.codecs import uncoded

HIDDEN = "(hidden)"
"""The text that replaces a secret."""

_SECRET_NAMES = re.compile(
    r"passw|secret|token|credential|api.?key|private.?key|access.?key|authori[sz]ation|cookie"
    r"|passphrase|sas.?key|account.?key|signature|connection.?string|jaas|^pwd$|\bauth$|^key$"
    # kubectl keeps a copy of the whole document in this annotation.
    r"|last-applied-configuration",
    re.IGNORECASE,
)
# Kubernetes' fields for references to secrets, in parts of a spec that have no effect here.
_REFERENCES = ("secretKeyRef", "configMapKeyRef", "secretRef", "configMapRef")
_FLAG = re.compile(r"-[^=]*")
# Clients such as mysql and redis-cli read a password after one of these; others read a number.
_SHORT_FLAG = re.compile(r"-[paPW]")
_NUMBER = re.compile(r"[\d.:]*")
_USER_INFO = re.compile(r"(?<=://)[^/\s]+(?=@)|(?<![^\s,;='\"])[^\s,;:/@='\"]+:[^\s,;/@]+(?=@)")
_PARAMETER = re.compile(
    r"(?i)([?&;,\s]|^)((?:[\w.-]*(?:passw|secret|token|api.?key|signature)[\w.-]*|pwd|sig)\s*=)"
    r"\s*(\"[^\"]*\"|'[^']*'|[^&;,\s]+)"
)


def to_document(spec: Spec, *, defaults: bool = False) -> dict[str, Any]:
    """Returns the spec as data for YAML or JSON, without secrets.

    It has the fields that were set; with ``defaults`` also the defaults of all others.
    """
    document = spec.model_dump(
        mode="python", by_alias=True, exclude_none=True, exclude_unset=not defaults
    )
    first = {"apiVersion": spec.api_version, "kind": spec.kind}
    return first | _hide_in_section(spec, document)


def to_yaml(spec: Spec, *, defaults: bool = False) -> str:
    """Returns the spec as YAML, without secrets."""
    return document_to_yaml(to_document(spec, defaults=defaults))


def document_to_yaml(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML that keeps the order of its fields."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _hide(value: Any, data: Any, name: str) -> Any:
    """Returns the ``data`` of a value with secrets hidden, depending on the value's model."""
    if isinstance(value, SecretRef | KeyRef | ResourceRef):
        return data
    if isinstance(value, Variable):
        plain = {"value": HIDDEN if value.value else ""} if "value" in data else {}
        return data | plain
    if isinstance(value, BaseModel) and isinstance(data, dict):
        return _hide_in_section(value, data)
    if isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        return [_hide(item, each, name) for item, each in zip(value, data, strict=True)]
    return hide_secrets(data, name)


def _hide_in_section(section: BaseModel, data: Mapping[str, Any]) -> dict[str, Any]:
    values = {
        field.serialization_alias or field.alias or name: getattr(section, name)
        for name, field in type(section).model_fields.items()
    }
    return {key: _hide(values[key], item, key) for key, item in data.items()}


def hide_secrets(value: Any, name: str = "") -> Any:
    """Returns data that no model describes with secrets hidden; code is written as its name."""
    if isinstance(value, Mapping):
        return value if name in _REFERENCES else _hide_in_mapping(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _hide_in_list(value, name)
    if isinstance(value, str):
        if _is_secret(name):
            return HIDDEN
        return _PARAMETER.sub(rf"\1\2{HIDDEN}", _USER_INFO.sub(HIDDEN, value))
    if value is None or isinstance(value, bool | int | float):
        return HIDDEN if _is_secret(name) and not isinstance(value, bool | None) else value
    return _name_of(value)


def _hide_in_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Hides values with secret names, and the values of variables and of probes' headers."""
    shown = {}
    for key, item in value.items():
        if (key == "value" and "name" in value) or (key == "env" and not _is_list(item)):
            shown[str(key)] = HIDDEN
        else:
            shown[str(key)] = hide_secrets(item, str(key))
    return shown


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _hide_in_list(values: Sequence[Any], name: str) -> list[Any]:
    """Hides items; an item after a flag, as in ``[--password, …]``, has the flag's name."""
    flags = ["", *(item if _FLAG.fullmatch(str(item)) else "" for item in values)]
    return [
        HIDDEN if _is_short_secret(flag, item) else hide_secrets(item, str(flag or name))
        for flag, item in zip(flags, values, strict=False)
    ]


def _is_short_secret(flag: Any, item: Any) -> bool:
    is_text = isinstance(item, str) and not _NUMBER.fullmatch(item) and not item.startswith("-")
    return is_text and _SHORT_FLAG.fullmatch(str(flag)) is not None


def _is_secret(name: str) -> bool:
    return _SECRET_NAMES.search(name) is not None


def _name_of(code: Any) -> str:
    code = uncoded(code)
    target = getattr(code, "func", code)
    module = getattr(target, "__module__", "")
    return f"{module}:{getattr(target, '__qualname__', type(target).__qualname__)}"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


# --- the shape ----------------------------------------------------------------------------------


def outline(spec: Spec) -> PipelineShape:
    """Returns the vertices and edges of a pipeline that passes lint."""
    if isinstance(spec, MonoVertexSpec):
        return PipelineShape(spec.name, spec.kind, (_outline_step(spec.steps[0], "mono"),))
    vertices = tuple(_outline_vertex(spec, step) for step in spec.steps)
    return PipelineShape(spec.name, spec.kind, vertices, tuple(map(_outline_edge, spec.edges)))


def _outline_vertex(spec: PipelineSpec, step: Step) -> ShapeVertex:
    vertex = spec.vertex(step.name)
    return replace(_outline_step(step, str(vertex.kind)), ordered=spec.is_ordered(vertex))


def _outline_step(step: Step, kind: str) -> ShapeVertex:
    words = (_source_words(step.source), _map_words(step.udf), _sink_words(step.sink))
    streams, detail = step.streams, " → ".join(filter(None, words))
    return ShapeVertex(
        streams.vertex,
        kind,
        detail,
        streams.partitions,
        streams.has_buffer,
        batched=streams.batched,
        serves=streams.serves,
    )


def _outline_edge(edge: EdgeSpec) -> ShapeEdge:
    tags = edge.conditions.tags if edge.conditions is not None else None
    if tags is None or not tags.values:
        return ShapeEdge(edge.from_, edge.to)
    words = {"or": "tags ", "and": "all tags ", "not": "not tags "}[tags.operator]
    return ShapeEdge(edge.from_, edge.to, words + ", ".join(tags.values))


def _source_words(source: SourceSpec | None) -> str:
    if source is None:
        return ""
    words = _part_words(source.kind, getattr(source, source.kind))
    return f"{words} → {_code_words(source.transformer)}" if source.transformer else words


def _sink_words(sink: SinkSpec | None) -> str:
    if sink is None:
        return ""
    secondary = [("fallback", sink.fallback), ("on success", sink.on_success)]
    words = [_part_words(sink.kind, sink.section)]
    words += [f"{name}: {_part_words(t.kind, t.section)}" for name, t in secondary if t is not None]
    return ", ".join(words)


def _map_words(udf: Udf | None) -> str:
    if udf is None:
        return ""
    return udf.query or _code_words(udf)


def _part_words(kind: str, section: object) -> str:
    return _code_words(section) if isinstance(section, CodeSection) else kind


def _code_words(section: CodeSection) -> str:
    code = uncoded(section.python)
    if isinstance(code, str):
        return code
    if code is not None:
        target = getattr(code, "func", code)
        return str(getattr(target, "__qualname__", type(target).__qualname__))
    return section.container.image if section.container and section.container.image else "code"
