"""The broker as a fixture for all tests; where there is none, tests are skipped and say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.connectors.kafka.broker import Broker

_missing = [] if importlib.util.find_spec("confluent_kafka") else ["there is no confluent-kafka"]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker."""
    broker = _start_broker(tmp_path_factory)
    yield broker
    broker.stop()


def _start_broker(folders: pytest.TempPathFactory) -> Broker:
    if not _missing:
        from tests.connectors.kafka.broker import Broker
        from tests.connectors.kafka.jars import NoBroker

        try:
            return Broker(folders.mktemp("kafka")).start()
        except NoBroker as error:
            _missing.append(str(error))
    pytest.skip(f"Kafka is not tested: {_missing[0]}")


def report_what_is_missing(reporter: Any) -> None:
    """Repeat in the summary that nothing was tested against Kafka."""
    if _missing:
        reporter.section("Kafka was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No broker could be started for tests: {_missing[0]}.")
