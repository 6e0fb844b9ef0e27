"""Sessions of their own for vertices: with views and settings that are nobody else's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def leaving_active(spark: SparkSession) -> Iterator[None]:
    """Whatever is done with clones inside, the given session is the active one afterwards.

    Making a DataFrame from Python makes its session the active one, for the user's program as well.
    """
    try:
        yield
    finally:
        SparkSession._activeSession = spark
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def cloned(spark: SparkSession, settings: Mapping[str, tuple[str, str]]) -> SparkSession:
    """A session that knows the views, functions and settings of the given one, and adds its own.

    ``settings`` have what Spark has if nobody says anything, and what is better; whatever somebody
    has said stays.
    """
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, (usual, better) in settings.items():
        if own.conf.get(name) == usual:
            own.conf.set(name, better)
    return own
