"""Where audit rows are written to, and that each batch is there once.

**Files** (Parquet, ORC, JSON, CSV with a path): a batch is one file, named after the batch. It is
written aside and then moved to its place in one step, so readers see all of it or nothing, and a
batch that is written again finds its file or replaces it by the same.

**Anything else** (a database, Delta, Kafka): a batch is appended. After a crash it may be there
twice; the column ``batch`` is the same then, by which copies are told.
"""

from __future__ import annotations

import os
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException

from ebbflow.connectors.spark.errors import trouble
from ebbflow.connectors.spark.session import clone_session, find_format
from ebbflow.connectors.spark.settings import FILE_FORMATS, Format
from ebbflow.errors import SetupError, SparkError
from ebbflow.spark.audit.rows import BatchRows, give_rows, plain_ddl, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ASIDE = "_ebbflow"
# Spark adapts to batches in vain: they have one task.
_SETTINGS = {"spark.sql.adaptive.enabled": ("true", "false")}


class AuditTable(Protocol):
    """A table that batches of audit rows are written to. Runs on the driver."""

    def check(self) -> None:
        """Raises ``SetupError`` if it can never be written."""

    def write(self, rows: BatchRows) -> None:
        """Writes a batch; ``SparkError`` says why it could not be."""


def open_table(spark: SparkSession, format: Format) -> AuditTable:
    """Returns the table of a format."""
    path = dict(format.options).get("path")
    if format.name.lower() not in FILE_FORMATS or path is None:
        return AppendedTable(spark, format)
    local = local_folder(path)
    is_near = str(spark.sparkContext.master).startswith("local")
    if format.name.lower() == "parquet" and local is not None and is_near and _is_plain(format):
        return ParquetFolder(spark, local)
    return FileFolder(spark, format, path)


def local_folder(path: str) -> Path | None:
    """Returns the folder of a path if it is one of this machine."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path).absolute()


def _is_plain(format: Format) -> bool:
    """Returns whether there are no options that only Spark's own writer knows."""
    return [name for name, _ in format.options] == ["path"] and not format.secrets


class ParquetFolder:
    """Parquet files in a folder of this machine, written by Arrow in a task of Spark's."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def check(self) -> None:
        """As in ``AuditTable``."""
        try:
            (self._folder / _ASIDE).mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK):
                raise PermissionError("it may not be written")
        except OSError as error:
            raise _unusable(str(self._folder), error.strerror or str(error)) from error

    def write(self, rows: BatchRows) -> None:
        """As in ``AuditTable``."""
        target = self._folder / f"{rows.batch.name}.parquet"
        if target.exists():  # an earlier attempt came so far, and was lost before its record
            return
        aside = self._folder / _ASIDE / f"{rows.batch.name}-{secrets.token_hex(4)}.parquet"
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            context = self._spark.sparkContext
            task = context.parallelize([str(aside)], 1).map(partial(write_file, rows))
            task.collect()
            aside.replace(target)
            _sync_folder(self._folder)
        except PySparkException as error:
            raise SparkError(*_explain(error)) from error
        finally:
            aside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class AppendedTable:
    """A table of any format, to which batches are appended."""

    def __init__(self, spark: SparkSession, format: Format) -> None:
        self._spark = clone_session(spark, _SETTINGS)
        self._format = format

    def check(self) -> None:
        """As in ``AuditTable``."""
        find_format(self._spark, self._format, "the audit table")

    def write(self, rows: BatchRows) -> None:
        """As in ``AuditTable``."""
        self._save(self._rows(rows), self._format.reveal_options())

    def _rows(self, rows: BatchRows) -> DataFrame:
        one = self._spark.range(0, 1, 1, 1)
        return one.mapInArrow(partial(give_rows, rows=rows), plain_ddl())

    def _save(self, frame: DataFrame, options: dict[str, str]) -> None:
        try:
            frame.write.format(self._format.name).mode("append").options(**options).save()
        except PySparkException as error:
            kind, text = _explain(error)
            raise SparkError(kind, self._format.without_secrets(text)) from error


class FileFolder(AppendedTable):
    """Files of Spark's in a folder of any file system that Spark knows."""

    def __init__(self, spark: SparkSession, format: Format, path: str) -> None:
        super().__init__(spark, format)
        self._path = path.rstrip("/")

    def write(self, rows: BatchRows) -> None:
        """As in ``AuditTable``."""
        name = rows.batch.name
        files, folder = self._open(self._path)
        if self._has(files, folder, name):
            return
        aside = f"{self._path}/{_ASIDE}/{name}-{secrets.token_hex(4)}"
        # One file, whatever the session says: the batch is moved to its place in one step.
        options = self._format.reveal_options() | {"path": aside, "maxRecordsPerFile": "0"}
        try:
            self._save(self._rows(rows).coalesce(1), options)
            for status in files.listStatus(self._java_path(aside)):
                part = status.getPath().getName()
                if part.startswith("part-"):
                    target = self._java_path(f"{self._path}/{name}{_ending(part)}")
                    moved = files.rename(status.getPath(), target)
                    if not (moved or files.exists(target)):
                        raise SparkError("Unmoved", f"{status.getPath()} is not moved to {target}")
        finally:
            files.delete(self._java_path(aside), True)

    def _has(self, files: Any, folder: Any, name: str) -> bool:
        if not files.exists(folder):
            return False
        names = (status.getPath().getName() for status in files.listStatus(folder))
        return any(file.startswith(f"{name}.") for file in names)

    def _open(self, path: str) -> tuple[Any, Any]:
        folder = self._java_path(path)
        return folder.getFileSystem(self._spark._jsc.hadoopConfiguration()), folder

    def _java_path(self, path: str) -> Any:
        return self._spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]


def _ending(part: str) -> str:
    """Returns what follows the made-up name of a part: ``.snappy.parquet`` or ``.json``."""
    return part[part.index(".") :] if "." in part else ""


def _explain(error: PySparkException) -> tuple[str, str]:
    why = trouble(error)
    return why.kind, why.text


def _unusable(folder: str, why: str) -> SetupError:
    return SetupError(
        f"The audit table cannot be written to {folder}: {why}.",
        "Give its folder to the user that runs the pipeline, or name another path in the spec.",
    )
