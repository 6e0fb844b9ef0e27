"""One Spark session for the folder; a trial goes on as far as its rules need it."""

from __future__ import annotations

from tests.spark.conftest import session

__all__ = ["session"]
