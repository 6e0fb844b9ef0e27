"""One Spark session for the folder; a trial continues as far as its rules need it."""

from __future__ import annotations

import pytest

from ebbflow.testing import SourceUnderTest
from tests.spark.conftest import session

__all__ = ["session"]

# The speed of a busy machine proves nothing. A connector that keeps the rules never waits as long
# as this, and ``test_source_rules.py`` and ``test_faults_are_caught.py`` show the usual limits.
PATIENCE = "120s"
LATENESS = 15.0


@pytest.fixture(scope="session", autouse=True)
def time_for_redeliveries() -> None:
    SourceUnderTest.lateness = LATENESS
