"""SQL over audit tables of any format, in a session of Spark's that lasts as long as the query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from ebbflow.connectors.spark.session import root_cause, silence_pyspark_loggers
from ebbflow.domain.errors import EbbflowError
from ebbflow.spark.audit.lookup import AuditResult, AuditTables, in_utc, read_format, read_table
from ebbflow.spark.session import open_local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTERS = (
    "pipeline string, number long, vertex string, id string, reason string, error string, "
    "deliveries int, first_seen timestamp, last_seen timestamp, value binary"
)


@contextmanager
def open_query(audit: AuditTables) -> Iterator[Callable[[str], AuditResult]]:
    """Opens Spark with the views; what it gives runs a query."""
    with ExitStack() as opened, open_local_session("sql") as spark, _explained():
        silence_pyspark_loggers()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.shuffle.partitions", "4")
        scratch = Path(opened.enter_context(TemporaryDirectory(prefix="ebbflow-audit-")))
        _union(spark, audit.tables, scratch).createOrReplaceTempView("audit")
        if audit.letters is not None:
            letters = [tuple(letter.values()) for letter in audit.letters]
            spark.createDataFrame(letters, _LETTERS).createOrReplaceTempView("dead_letters")
        yield partial(_run, spark)


def _run(spark: SparkSession, query: str) -> AuditResult:
    frame = spark.sql(query)
    return AuditResult(list(frame.columns), partial(_read_rows, frame))


def _read_rows(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    with _explained():
        for row in frame.toLocalIterator():
            yield tuple(map(in_utc, row))


def _union(
    spark: SparkSession, tables: Mapping[str, Mapping[str, Any]], scratch: Path
) -> DataFrame:
    frames = [_rows_of(spark, pipeline, table, scratch) for pipeline, table in tables.items()]
    return reduce(lambda left, right: left.unionByName(right), frames)


def _rows_of(
    spark: SparkSession, pipeline: str, table: Mapping[str, Any], scratch: Path
) -> DataFrame:
    # Several pipelines may share a table. What a message began as is the start of its id.
    rows = read_table(spark, read_format(table), scratch).where(F.col("pipeline") == pipeline)
    # What waits, and a table without folders for its days, have no such column.
    day = F.to_date("ended")
    rows = rows.withColumn("day", F.coalesce("day", day) if "day" in rows.columns else day)
    return rows.withColumn("root", F.substring_index("id", "/", 1))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise EbbflowError(f"The query does not work: {root_cause(error).sentence}") from None
