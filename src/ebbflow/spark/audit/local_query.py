"""SQL over audit tables of Parquet files on this machine, run by DuckDB in this process.

The database is in memory and can only access a folder that lasts as long as the query. Files of the
tables are linked there. Waiting files are copied, because each is deleted once its rows are in the
table. So a query sees each batch as a whole or not at all, however long it takes. It can neither
read other files nor load extensions, and it can only select.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ebbflow.spark.audit.dialect import refusal, translate
from ebbflow.spark.audit.files import DAY, WAITING, AuditResult, TableFiles, day_of
from ebbflow.streams.audit_rows import PLAIN_TABLE, TIME

_NEVER: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
_UTC = pa.timestamp("us")
_LETTERS = pa.schema(
    [
        *((name, pa.string()) for name in ("pipeline",)),
        ("number", pa.int64()),
        *((name, pa.string()) for name in ("vertex", "id", "reason", "error")),
        ("deliveries", pa.int32()),
        *((name, _UTC) for name in ("first_seen", "last_seen")),
        ("value", pa.binary()),
    ]
)
_DAYS, _FLAT = "days", "flat"
_MANY = 1_000


@contextmanager
def open_local_query(
    tables: Mapping[str, TableFiles], letters: Sequence[Mapping[str, Any]] | None
) -> Iterator[Callable[[str], AuditResult]]:
    """Opens DuckDB with views of the tables of pipelines; yields a function that runs a query."""
    with (
        TemporaryDirectory(prefix="ebbflow-audit-") as name,
        duckdb.connect(config=_NEVER) as database,
        _explained(),
    ):
        scratch = Path(name).resolve()
        views = [_select(folder, names) for folder, names in _snapshot(tables, scratch)]
        _confine(database, scratch)
        database.execute(f"CREATE VIEW audit AS {' UNION ALL '.join(views)}")
        if letters is not None:
            _add_letters(database, letters)
        yield partial(_run, database)


def _confine(database: duckdb.DuckDBPyConnection, scratch: Path) -> None:
    """Permanently restricts the database to the files of the tables."""
    files = ", ".join(_quote(os.path.realpath(path)) for path in scratch.rglob("*.parquet"))
    database.execute("SET TimeZone = 'UTC'")
    database.execute(f"SET temp_directory = {_quote(str(scratch / 'spilled'))}")
    database.execute(f"SET allowed_directories = [{_quote(str(scratch))}]")
    database.execute(f"SET allowed_paths = [{files}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- the views ----------------------------------------------------------------------------------


def _snapshot(tables: Mapping[str, TableFiles], scratch: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields each table as a folder of files that remain, with the requested pipelines."""
    shared: dict[Path, list[str]] = {}
    for pipeline, table in tables.items():
        shared.setdefault(table.folder, []).append(pipeline)
    for names in shared.values():
        yield tables[names[0]].read(partial(_link_files, scratch)), names


def _link_files(scratch: Path, files: Sequence[Path]) -> Path:
    """Returns a folder with the files; ``FileNotFoundError`` if a waiting file is gone."""
    folder = Path(mkdtemp(dir=scratch))
    for number, path in enumerate(files):
        day = day_of(path)
        place = folder / _FLAT if day is None else folder / _DAYS / f"{DAY}{day}"
        place.mkdir(parents=True, exist_ok=True)
        if path.suffix == WAITING:
            shutil.copyfile(path, place / f"{number}.parquet")
        else:
            (place / f"{number}.parquet").symlink_to(path)
    # A file without rows provides all columns, in case no other file does.
    for place in (folder / _FLAT, folder / _DAYS / f"{DAY}{date.min}"):
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(PLAIN_TABLE.empty_table(), place / "none.parquet", store_schema=False)
    return folder


def _select(folder: Path, pipelines: Sequence[str]) -> str:
    """Returns the SQL for the rows of some pipelines, with the columns for users."""
    names = ", ".join(map(_quote, pipelines))
    days = _read(folder / _DAYS, "*/*.parquet", "hive_types = {'day': DATE}")
    flat = _read(folder / _FLAT, "*.parquet", "hive_partitioning = false")
    columns = ", ".join(map(_column, PLAIN_TABLE))
    root = "split_part(id, '/', 1) AS root"
    day = "CAST(make_timestamp(epoch_us(ended)) AS DATE)"
    where = f"WHERE pipeline IN ({names})"
    return " UNION ALL ".join(
        f"SELECT {columns}, {day}, {root} FROM {files} {where}"  # noqa: S608
        for day, files in (("day", days), (day, flat))
    )


def _read(folder: Path, files: str, how: str) -> str:
    return f"read_parquet({_quote(f'{folder}/{files}')}, union_by_name = true, {how})"


def _column(field: pa.Field) -> str:
    # Times are in UTC, and this saves DuckDB a look-up of the zone for each of them.
    if field.type == TIME:
        return f'make_timestamp(epoch_us("{field.name}")) AS "{field.name}"'
    return f'"{field.name}"'


def _add_letters(database: duckdb.DuckDBPyConnection, letters: Sequence[Mapping[str, Any]]) -> None:
    table = pa.Table.from_pylist([dict(letter) for letter in letters], _LETTERS)
    database.register("registered", table)
    database.execute("CREATE TABLE dead_letters AS SELECT * FROM registered")
    database.unregister("registered")


# --- the rows -----------------------------------------------------------------------------------


def _run(database: duckdb.DuckDBPyConnection, query: str) -> AuditResult:
    sql = translate(query)
    with _explained():
        begun = [database.execute(sql)]
    columns = [name for name, *_ in begun[0].description]
    return AuditResult(columns, partial(_read_rows, database, sql, begun))


def _read_rows(
    database: duckdb.DuckDBPyConnection, sql: str, begun: list[duckdb.DuckDBPyConnection]
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the query that has begun; on later calls runs the query again."""
    with _explained():
        result = begun.pop() if begun else database.execute(sql)
        while rows := result.fetchmany(_MANY):
            for row in rows:
                yield tuple(map(_in_utc, row))


def _in_utc(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise refusal(_first_line(error)) from None


def _first_line(error: duckdb.Error) -> str:
    """Returns DuckDB's message without the place, which refers to the translated query."""
    line = str(error).partition("\n")[0]
    return line.partition("Error: ")[2] or line
