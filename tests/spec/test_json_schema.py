"""The JSON schema for editors: generated from the models, complete and self-contained."""

from collections.abc import Iterator
from typing import Any

from ebbflow.connectors.registry import SINKS, SOURCES
from ebbflow.spec.kinds import RUNNABLE, make_schema

SCHEMA = make_schema()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["$defs"][name]["properties"]
    return found


def test_every_reference_resolves():
    assert {ref.removeprefix("#/$defs/") for ref in references(SCHEMA)} <= set(SCHEMA["$defs"])


def test_every_kind_has_its_fields_and_requires_its_header():
    assert SCHEMA["properties"]["kind"]["enum"] == list(RUNNABLE)
    for kind, model in RUNNABLE.items():
        definition = SCHEMA["$defs"][model.__name__]
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(definition["required"])
        assert definition["properties"]["kind"]["const"] == kind
        assert definition["additionalProperties"] is False


def test_every_connector_is_in_the_schema():
    assert set(SOURCES) <= set(properties("SourceSpec"))
    assert set(SINKS) <= set(properties("SinkSpec"))


def test_field_names_are_those_of_yaml_and_durations_are_strings():
    assert {"from", "to", "onFull"} <= set(properties("EdgeSpec"))
    assert properties("NatsStoreSpec")["ttl"]["type"] == "string"
