"""One Spark session for the folder, including tests that start a run themselves."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def session(spark: Any) -> Any:
    return spark
