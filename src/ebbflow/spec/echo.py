"""A spec as text again: normalised, and with nothing secret in it.

What a pipeline was told is written in one form, whichever way it was written. A spec refers to
secrets and does not hold them; what people have written into it all the same, as a password in an
address or in an option, is hidden. The text may be shown and stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ebbflow.spec.model import Spec

HIDDEN = "(hidden)"
"""What stands in the place of a secret."""

_SECRET_NAMES = re.compile(
    r"passw|secret|token|credential|api.?key|private.?key|access.?key|authori[sz]ation|cookie"
    r"|passphrase|sas.?key|account.?key|signature|connection.?string|jaas|^pwd$|^auth$|^key$",
    re.IGNORECASE,
)
# Fields of a spec whose names sound like secrets and that say where one is, or that something is.
_REFERENCES = re.compile(r"(secret|Secret|secretKeyRef|Ref|configMap)$")
_USER_INFO = re.compile(r"(?<=://)[^/\s]+(?=@)")
_PARAMETER = re.compile(
    r"(?i)([?&;,\s]|^)((?:[\w.-]*(?:passw|secret|token|api.?key|signature)[\w.-]*|pwd|sig)\s*=)"
    r"\s*(\"[^\"]*\"|'[^']*'|[^&;,\s]+)"
)


def to_document(spec: Spec, *, defaults: bool = False) -> dict[str, Any]:
    """Returns the spec as data for YAML or JSON, without secrets.

    It has what was said; with ``defaults`` also what holds because nothing was said.
    """
    document = spec.model_dump(
        mode="python", by_alias=True, exclude_none=True, exclude_unset=not defaults
    )
    first = {"apiVersion": spec.api_version, "kind": spec.kind}
    hidden = hide_secrets(first | document)
    assert isinstance(hidden, dict)
    return hidden


def to_yaml(spec: Spec, *, defaults: bool = False) -> str:
    """Returns the spec as YAML, without secrets."""
    return document_to_yaml(to_document(spec, defaults=defaults))


def document_to_yaml(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML that keeps the order of its fields."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def hide_secrets(value: Any, name: str = "") -> Any:
    """Returns the data with secrets hidden; code is written as its name."""
    if isinstance(value, Mapping):
        return _hide_in_mapping(value)
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
    # A variable, as ``{name: PASSWORD, value: …}``, is named by its own field; so is a header.
    own = value.get("name")
    shown = {}
    for key, item in value.items():
        named = str(own) if key == "value" and isinstance(own, str) else str(key)
        is_reference = (
            set(value) <= {"env", "file", "name", "key", "optional"} and "value" not in value
        )
        shown[str(key)] = item if is_reference else hide_secrets(item, named)
    return shown


def _hide_in_list(values: Sequence[Any], name: str) -> list[Any]:
    """Hides items; one behind a flag, as in ``[--password, …]``, is named by the flag."""
    flags = ["", *(item if str(item).startswith("-") else "" for item in values)]
    return [
        hide_secrets(item, str(flag or name)) for flag, item in zip(flags, values, strict=False)
    ]


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAMES.search(name)) and not _REFERENCES.search(name)


def _name_of(code: Any) -> str:
    target = getattr(code, "func", code)
    module = getattr(target, "__module__", "")
    return f"{module}:{getattr(target, '__qualname__', type(target).__qualname__)}"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
