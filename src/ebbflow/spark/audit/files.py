"""The files of an audit table in a folder of this machine: waiting, merged and expired.

A batch is written as waiting files, one for each day, in ``_ebbflow``, which readers of the table
ignore. From time to time, the waiting files of several batches are merged into one file for each
day, which is moved into place in one step::

    audit/_ebbflow/orders-1f0c-00000012~2026-11-17.waiting
    audit/day=2026-11-17/orders-1f0c-00000000-00000011.parquet

**A file of the table never changes**, and is only deleted when it expires. So readers of the folder
see each row once at any moment, since no file is replaced. A waiting file counts until the table
has a file that covers its batch, which the names alone show. After a crash the next run continues
from the names: waiting files are deleted only when the file that covers them is in place, and that
file is never overwritten, not even with the same content.

A table that was begun without days keeps its files in the folder itself, because Spark would not
see both layouts.

Batches and merged files are written on a worker, as Spark tasks. Arrow writes the Parquet files in
the task itself, in a sixth of the time that Spark takes to write the same rows one by one. No code
here loads Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from ebbflow.connectors.plans import Format
from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.login import Addresses
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after
from ebbflow.streams.audit import AuditBatch
from ebbflow.streams.audit_rows import (
    FEW_VALUES,
    PLAIN_TABLE,
    TABLE,
    AuditFrame,
    PlacedRows,
    read_audit,
    to_table,
)
from ebbflow.streams.names import Names

ASIDE = "_ebbflow"
DAY = "day="
WAITING = ".waiting"
_HIDDEN = ("_", ".")
_WAITS = re.compile(r"(?P<life>.+-[0-9a-f]+)-(?P<number>\d{8})~(?P<day>\d{4}-\d\d-\d\d)\.waiting")
_COVERS = re.compile(r"(?P<life>.+-[0-9a-f]+)-(?P<first>\d{8})-(?P<last>\d{8})\.parquet")
Merge = Callable[[Sequence[str], str], object]
"""Writes the rows of some files into another file, which is on disk when this returns."""
_GROUP = 500_000
_TRIES = 5
_Made = TypeVar("_Made")
# Ids have long common prefixes, while the other columns have few distinct values. Ids are not
# sorted, so statistics of them would not let readers skip anything.
_FORMAT = {
    "compression": "snappy",
    "use_dictionary": [name for name in TABLE.names if name != "id"],
    "column_encoding": {"id": "DELTA_BYTE_ARRAY"},
    "write_statistics": ["ended", "vertex"],
    "store_schema": False,
}


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Batches of one life of a pipeline, from ``first`` up to before ``end``."""

    life: str
    first: int
    end: int

    @property
    def name(self) -> str:
        """The name of the files that cover the batches."""
        return f"{self.life}-{self.first:08d}-{self.end - 1:08d}.parquet"


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """The rows of a batch that ended on one day, before they are in the table."""

    path: Path
    life: str
    number: int
    day: str


class AuditFolder(Protocol):
    """A table in which the rows of messages are found."""

    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterable[Mapping[str, Any]]:
        """Returns the rows with these ids or this ``prefix``, from batches whose names begin so."""


class TableFiles(AuditFolder):
    """The files of one table. Several pipelines may share it; each has its own names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def aside(self) -> Path:
        """The folder of files that are not in the table yet."""
        return self.folder / ASIDE

    # --- reading --------------------------------------------------------------------------------

    def list_rows(self, life: str = "") -> list[Path]:
        """Returns files that together have each row once, limited to those of one ``life``.

        A waiting file may be gone when it is opened. Its rows are then in the table: list again.
        """
        # Waiting files first: if one is merged meanwhile, it is covered by a file of the table.
        waiting = [file for file in self.list_waiting() if file.path.name.startswith(life)]
        files = [path for path in self.list_table() if path.name.startswith(life)]
        covers = [(path.parent.name, found) for path in files if (found := _span_of(path))]
        return files + [file.path for file in waiting if not _is_covered(file, covers)]

    @override
    def find(self, batches: str, ids: Sequence[str], prefix: str) -> Iterator[Mapping[str, Any]]:
        import pyarrow.dataset as ds

        field = ds.field("id")
        wanted = field.isin(list(ids)) | pc.starts_with(field, prefix)

        def read(files: Sequence[Path]) -> list[Mapping[str, Any]]:
            # First the ids of all files, then the rows of the few files that match.
            ids_of = _open(map(str, files)).scanner(columns=["__filename"], filter=wanted)
            found = ids_of.to_table().column(0).unique().to_pylist()
            return list(_open(found).to_table(filter=wanted).to_pylist()) if found else []

        def _open(files: Iterable[str]) -> ds.Dataset:
            return ds.dataset([*files], schema=PLAIN_TABLE, format="parquet")

        yield from self.read(read, batches)

    def read(self, work: Callable[[Sequence[Path]], _Made], life: str = "") -> _Made:
        """Returns the result of ``work`` on files that have each row once, as of one moment."""
        if not self.folder.is_dir():
            where = self.folder
            raise SetupError(f"There is no folder {where}.", "Look on the driver's machine.")
        for _ in range(_TRIES):
            # A waiting file may have been merged into the table, under another name.
            with contextlib.suppress(FileNotFoundError):
                return work(self.list_rows(life))
        return work(self.list_rows(life))

    def list_table(self) -> list[Path]:
        """Returns the files of the table, including files from users."""
        found = [*self.folder.glob("*.parquet"), *self.folder.glob(f"{DAY}*/*.parquet")]
        return sorted(path for path in found if not path.name.startswith(_HIDDEN))

    def list_waiting(self) -> list[WaitingFile]:
        """Returns the waiting files in the order of their batches."""
        found = []
        for path in self.aside.glob("*.waiting"):
            if match := _WAITS.fullmatch(path.name):
                found.append(WaitingFile(path, match["life"], int(match["number"]), match["day"]))
        return sorted(found, key=lambda file: (file.life, file.number, file.day))

    # --- writing --------------------------------------------------------------------------------

    def begin(self, batch: str) -> Path:
        """Returns the path for a batch, to which the days are appended."""
        self.aside.mkdir(parents=True, exist_ok=True)
        return self.aside / f"{batch}-{secrets.token_hex(4)}"

    def has(self, batch: str) -> bool:
        """Returns whether a batch is in a table that was written batch by batch."""
        return (self.folder / f"{batch}.parquet").exists()

    def keep(self, batch: str, written: dict[str, str]) -> None:
        """Makes the files of a batch, by their days, waiting files; safe to repeat."""
        for day, path in written.items():
            os.replace(path, self.aside / f"{batch}~{day}.waiting")
        sync_folder(self.aside)

    def publish(self, span: BatchSpan, merge: Merge) -> None:
        """Merges the waiting files of some batches into the table; continues after a crash."""
        waiting: dict[Path, list[WaitingFile]] = {}
        for file in self.list_waiting():
            if file.life == span.life and span.first <= file.number < span.end:
                waiting.setdefault(self._place(file.day), []).append(file)
        for place, files in waiting.items():
            if not (place / span.name).exists():
                self._put(place / span.name, [str(file.path) for file in files], merge)
            for file in files:
                file.path.unlink(missing_ok=True)

    def list_leftovers(self, now: BatchSpan) -> list[BatchSpan]:
        """Returns the batches that earlier lives of the same pipeline have left waiting."""
        pipeline, lives = now.life.rpartition("-")[0], dict[str, list[int]]()
        for file in self.list_waiting():
            if file.life != now.life and file.life.rpartition("-")[0] == pipeline:
                lives.setdefault(file.life, []).append(file.number)
        return [BatchSpan(life, min(all_of), max(all_of) + 1) for life, all_of in lives.items()]

    def _place(self, day: str) -> Path:
        is_flat = any(self.folder.glob("*.parquet")) and not any(self.folder.glob(f"{DAY}*"))
        return self.folder if is_flat else self.folder / f"{DAY}{day}"

    def _put(self, target: Path, files: Sequence[str], merge: Merge) -> None:
        aside = Path(f"{self.begin(target.stem)}.part")
        try:
            merge(files, str(aside))
            target.parent.mkdir(exist_ok=True)
            # A link never replaces a file. An existing file has exactly the same rows.
            with contextlib.suppress(FileExistsError):
                _link(aside, target)
            sync_folder(target.parent)
        finally:
            aside.unlink(missing_ok=True)

    def clean(self, now: BatchSpan) -> None:
        """Deletes incomplete files that crashes in earlier lives of the same pipeline have left."""
        pipeline = re.escape(now.life.rpartition("-")[0])
        for path in self.aside.glob("*.part"):
            life = re.match(rf"{pipeline}-[0-9a-f]+(?=-\d{{8}})", path.name)
            if life and life[0] != now.life:
                path.unlink(missing_ok=True)

    # --- expiry ---------------------------------------------------------------------------------

    def expire(self, pipeline: str, before: datetime) -> None:
        """Deletes the files of a pipeline whose rows all ended before a time."""
        own = re.compile(rf"{re.escape(pipeline)}-[0-9a-f]+-\d{{8}}(-\d{{8}})?\.parquet")
        for path in self.list_table():
            if own.fullmatch(path.name) and _end_of(path) <= before:
                path.unlink(missing_ok=True)
        for folder in self.folder.glob(f"{DAY}*"):
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()


def local_folder(path: str) -> Path | None:
    """Returns the folder of a path if it is on this machine."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path).absolute()


def day_of(path: Path) -> date | None:
    """Returns the day on which all rows of a file ended, if its name or its folder names it."""
    waits = _WAITS.fullmatch(path.name)
    with contextlib.suppress(ValueError):
        return date.fromisoformat(waits["day"] if waits else path.parent.name.removeprefix(DAY))
    return None


def _span_of(path: Path) -> re.Match[str] | None:
    return _COVERS.fullmatch(path.name)


def _is_covered(file: WaitingFile, covers: Sequence[tuple[str, re.Match[str]]]) -> bool:
    return any(
        found["life"] == file.life
        and int(found["first"]) <= file.number <= int(found["last"])
        and (not folder.startswith(DAY) or folder == f"{DAY}{file.day}")
        for folder, found in covers
    )


def _end_of(path: Path) -> datetime:
    """Returns a time before which all rows of a file ended: its day's end or its last change."""
    day = day_of(path)
    if day is None:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return datetime.combine(day, datetime.min.time(), UTC) + timedelta(days=1)


def _link(aside: Path, target: Path) -> None:
    try:
        os.link(aside, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.rename(aside, target)


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- tables of pipelines, as they are looked up ------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditTables:
    """The tables of pipelines by name, and their dead letters if requested."""

    tables: Mapping[str, Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of a query: the names of its columns, and a function that yields its rows.

    Times have their zone. ``EbbflowError`` if the rows cannot be made.
    """

    columns: list[str]
    rows: Callable[[], Iterator[tuple[Any, ...]]]


def folder_of(format: Format) -> TableFiles | None:
    """Returns the table if it consists of Parquet files in a folder of this machine."""
    path = dict(format.options).get("path")
    folder = None if path is None else local_folder(path)
    if folder is None or format.name.lower() != "parquet":
        return None
    return TableFiles(folder)


def read_format(table: Mapping[str, Any]) -> Format:
    """Returns the format of a table, with its secrets read now."""
    # Not at the top, because workers write the files without needing pydantic.
    from ebbflow.connectors.schema.secrets import SecretRef

    secrets = {
        name: SecretRef.model_validate(where).read(f"the option {name} of the audit table")
        for name, where in table.get("secretOptions", {}).items()
    }
    return Format(table["format"], tuple(table["options"].items()), tuple(secrets.items()))


# --- their rows, on a worker -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch, for a worker to read."""

    server: Addresses
    pipeline: str
    batch: AuditBatch

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in the table's schema, many frames at a time."""
        link, group = worker_link(self.server), list[PlacedRows]()
        frames = {frame.seq: frame for frame in self.batch.frames}
        for pieces in _read_pieces(link, Names(self.pipeline), frames):
            group += pieces
            if sum(piece.told.rows for piece in group) >= _GROUP:
                yield to_table(group, self.pipeline, self.batch.name)
                group = []
        if group:
            yield to_table(group, self.pipeline, self.batch.name)


def _read_pieces(
    link: Link, names: Names, frames: dict[int, AuditFrame]
) -> Iterator[Sequence[PlacedRows]]:
    """Yields the rows of the given frames, many frames at a time."""
    batches = read_after(link.client, names.audit, "", min(frames) - 1)
    left = len(frames)
    try:
        while left:
            batch = link.run(_next(batches))
            pieces = [
                frames[seq].rows(read_audit(batch.parcel.payload(row)))
                for row, seq in enumerate(batch.seqs)
                if seq in frames
            ]
            left -= len(pieces)
            yield pieces
    finally:
        link.run(_close(batches))


async def _next(batches: AsyncIterator[Deliveries]) -> Deliveries:
    return await anext(batches)


async def _close(batches: AsyncGenerator[Deliveries]) -> None:
    await batches.aclose()


def write_files(rows: BatchRows, path: str) -> dict[str, str]:
    """Writes a Parquet file for each day on a worker; returns them by their days, on disk."""
    files: dict[str, str] = {}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for batch in rows.read():
            for day, part in _split_by_day(batch):
                if day not in writers:
                    files[day] = f"{path}~{day}.part"
                    writers[day] = stack.enter_context(_open_writer(files[day]))
                writers[day].write_batch(part, row_group_size=part.num_rows)
    for file in files.values():
        _sync_file(file)
    return files


def _split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields each day on which rows ended, in UTC, with its rows."""
    days = pc.floor_temporal(batch.column("ended"), unit="day")
    ends = pc.min_max(days).as_py()
    if ends["min"] == ends["max"]:
        yield f"{ends['min']:%Y-%m-%d}", batch
        return
    for day in pc.unique(days).to_pylist():
        yield f"{day:%Y-%m-%d}", batch.filter(pc.equal(days, pa.scalar(day, days.type)))


def merge_files(paths: Sequence[str], target: str) -> int:
    """Writes the rows of files into one file on disk, in large groups; returns their number.

    ``FileNotFoundError`` if a file is gone.
    """
    count, group = 0, list[pa.RecordBatch]()
    with _open_writer(target) as writer:
        for batch in _read_files(paths):
            group.append(batch)
            if sum(piece.num_rows for piece in group) >= _GROUP:
                count += _write_group(writer, group)
        count += _write_group(writer, group)
    _sync_file(target)
    return count


def _read_files(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path, read_dictionary=[*FEW_VALUES]) as file:
            yield from file.iter_batches(_GROUP)


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> int:
    if not group:
        return 0
    table = pa.Table.from_batches(group).unify_dictionaries().cast(TABLE)
    writer.write_table(table, row_group_size=table.num_rows)
    group.clear()
    return int(table.num_rows)


def _open_writer(path: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, TABLE, **_FORMAT)


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def yield_rows(_: Iterator[pa.RecordBatch], rows: BatchRows) -> Iterator[pa.RecordBatch]:
    """Yields the rows on a worker, for Spark to write."""
    for batch in rows.read():
        yield batch.cast(PLAIN_TABLE)


def plain_ddl() -> str:
    """Returns the columns of the table with their Spark types."""
    kinds = {pa.string(): "string", pa.int32(): "int", pa.bool_(): "boolean"}
    return ", ".join(f"{f.name} {kinds.get(f.type, 'timestamp')}" for f in PLAIN_TABLE)
