"""One Spark session for the folder, also for tests that start a run by themselves."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def session(spark: Any) -> Any:
    return spark
