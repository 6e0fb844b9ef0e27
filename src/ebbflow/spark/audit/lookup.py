"""Reading the audit table: as a view for Spark SQL, and the rows of a few messages.

The rows of messages are found in Parquet files on this machine without Spark, which takes seconds
to start; in any other table Spark finds them.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from typing_extensions import override

from ebbflow.connectors.plans import FILE_FORMATS, Format
from ebbflow.connectors.schema.secret import SecretRef
from ebbflow.domain.errors import SetupError
from ebbflow.spark.audit.files import WAITING, TableFiles, local_folder, merge_files, plain_ddl
from ebbflow.streams.audit_rows import PLAIN_TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 5
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class AuditTables:
    """The tables of pipelines by their names, and their dead letters if those are asked for."""

    tables: Mapping[str, Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of a query: the names of its columns, and a function that yields its rows.

    Times have their zone. ``EbbflowError`` if the rows cannot be made.
    """

    columns: list[str]
    rows: Callable[[], Iterator[tuple[Any, ...]]]


class AuditFolder(Protocol):
    """A table in which the rows of messages are found."""

    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterable[Mapping[str, Any]]:
        """Returns the rows of these ids, and of those that begin so, of batches named so."""


def open_folder(table: Mapping[str, Any]) -> AuditFolder:
    """Returns the table that a pipeline says to keep; ``SetupError`` if it is not here."""
    format = read_format(table)
    return folder_of(format) or SparkTable(format)


def folder_of(format: Format) -> ParquetFiles | None:
    """Returns the table if it is one of Parquet files in a folder of this machine."""
    path = dict(format.options).get("path")
    folder = None if path is None else local_folder(path)
    if folder is None or format.name.lower() != "parquet":
        return None
    return ParquetFiles(folder)


def read_format(table: Mapping[str, Any]) -> Format:
    """Returns the format of a table, with its secrets read now."""
    secrets = {
        name: SecretRef.model_validate(where).read(f"the option {name} of the audit table")
        for name, where in table.get("secretOptions", {}).items()
    }
    return Format(table["format"], tuple(table["options"].items()), tuple(secrets.items()))


class ParquetFiles(AuditFolder):
    """Parquet files in a folder of this machine, those that wait to be in the table as well."""

    def __init__(self, folder: Path) -> None:
        self._files = TableFiles(folder)

    @override
    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        field = ds.field("id")
        wanted = field.isin(list(ids)) | pc.starts_with(field, prefix)

        def read(files: Sequence[Path]) -> list[Mapping[str, Any]]:
            # The ids of all, then the rows of the few files that have them.
            ids_of = _open(map(str, files)).scanner(columns=["__filename"], filter=wanted)
            found = ids_of.to_table().column(0).unique().to_pylist()
            return list(_open(found).to_table(filter=wanted).to_pylist()) if found else []

        def _open(files: Iterable[str]) -> ds.Dataset:
            return ds.dataset([*files], schema=PLAIN_TABLE, format="parquet")

        yield from self.read(read, batches)

    def read(self, work: Callable[[Sequence[Path]], _Made], life: str = "") -> _Made:
        """Returns what is made of the files that have each row once, as they are at one moment."""
        if not self._files.folder.is_dir():
            where = self._files.folder
            raise SetupError(f"There is no folder {where}.", "Look on the driver's machine.")
        for _ in range(_TRIES):
            # A file that has waited may be in the table by now, under another name.
            with contextlib.suppress(FileNotFoundError):
                return work(self._files.list_rows(life))
        return work(self._files.list_rows(life))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._files.folder


class SparkTable(AuditFolder):
    """A table of any format, read by Spark."""

    def __init__(self, format: Format) -> None:
        self._format = format

    @override
    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
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


def read_table(spark: SparkSession, format: Format, scratch: Path | None = None) -> DataFrame:
    """Returns the table as a DataFrame; one of files has its columns also while it is empty.

    With a folder to write to, what waits to be in a table of Parquet files is read as well.
    """
    folder = folder_of(format)
    if folder is not None and scratch is not None:
        return folder.read(partial(_read_files, spark, folder.path, scratch))
    reader = spark.read.format(format.name).options(**format.reveal_options())
    return (reader.schema(plain_ddl()) if format.name.lower() in FILE_FORMATS else reader).load()


def _read_files(
    spark: SparkSession, folder: Path, scratch: Path, files: Sequence[Path]
) -> DataFrame:
    """Returns the rows of the table, and of what waits: as one file, which is here to stay.

    Spark lists the table by itself, which takes a fifth of the time that naming each file takes.
    ``FileNotFoundError`` if it has changed since the files were listed.
    """
    waiting = [str(path) for path in files if path.suffix == WAITING]
    merged = scratch / f"{secrets.token_hex(4)}.parquet"
    merge_files(waiting, str(merged))
    table, rest = (spark.read.schema(plain_ddl()).parquet(str(p)) for p in (folder, merged))
    if len(table.inputFiles()) != len(files) - len(waiting):
        raise FileNotFoundError(folder)
    return table.unionByName(rest, allowMissingColumns=True)
