"""The OpenAPI document: it is valid, and no input derived from it makes the server fail."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.connectors.serving.asking import asking
from tests.thorough import examples


@pytest.fixture(scope="module")
def server(link, tmp_path_factory):
    with asking(link, tmp_path_factory.mktemp("server"), request_timeout=0.1) as asked:
        yield asked


@pytest.fixture(scope="module")
def document(server):
    return server.ask("GET", "/openapi.json").json


@pytest.fixture(scope="module")
def operations(server, document):
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    found = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method} {operation.path}": operation for operation in found}


def test_the_openapi_document_is_valid(document):
    from jsonschema_rs import meta

    schemas = document["components"]["schemas"]
    assert all(meta.is_valid(tree) for tree in schemas.values())


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "name",
    [
        "post /v1/process/sync",
        "post /v1/process/async",
        "get /v1/process/fetch",
        "get /v1/process/status",
        "get /v1/process/sse",
        "post /v1/process/sse",
    ],
)
def test_no_input_makes_the_server_fail_and_every_answer_is_as_described(operations, name, mode):
    @given(operations[name].as_strategy(generation_mode=mode))
    @settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
    def call(case):
        case.call_and_validate(timeout=20)

    call()
