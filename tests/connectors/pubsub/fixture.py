"""The server as a fixture for all tests; where there is none, tests are skipped and say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.pubsub.server import Pubsub
from tests.connectors.relay import Relay
from tests.numaflow.functions.building import NotBuilt, command

_missing: list[str] = []
if (
    importlib.util.find_spec("google") is None
    or importlib.util.find_spec("google.pubsub_v1") is None
):
    _missing.append("the package google-cloud-pubsub is missing")


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[Pubsub]:
    """A running server."""
    if not _missing:
        try:
            program = command("pstest")
        except NotBuilt as error:
            _missing.append(f"pstest is not built: {error}")
    if _missing:
        pytest.skip(f"Pub/Sub is not tested: {_missing[0]}")
    server = Pubsub(program)
    yield server
    server.close()


@pytest.fixture
def pubsub(pubsub_server: Pubsub) -> Iterator[Pubsub]:
    """That server behind a relay."""
    with Relay(pubsub_server.port) as pubsub_server.relay:
        yield pubsub_server


def report_what_is_missing(reporter: Any) -> None:
    """Repeat in the summary that nothing was tested against Pub/Sub."""
    if _missing:
        reporter.section("Pub/Sub was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No server could be started for tests: {_missing[0]}.")
