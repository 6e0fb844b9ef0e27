"""Reading the audit table: as a view for Spark SQL, and the rows of a few messages.

The rows of messages are found in Parquet files on this machine without Spark, which takes seconds
to start; in any other table Spark finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ebbflow.connectors.spark.settings import FILE_FORMATS, Format
from ebbflow.core.audit import PLAIN_TABLE
from ebbflow.errors import SetupError
from ebbflow.schema.secret import SecretRef
from ebbflow.spark.audit.rows import plain_ddl
from ebbflow.spark.audit.tables import local_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "audit"


class AuditFolder(Protocol):
    """A table in which the rows of messages are found."""

    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterable[Mapping[str, Any]]:
        """Returns the rows of these ids, and of those that begin so, of batches named so."""


def open_folder(table: Mapping[str, Any]) -> AuditFolder:
    """Returns the table that a pipeline says to keep; ``SetupError`` if it is not here."""
    format = read_format(table)
    path = dict(format.options).get("path")
    folder = None if path is None else local_folder(path)
    if format.name.lower() == "parquet" and folder is not None:
        return ParquetFiles(folder)
    return SparkTable(format)


def read_format(table: Mapping[str, Any]) -> Format:
    """Returns the format of a table, with its secrets read now."""
    secrets = {
        name: SecretRef.model_validate(where).read(f"the option {name} of the audit table")
        for name, where in table.get("secretOptions", {}).items()
    }
    return Format(table["format"], tuple(table["options"].items()), tuple(secrets.items()))


class ParquetFiles:
    """Parquet files in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
        """As in ``AuditFolder``."""
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        if not self._folder.is_dir():
            raise SetupError(f"There is no folder {self._folder}.", "Look on the driver's machine.")
        files = sorted(map(str, self._folder.glob(f"{batches}*.parquet")))
        if not files:
            return
        field = ds.field("id")
        wanted = field.isin(list(ids)) | pc.starts_with(field, prefix)
        table = ds.dataset(files, schema=PLAIN_TABLE, format="parquet").to_table(filter=wanted)
        yield from table.to_pylist()


class SparkTable:
    """A table of any format, read by Spark."""

    def __init__(self, format: Format) -> None:
        self._format = format

    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
        """As in ``AuditFolder``."""
        from pyspark.sql import functions as F

        from ebbflow.spark.session import open_local_session

        with open_local_session("trace") as spark:
            rows = read_table(spark, self._format)
            of_life = rows.where(F.col("batch").startswith(batches))
            wanted = F.col("id").isin(list(ids)) | F.col("id").startswith(prefix)
            # A table that is appended to may have a batch twice; the rows of it are the same.
            for row in of_life.where(wanted).distinct().collect():
                yield {name: in_utc(value) for name, value in row.asDict().items()}


def in_utc(value: Any) -> Any:
    """Returns a value of Spark's, a time with its zone."""
    # Spark gives times as they are on this machine's clock, without saying so.
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def read_table(spark: SparkSession, format: Format) -> DataFrame:
    """Returns the table as a DataFrame; one of files has its columns also while it is empty."""
    reader = spark.read.format(format.name).options(**format.reveal_options())
    return (reader.schema(plain_ddl()) if format.name.lower() in FILE_FORMATS else reader).load()
