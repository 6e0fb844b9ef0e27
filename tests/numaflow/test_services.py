"""The table of services names every kind, and the bytes derived from it are what SDKs send."""

import subprocess
import sys
from typing import get_args

import pytest

from ebbflow.numaflow.services import (
    SERVICES,
    ContainerType,
    Kind,
    MapMode,
    find_service,
    service_of,
)
from ebbflow.usercode.targets import resolve


def test_every_kind_and_every_container_has_a_row() -> None:
    assert tuple(SERVICES) == get_args(Kind)
    assert {service.container for service in SERVICES.values()} == set(get_args(ContainerType))
    assert [service_of("udf", mode).map_mode for mode in get_args(MapMode)] == list(
        get_args(MapMode)
    )
    assert find_service("reducer") is None


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_code_that_calls_it_and_a_readiness_method(name: Kind) -> None:
    assert callable(resolve(SERVICES[name].caller))
    assert "IsReady" in SERVICES[name].methods


@pytest.mark.parametrize(
    ("name", "path", "greeting", "greeted"),
    [
        ("map", "/map.v1.Map/MapFn", b"\x1a\x02\x08\x01", b"\x1a\x02\x08\x01"),
        (
            "transformer",
            "/sourcetransformer.v1.SourceTransform/SourceTransformFn",
            b"\x12\x02\x08\x01",
            b"\x1a\x02\x08\x01",
        ),
        ("sink", "/sink.v1.Sink/SinkFn", b"\x1a\x02\x08\x01", b"\x12\x02\x08\x01"),
    ],
)
def test_streams_begin_like_those_of_sdks(
    name: Kind, path: str, greeting: bytes, greeted: bytes
) -> None:
    stream = SERVICES[name].stream
    assert (stream.path, stream.greeting, stream.greeted) == (path, greeting, greeted)


def test_batches_end_like_those_of_sdks() -> None:
    mapped, sink = SERVICES["batch-map"].stream, SERVICES["sink"].stream
    assert mapped.end_of_requests == mapped.end_of_responses == b"\x22\x02\x08\x01"
    assert sink.end_of_requests == b"\x12\x02\x08\x01"
    assert sink.end_of_responses == b"\x1a\x02\x08\x01"


def test_the_table_is_imported_without_protobuf_and_arrow() -> None:
    heavy = ("google", "pyarrow", "numpy")
    code = f"import sys, ebbflow.numaflow.services; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
