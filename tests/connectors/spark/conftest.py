"""A PostgreSQL server for the tests that write to a database."""

from __future__ import annotations

from tests.connectors.spark.postgres import postgres, pytest_terminal_summary

__all__ = ["postgres", "pytest_terminal_summary"]
