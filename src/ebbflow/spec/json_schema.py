"""The JSON schema of specs, for editors that complete and check YAML.

It is made from the models, so it knows every field that lint knows. It says less than lint: rules
between fields are not in it.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from ebbflow.spec.kinds import RUNNABLE

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_HEADER = ("apiVersion", "kind")


def make_schema() -> dict[str, Any]:
    """Returns the schema of a document of any kind that can be run."""
    models = [(model, "validation") for model in RUNNABLE.values()]
    refs, schema = models_json_schema(models, by_alias=True)  # type: ignore[arg-type]
    definitions: dict[str, Any] = schema["$defs"]
    kinds = {kind: refs[model, "validation"] for kind, model in RUNNABLE.items()}
    for ref in kinds.values():
        _require_header(definitions[ref["$ref"].rpartition("/")[2]])
    return {
        "$schema": _DIALECT,
        "title": "A pipeline of Ebbflow",
        "type": "object",
        "required": list(_HEADER),
        "properties": {"kind": {"enum": list(kinds)}},
        # One after another by kind: an editor then tells what is wrong with this kind, and not
        # that the document is none of three.
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": ref}
            for kind, ref in kinds.items()
        ],
        "$defs": definitions,
    }


def _require_header(definition: dict[str, Any]) -> None:
    """Requires what has a default only for specs that are made in Python."""
    required = definition.setdefault("required", [])
    required += [name for name in _HEADER if name not in required]
