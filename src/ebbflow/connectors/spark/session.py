"""Sessions of their own for vertices, with views and settings that are nobody else's, and what
formats a session knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ebbflow.connectors.spark.settings import Format
from ebbflow.domain.errors import SetupError

_NOT_FOUND = "[DATA_SOURCE_NOT_FOUND]"


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


def clone_session(spark: SparkSession, settings: Mapping[str, tuple[str, str]]) -> SparkSession:
    """Returns a session that knows what the given one knows, views and functions, and adds its own.

    ``settings`` have what Spark has if nobody says anything, and what is better; whatever somebody
    has said stays.
    """
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, (usual, better) in settings.items():
        if own.conf.get(name) == usual:
            own.conf.set(name, better)
    return own


def find_format(spark: SparkSession, format: Format, where: str) -> str:
    """Returns the class of Spark's that knows the format; ``SetupError`` if there is none."""
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
    conf = spark._jsparkSession.sessionState().conf()
    try:
        return str(sources.lookupDataSource(format.name, conf).getName())
    except Py4JError as error:
        if _NOT_FOUND in str(error):
            raise SetupError(
                f"{where}: Spark has no format {format.name!r}.",
                "Correct it, or name the package that has it with "
                "--conf spark.jars.packages=GROUP:NAME:VERSION.",
            ) from None
        return ""  # reading or writing says what is wrong
