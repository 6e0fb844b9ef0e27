"""The tables that audit rows are written to, where possible with each batch exactly once.

**Parquet in a folder of this machine**: batches are files that wait until several of them are
merged into a file of the table (``files``).

**Other files** (ORC, JSON, CSV with a path, Parquet elsewhere): a batch is one file, named after
the batch. It is written aside and then moved into place in one step, so readers see all of it or
nothing. A repeated write finds the batch's file or replaces it with the same content.

**Other formats** (a database, Delta, Kafka): a batch is appended. After a crash it may be in the
table twice; copies can be recognised by the column ``batch``, which is the same.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.errors import PySparkException
from typing_extensions import override

from ebbflow.connectors.plans import FILE_FORMATS, Format
from ebbflow.connectors.spark.vertex_session import clone_session, find_format, root_cause
from ebbflow.domain.errors import SetupError, SparkError
from ebbflow.spark.audit.files import (
    ASIDE,
    BatchRows,
    BatchSpan,
    TableFiles,
    local_folder,
    merge_files,
    plain_ddl,
    write_files,
    yield_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_WAITING = 32 * 1024 * 1024
# Adaptive plans gain nothing, because a batch has one task.
_SETTINGS = {"spark.sql.adaptive.enabled": ("true", "false")}


class AuditTable:
    """A table that batches of audit rows are written to. Runs on the driver.

    ``merges`` if batches wait until several of them are merged. In a table that is not a folder of
    files, rows do not expire: deleting them is up to its owner.
    """

    merges: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ``SetupError`` if the table can never be written."""
        raise NotImplementedError

    def write(self, rows: BatchRows) -> None:
        """Writes a batch; raises ``SparkError`` with the reason if that fails."""
        raise NotImplementedError

    def is_merge_due(self, interval: float) -> bool:
        """Returns whether waiting batches are older than ``interval``, large, or of a past day."""
        return False

    def merge(self, span: BatchSpan) -> None:
        """Merges written batches into files that cover several; may be repeated after a crash.

        Batches that an earlier life of the pipeline has left waiting are merged as well.
        """

    def expire(self, pipeline: str, before: datetime) -> None:
        """Deletes the files of a pipeline whose rows all ended before a time."""


def open_audit_table(spark: SparkSession, format: Format) -> AuditTable:
    """Returns the table of a format."""
    path = dict(format.options).get("path")
    if format.name.lower() not in FILE_FORMATS or path is None:
        return AppendedTable(spark, format)
    local = local_folder(path)
    is_near = str(spark.sparkContext.master).startswith("local")
    if format.name.lower() == "parquet" and local is not None and is_near and _is_plain(format):
        return ParquetFolder(spark, local)
    return FileFolder(spark, format, path)


def _is_plain(format: Format) -> bool:
    """Returns whether there are no options that only Spark's own writer supports."""
    return [name for name, _ in format.options] == ["path"] and not format.secrets


class ParquetFolder(AuditTable):
    """Parquet files in a folder of this machine, written by Arrow in a Spark task."""

    merges = True

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._files = TableFiles(folder)

    @override
    def check(self) -> None:
        try:
            self._files.aside.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK):
                raise PermissionError("it is not writable")
        except OSError as error:
            raise _unusable(str(self._folder), error.strerror or str(error)) from error

    @override
    def write(self, rows: BatchRows) -> None:
        batch = rows.batch.name
        if self._files.has(batch):  # written to the table before a crash prevented its record
            return
        try:
            path = str(self._files.begin(batch))
            (written,) = self._on_worker(partial(write_files, rows), path)
        except PySparkException as error:
            raise SparkError(*_explain(error)) from error
        self._files.keep(batch, written)

    @override
    def is_merge_due(self, interval: float) -> bool:
        facts = [(file.day, file.path.stat()) for file in self._files.list_waiting()]
        if not facts:
            return False
        now = datetime.now(UTC)
        oldest = min(stat.st_mtime for _, stat in facts)
        size = sum(stat.st_size for _, stat in facts)
        is_over = any(day < f"{now:%Y-%m-%d}" for day, _ in facts)
        return is_over or size > _MOST_WAITING or now.timestamp() - oldest >= interval

    @override
    def merge(self, span: BatchSpan) -> None:
        try:
            for left in self._files.list_leftovers(span):
                self._files.publish(left, self._merge_on_worker)
            self._files.publish(span, self._merge_on_worker)
            self._files.clean(span)
        except PySparkException as error:
            raise SparkError(*_explain(error)) from error

    @override
    def expire(self, pipeline: str, before: datetime) -> None:
        self._files.expire(pipeline, before)

    def _merge_on_worker(self, paths: Sequence[str], target: str) -> None:
        self._on_worker(partial(merge_files, paths), target)

    def _on_worker(self, work: Callable[[str], Any], path: str) -> list[Any]:
        return self._spark.sparkContext.parallelize([path], 1).map(work).collect()


class AppendedTable(AuditTable):
    """A table of any format, to which batches are appended."""

    def __init__(self, spark: SparkSession, format: Format) -> None:
        self._spark = clone_session(spark, _SETTINGS)
        self._format = format

    @override
    def check(self) -> None:
        find_format(self._spark, self._format, "the audit table")

    @override
    def write(self, rows: BatchRows) -> None:
        self._save(self._rows(rows), self._format.reveal_options())

    def _rows(self, rows: BatchRows) -> DataFrame:
        one = self._spark.range(0, 1, 1, 1)
        return one.mapInArrow(partial(yield_rows, rows=rows), plain_ddl())

    def _save(self, frame: DataFrame, options: dict[str, str]) -> None:
        try:
            frame.write.format(self._format.name).mode("append").options(**options).save()
        except PySparkException as error:
            kind, text = _explain(error)
            raise SparkError(kind, self._format.without_secrets(text)) from error


class FileFolder(AppendedTable):
    """Files written by Spark in a folder of any file system that Spark supports."""

    def __init__(self, spark: SparkSession, format: Format, path: str) -> None:
        super().__init__(spark, format)
        self._path = path.rstrip("/")

    @override
    def write(self, rows: BatchRows) -> None:
        name = rows.batch.name
        files, folder = self._open(self._path)
        if self._has(files, folder, name):
            return
        aside = f"{self._path}/{ASIDE}/{name}-{secrets.token_hex(4)}"
        # One file whatever the session says, because the batch is moved into place in one step.
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

    @override
    def expire(self, pipeline: str, before: datetime) -> None:
        # No row of a file is newer than the file.
        files, folder = self._open(self._path)
        own = re.compile(rf"{re.escape(pipeline)}-[0-9a-f]+-\d{{8}}\.")
        for status in files.listStatus(folder) if files.exists(folder) else ():
            changed = status.getModificationTime() / 1000
            if own.match(status.getPath().getName()) and changed <= before.timestamp():
                files.delete(status.getPath(), False)

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
    """Returns the suffix of a part with a generated name: ``.snappy.parquet`` or ``.json``."""
    return part[part.index(".") :] if "." in part else ""


def _explain(error: PySparkException) -> tuple[str, str]:
    why = root_cause(error)
    return why.kind, why.text


def _unusable(folder: str, why: str) -> SetupError:
    return SetupError(
        f"The audit table cannot be written to {folder}: {why}.",
        "Make the folder writable for the user of the pipeline, or name another path in the spec.",
    )
