"""SQL over the audit table: DuckDB and Spark return the same columns and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.spark.audit import local_query
from ebbflow.spark.audit.dialect import SAME, translate
from ebbflow.spark.audit.files import AuditResult, AuditTables, BatchSpan, TableFiles, merge_files
from ebbflow.spark.audit.local_query import open_local_query
from ebbflow.spark.audit.spark_query import open_query
from ebbflow.streams.audit_rows import PLAIN_TABLE

pytestmark = pytest.mark.slow

Run = Callable[[str], AuditResult]
Answer = tuple[list[str], list[tuple[Any, ...]]]

NIGHT = datetime(2026, 11, 17, 23, 59, 58, 123456, tzinfo=UTC)
LETTER = {
    "pipeline": "orders",
    "number": 7,
    "vertex": "work",
    "id": "in-2",
    "reason": "no",
    "error": None,
    "deliveries": 2,
    "first_seen": NIGHT,
    "last_seen": NIGHT + timedelta(seconds=1),
    "value": b"\xff\x00",
}


def rows(pipeline: str, numbers: range, day: int = 17) -> pa.Table:
    made = [
        {
            "pipeline": pipeline,
            "vertex": ("in", "work", "out")[number % 3],
            "partition": number % 2,
            "id": f"in-{number}" + ("/work/x" if number % 3 == 2 else ""),
            "outcome": ("done", "redelivered", "dropped")[number % 3 if number % 4 else 0],
            "final": number % 3 != 1,
            "deliveries": number % 4 + 1,
            "reason": None if number % 2 else f"Not Yet {number} ",
            "error": None if number % 5 else "Bad: x=1; y",
            "due": None if number % 3 else NIGHT + timedelta(seconds=number * 3661),
            "first_seen": NIGHT - timedelta(hours=number, milliseconds=number * 7),
            "ended": NIGHT.replace(day=day) + timedelta(microseconds=number),
            "sent": None if number % 6 == 5 else number - 4,
            "sent_to": "a,b" if number % 3 == 0 else "",
            "batch": f"{pipeline}-0a1b-00000000",
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(made, PLAIN_TABLE)


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, store_schema=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tables of pipelines: two share one with batches that still wait; one has no day folders."""
    shared, flat = (tmp_path_factory.mktemp(name) for name in ("it's=shared", "flat"))
    write(shared / "day=2026-11-16/orders-0a1b-00000000-00000003.parquet", rows("orders", range(9)))
    write(shared / "day=2026-11-17/bills-0a1b-00000000-00000000.parquet", rows("bills", range(2)))
    write(shared / "day=2026-11-17/others.parquet", rows("others", range(5)))
    write(shared / "day=2026-11-17/_orders.parquet", rows("orders", range(3)))
    write(shared / "day=2026-11-17/few.parquet", rows("orders", range(40, 41)).select(["pipeline"]))
    waiting = rows("orders", range(20, 23), day=18)
    write(shared / "_ebbflow/orders-0a1b-00000004~2026-11-18.waiting", waiting)
    write(shared / "_ebbflow/orders-0a1b-00000003~2026-11-16.waiting", waiting)
    write(shared / "_ebbflow/orders-0a1b-00000005-77ab.part", waiting)
    write(flat / "old-0a1b-00000000.parquet", rows("old", range(30, 33), day=15))
    write(flat / "_ebbflow/old-0a1b-00000001~2026-11-14.waiting", rows("old", range(33, 34), 14))
    return {"orders": shared, "bills": shared, "old": flat}


@pytest.fixture(scope="module")
def on_duckdb(folders: dict[str, Path]) -> Iterator[Run]:
    tables = {name: TableFiles(folder) for name, folder in folders.items()}
    with open_local_query(tables, [LETTER]) as run:
        yield run


@pytest.fixture(scope="module")
def on_spark(spark: Any, folders: dict[str, Path]) -> Iterator[Run]:
    tables = {
        name: {"format": "parquet", "options": {"path": str(folder)}}
        for name, folder in folders.items()
    }
    with open_query(AuditTables(tables, [LETTER])) as run:
        yield run


def answer(run: Run, query: str) -> Answer:
    result = run(query)
    return result.columns, list(result.rows())


def listed(text: str) -> str:
    return ", ".join(re.split(r"; |\n", text.strip()))


EXPRESSIONS = """
VERTEX; `id`; audit.root; 1; 'it''s'; "x"; true; null; partition * 2 - deliveries; sent / deliveries
deliveries / 2; sent % 3; sent div 2; -sent; sent <> 1; sent <=> null; not final; final or sent > 1
id like 'in-1%'; id rlike 'in-[0-9]$'; id in ('in-1', 'in-2'); sent between 1 and 3; reason is null
reason is not null; case when final then 'a' else 'b' end; case vertex when 'in' then 1 end
abs(sent); ceil(sent / 2); floor(sent / 3); sign(sent); round(sent / 3, 2); round(sent / 3)
sqrt(deliveries); pow(deliveries, 2); power(sent, 2); greatest(sent, deliveries); least(sent, 2)
concat(id, reason); concat_ws(',', id, reason, error); contains(id, 'work'); startswith(id, 'in-1')
endswith(id, 'x'); length(id); lower(reason); upper(id); trim(reason); ltrim(reason); rtrim(reason)
substr(id, 4); substring(id, 0, 2); substring(id, -2); substring_index(id, '/', 1)
substring_index(id, '/', -1); split(id, '/'); split(id, '/')[0]; replace(id, '/', '.')
regexp_replace(id, '[0-9]+', 'n'); regexp_extract(id, 'in-([0-9]+)', 1); regexp_like(id, '^in')
instr(id, '/'); locate('/', id); left(id, 3); right(id, 2); reverse(id); repeat(vertex, 2)
coalesce(reason, error, '-'); nvl(reason, 'x'); ifnull(error, 'x'); nullif(vertex, 'in')
if(final, 1, 0); to_date(ended); date_trunc('HOUR', ended); date_trunc('day', ended); hour(ended)
minute(ended); second(ended); year(day); month(day); quarter(day); day(ended); dayofmonth(day)
date_format(ended, 'yyyy-MM-dd HH:mm:ss'); date_add(day, 1); date_sub(day, 3)
datediff(ended, first_seen); date_diff(ended, first_seen); (ended - first_seen)
unix_millis(ended); unix_micros(ended); to_timestamp('2026-11-17 01:02:03+02:00')
cast(ended as date); cast(ended as string); cast(due as string); cast(day as timestamp)
cast(sent / 3 as int); cast(-1.7 as int); cast('12' as int); try_cast('x' as int)
cast(regexp_extract(id, '[0-9]+', 0) as int); cast(final as int); cast(sent as decimal(10, 2))
ended > '2026-11-17'; day = '2026-11-17'; current_date() > day; current_timestamp() > ended
extract(hour from ended) as hour_; ended > now() - interval 1 hour as new
ended > timestamp '2026-11-17 12:00:00+02:00' as later; day + interval 1 day as tomorrow
"""
AGGREGATES = """
COUNT(*); count(reason); count(distinct vertex, outcome); sum(sent); sum(sent) / count(*); avg(sent)
mean(sent); min(ended); max(id); min(day); count_if(final); sum(if(final, 1, 0))
any_value(pipeline); first(pipeline); max_by(id, sent); min_by(id, sent); median(sent)
bool_and(final); bool_or(final)
count(*) filter (where final); max(ended) - min(first_seen); cast(avg(sent) as int)
round(avg(sent), 2)
"""
SPREADS = ["stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"]
QUERIES = [
    f"SELECT {listed(EXPRESSIONS)} FROM audit WHERE id IS NOT NULL ORDER BY pipeline, audit.id",
    f"SELECT {listed(AGGREGATES)} FROM audit WHERE pipeline = 'orders'",
    f"SELECT {', '.join(f'round({name}(sent), 6)' for name in SPREADS)} FROM audit",
    "SELECT * FROM audit ORDER BY pipeline, ended, id",
    "SELECT pipeline, day, count(*) AS n FROM audit GROUP BY ALL ORDER BY ALL",
    "SELECT id FROM audit WHERE day = '2026-11-18' ORDER BY id",
    "SELECT id FROM audit WHERE day = DATE '2026-11-15' OR root = 'in-2' ORDER BY id",
    "SELECT vertex, count(*) FROM audit GROUP BY vertex ORDER BY 2 DESC, 1;",
    "SELECT reason FROM audit ORDER BY reason DESC LIMIT 5",
    "WITH ended AS (SELECT * FROM audit WHERE final) SELECT count(*) FROM ended",
    "SELECT id FROM audit a WHERE EXISTS (SELECT 1 FROM dead_letters d WHERE a.root = d.id)",
    "SELECT vertex FROM audit WHERE vertex > '' UNION SELECT outcome FROM audit ORDER BY 1",
    "SELECT id, row_number() OVER (PARTITION BY vertex ORDER BY id, pipeline) AS a, "
    "lag(id) OVER (ORDER BY id, pipeline) AS b, lead(id) OVER (ORDER BY id, pipeline) AS c, "
    "rank() OVER (ORDER BY vertex) AS d, dense_rank() OVER (ORDER BY vertex) AS e, "
    "ntile(2) OVER (ORDER BY id, pipeline) AS f FROM audit ORDER BY id, pipeline",
    "SELECT s, count(*) FROM audit LATERAL VIEW explode(split(sent_to, ',')) t AS s GROUP BY 1 "
    "ORDER BY 1",
    "SELECT * FROM dead_letters",
]


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_both_engines_return_the_same_result(on_duckdb: Run, on_spark: Run, query: str) -> None:
    found, expected = answer(on_duckdb, query), answer(on_spark, query)
    assert found[0] == expected[0]
    for row, wanted in zip(found[1], expected[1], strict=True):
        # Compared as text, because 1 and 1.0 are printed differently.
        assert dict(enumerate(map(repr, row))) == dict(enumerate(map(repr, wanted)))
    assert found[1]


def test_every_function_that_runs_without_spark_is_compared() -> None:
    queried = " ".join(QUERIES).lower()
    assert [name for name in sorted(SAME) if not re.search(rf"\b{name}\s*\(", queried)] == []


def test_each_row_is_read_once_whether_in_the_table_or_in_a_waiting_file(on_duckdb: Run) -> None:
    query = "SELECT pipeline, count(*), count(id), min(day), max(day) FROM audit GROUP BY 1"
    days = [datetime(2026, 11, day).date() for day in range(19)[1:]]
    assert sorted(answer(on_duckdb, query)[1]) == [
        ("bills", 2, 2, days[16], days[16]),
        ("old", 4, 4, days[13], days[14]),
        ("orders", 9 + 1 + 3, 9 + 3, days[15], days[17]),
    ]


def test_the_rows_of_a_result_can_be_read_twice(on_duckdb: Run) -> None:
    result = on_duckdb("SELECT max(ended) FROM audit WHERE pipeline = 'orders'")
    newest = NIGHT.replace(day=18) + timedelta(microseconds=22)
    assert [list(result.rows()) for _ in range(2)] == [[(newest,)]] * 2


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELEC 1", "Invalid expression / Unexpected token (line 1, column 7)"),
        ("SELECT 1; SELECT 2", "it is not one SELECT"),
        ("DESCRIBE audit", "it is not one SELECT"),
        ("COPY (SELECT 1) TO '/tmp/mine.csv'", "it is not one SELECT"),
        ("INSTALL httpfs", "it is not one SELECT"),
        ("SET threads = 1", "it is not one SELECT"),
        ("WITH a AS (DELETE FROM audit) SELECT 1", "it is not one SELECT"),
        ("SELECT nothing FROM audit", 'Referenced column "nothing" not found in FROM clause'),
        ("SELECT * FROM other", "Table with name other does not exist"),
        ("SELECT * FROM parquet.`/etc/passwd`", None),
        ("SELECT * FROM `/etc/passwd`", "Table with name /etc/passwd does not exist"),
        ("SELECT * FROM read_text('/etc/passwd')", "read_text() is not among the functions that"),
        ("SELECT window(ended, '1 hour') FROM audit", "window() is not among the functions that"),
        ("SELECT count( FROM audit", None),
        ("SELECT 1 / (sent - sent) FROM audit WHERE sent = 2", "Division by zero"),
        ("SELECT cast(id AS INT) FROM audit WHERE id = 'in-1'", "Could not convert string 'in-1'"),
        ("SELECT 100.0 * sent / 7 FROM audit", "decimals would have other digits; write 100e0"),
        ("SELECT extract(second FROM ended) FROM audit", "extract() of SECOND would have another"),
        ("SELECT date_format(ended, 'SSS') FROM audit", "date_format() may have yyyy, MM, dd, HH,"),
        ("SELECT split(id, '/')[1] FROM audit", "an element other than the first may be missing"),
        ("SELECT day - DATE '2026-11-01' FROM audit", "a date minus a date is an interval"),
        ("SELECT id FROM audit WHERE ended > '2026-11-17 12:00:00+02:00'", "write TIMESTAMP '2026"),
        (
            "SELECT cast(a AS INT) FROM (SELECT avg(sent) AS a FROM audit)",
            "a number of a may not be whole",
        ),
        ("SELECT substring_index(id, '/', sent) FROM audit", "the count of substring_index() is"),
        ("SELECT s FROM audit LATERAL VIEW OUTER explode(split(id, '/')) t AS s", "LATERAL VIEW"),
    ],
)
def test_a_query_that_duckdb_cannot_run_is_rejected_in_one_sentence(
    on_duckdb: Run, query: str, why: str | None
) -> None:
    with pytest.raises(EbbflowError) as refused:
        answer(on_duckdb, query)
    text = str(refused.value)
    assert text.startswith(f"The query does not work: {why or ''}")
    assert text.endswith("; --spark runs a query on Spark's own engine.")
    assert "\n" not in text


def test_the_database_cannot_read_anything_but_the_table(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The database also rejects what the translation would reject.
    monkeypatch.setattr(local_query, "translate", str)
    (tmp_path / "mine.csv").write_text("a\n1\n")
    with open_local_query({"old": TableFiles(folders["old"])}, None) as run:
        for query in (
            f"SELECT * FROM read_csv('{tmp_path}/mine.csv')",
            f"SELECT * FROM read_parquet('{folders['orders']}/*/*.parquet')",
            f"COPY (SELECT 1) TO '{tmp_path}/new.csv'",
            f"ATTACH '{tmp_path}/new.db'",
            "LOAD httpfs",
            "INSTALL httpfs",
            "SET enable_external_access = true",
            "SELECT * FROM folders",
        ):
            with pytest.raises(EbbflowError, match="The query does not work"):
                answer(run, query)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_file_that_is_merged_during_a_read_is_found_in_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a[1]*"
    write(folder / "_ebbflow/a-0b-00000000~2026-11-17.waiting", rows("a", range(4)))

    def merge_first(source: Path, target: Path) -> None:
        TableFiles(folder).publish(BatchSpan("a-0b", 0, 1), merge_files)
        raise FileNotFoundError(source)

    monkeypatch.setattr(local_query.shutil, "copyfile", merge_first)
    with open_local_query({"a": TableFiles(folder)}, None) as run:
        assert [path.parent.name for path in TableFiles(folder).list_rows()] == ["day=2026-11-17"]
        assert answer(run, "SELECT count(*) FROM audit")[1] == [(4,)]


def test_an_empty_table_has_its_columns_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    with open_local_query({"a": TableFiles(tmp_path)}, []) as run:
        columns, found = answer(run, "SELECT * FROM audit")
        assert columns == [*PLAIN_TABLE.names, "day", "root"]
        assert found == answer(run, "SELECT * FROM dead_letters")[1] == []
    missing = TableFiles(tmp_path / "missing")
    with (
        pytest.raises(SetupError, match="There is no folder"),
        open_local_query({"a": missing}, None),
    ):
        pass


def test_a_query_is_translated_to_duckdbs_dialect() -> None:
    assert translate('SELECT "x" AS `a b`, COUNT(*) FROM audit ORDER BY 2') == (
        'SELECT \'x\' AS "a b", COUNT(*) AS "count(1)" FROM "audit" ORDER BY 2 NULLS FIRST'
    )
