"""The server as a fixture for all tests; where there is none, tests are skipped and say so.

It is moto's. With ``EBBFLOW_TEST_SQS=elasticmq`` it is ElasticMQ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.relay import Relay
from tests.connectors.sqs.server import Sqs, find_missing

_missing = find_missing()


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[Sqs]:
    """A running server."""
    server = _start_server()
    yield server
    server.close()


def _start_server() -> Sqs:
    if not _missing and os.environ.get("EBBFLOW_TEST_SQS") == "elasticmq":
        from tests.connectors.kafka.jars import NoBroker
        from tests.connectors.sqs.elasticmq import ElasticMq

        try:
            return ElasticMq()
        except NoBroker as error:
            _missing.append(str(error))
    if _missing:
        pytest.skip(f"SQS is not tested: {_missing[0]}")
    return Sqs()


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
