"""The server as a fixture for all tests; where there is none, tests are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.relay import Relay
from tests.connectors.sqs.server import Sqs, find_missing

_missing = find_missing()


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[Sqs]:
    """A running server."""
    if _missing:
        pytest.skip(f"SQS is not tested: {_missing[0]}")
    server = Sqs()
    yield server
    server.close()


@pytest.fixture
def sqs(sqs_server: Sqs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sqs]:
    """That server behind a relay, and a login for it in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "shop")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    with Relay(sqs_server.port) as sqs_server.relay:
        yield sqs_server


def report_what_is_missing(reporter: Any) -> None:
    """Repeat in the summary that nothing was tested against SQS."""
    if _missing:
        reporter.section("SQS was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No server could be started for tests: {_missing[0]}.")
