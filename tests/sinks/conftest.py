"""What tests of sinks share with the tests on Spark: one session, and runs of their own."""

from __future__ import annotations

from tests.sinks.postgres import postgres, pytest_terminal_summary
from tests.spark.conftest import another_journal, journal, run, server_letters, spark

__all__ = [
    "another_journal",
    "journal",
    "postgres",
    "pytest_terminal_summary",
    "run",
    "server_letters",
    "spark",
]
