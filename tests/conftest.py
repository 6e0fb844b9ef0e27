"""What tests of several folders share: servers that are started once for all of them."""

from __future__ import annotations

from tests.kafka.fixture import kafka, pytest_terminal_summary

__all__ = ["kafka", "pytest_terminal_summary"]
