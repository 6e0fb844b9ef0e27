"""The server as a fixture, one for all tests; where there is none, tests are skipped out loud."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.postgres.server import NoPostgres, Postgres, find_programs

_missing: list[str] = []
try:  # here, so that the process that prints the summary knows it too
    find_programs()
except NoPostgres as error:
    _missing.append(str(error))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server."""
    server = _start_server()
    yield server
    server.close()


def _start_server() -> Postgres:
    if not _missing:
        try:
            return Postgres().start()
        except NoPostgres as error:
            _missing.append(str(error))
    pytest.skip(f"Postgres is not tested: {_missing[0]}")


def report_what_is_missing(reporter: Any) -> None:
    """Say once more, where everybody looks, that nothing was tested against Postgres."""
    if _missing:
        reporter.section("Postgres was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No server could be started for tests: {_missing[0]}.")
