"""What tests of sources share with the tests on Spark: one session, and runs of their own."""

from __future__ import annotations

import pytest

from tests.sources.outside import outside
from tests.sources.queue import QueueFile
from tests.spark.conftest import another_journal, journal, run, server_letters, spark

__all__ = ["another_journal", "journal", "outside", "run", "server_letters", "spark"]


@pytest.fixture
def queue(tmp_path) -> QueueFile:
    return QueueFile(tmp_path / "queue.db")
