"""The broker as a fixture for all tests; where there is none, tests are skipped and say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.connectors.pulsar.broker import PulsarBroker

_missing = [] if importlib.util.find_spec("pulsar") else ["there is no pulsar-client"]


@pytest.fixture(scope="session")
def pulsar_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    """A running broker."""
    broker = _start_broker(tmp_path_factory)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def pulsar_broker(pulsar_of_session: PulsarBroker) -> Iterator[PulsarBroker]:
    """That broker, sound for the next module."""
    yield pulsar_of_session
    pulsar_of_session.recover()


def _start_broker(folders: pytest.TempPathFactory) -> PulsarBroker:
    if not _missing:
        from tests.connectors.kafka.jars import NoBroker
        from tests.connectors.pulsar.broker import PulsarBroker

        try:
            return PulsarBroker(folders.mktemp("pulsar")).start()
        except NoBroker as error:
            _missing.append(str(error))
    pytest.skip(f"Pulsar is not tested: {_missing[0]}")


def report_what_is_missing(reporter: Any) -> None:
    """Repeat in the summary that nothing was tested against Pulsar."""
    if _missing:
        reporter.section("Pulsar was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No broker could be started for tests: {_missing[0]}.")
