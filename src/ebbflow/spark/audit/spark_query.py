"""Audit tables of any format, read by Spark: SQL over them, and the rows of a few messages.

A session lasts as long as the query.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from typing_extensions import override

from ebbflow.connectors.plans import FILE_FORMATS, Format
from ebbflow.connectors.spark.vertex_session import root_cause, silence_pyspark_loggers
from ebbflow.domain.errors import EbbflowError
from ebbflow.spark.audit.files import (
    WAITING,
    AuditFolder,
    AuditResult,
    AuditTables,
    folder_of,
    merge_files,
    plain_ddl,
    read_format,
)
from ebbflow.spark.session import open_local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTERS = (
    "pipeline string, number long, vertex string, id string, reason string, error string, "
    "deliveries int, first_seen timestamp, last_seen timestamp, value binary"
)


@contextmanager
def open_query(audit: AuditTables) -> Iterator[Callable[[str], AuditResult]]:
    """Opens Spark with the views; yields a function that runs a query."""
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
    # Several pipelines may share a table.
    rows = read_table(spark, read_format(table), scratch).where(F.col("pipeline") == pipeline)
    # Waiting files, and tables without folders for days, have no column ``day``.
    day = F.to_date("ended")
    rows = rows.withColumn("day", F.coalesce("day", day) if "day" in rows.columns else day)
    # The id of a message starts with the id of the source message that it was made from.
    return rows.withColumn("root", F.substring_index("id", "/", 1))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise EbbflowError(f"The query does not work: {root_cause(error).sentence}") from None


# --- tables ---------------------------------------------------------------------------------------


class SparkTable(AuditFolder):
    """A table of any format, read by Spark."""

    def __init__(self, format: Format) -> None:
        self._format = format

    @override
    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
        with open_local_session("trace") as spark:
            rows = read_table(spark, self._format)
            of_life = rows.where(F.col("batch").startswith(batches))
            wanted = F.col("id").isin(list(ids)) | F.col("id").startswith(prefix)
            # A table that is appended to may have a batch twice, with the same rows.
            for row in of_life.where(wanted).distinct().collect():
                yield {name: in_utc(value) for name, value in row.asDict().items()}


def in_utc(value: Any) -> Any:
    """Returns a value from Spark; times get their zone."""
    # Spark returns times in this machine's zone, but without a zone.
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def read_table(spark: SparkSession, format: Format, scratch: Path | None = None) -> DataFrame:
    """Returns the table as a DataFrame; a table of files has its columns even while it is empty.

    With a ``scratch`` folder, waiting files of a Parquet table are read as well.
    """
    folder = folder_of(format)
    if folder is not None and scratch is not None:
        return folder.read(partial(_read_files, spark, folder.folder, scratch))
    reader = spark.read.format(format.name).options(**format.reveal_options())
    return (reader.schema(plain_ddl()) if format.name.lower() in FILE_FORMATS else reader).load()


def _read_files(
    spark: SparkSession, folder: Path, scratch: Path, files: Sequence[Path]
) -> DataFrame:
    """Returns the rows of the table and of waiting files, which are merged into a file that stays.

    Spark lists the table by itself, which takes a fifth of the time that naming each file takes.
    ``FileNotFoundError`` if the table has changed since the files were listed.
    """
    waiting = [str(path) for path in files if path.suffix == WAITING]
    merged = scratch / f"{secrets.token_hex(4)}.parquet"
    merge_files(waiting, str(merged))
    table, rest = (spark.read.schema(plain_ddl()).parquet(str(p)) for p in (folder, merged))
    if len(table.inputFiles()) != len(files) - len(waiting):
        raise FileNotFoundError(folder)
    return table.unionByName(rest, allowMissingColumns=True)
