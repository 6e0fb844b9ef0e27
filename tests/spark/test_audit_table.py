"""The audit table of complete runs, in several formats: one row for each outcome of a message."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest

from ebbflow import Message, Nack, Pipeline
from ebbflow.builders import Audit
from ebbflow.connectors import Generator, Spark
from ebbflow.connectors.plans import Format
from ebbflow.domain.errors import EbbflowError, SetupError, SparkError
from ebbflow.domain.outcome import Counts
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.operations import query_audit
from ebbflow.operations.trace import trace_message
from ebbflow.spark.audit.files import BatchRows, BatchSpan, TableFiles
from ebbflow.spark.audit.local_query import open_local_query
from ebbflow.spark.audit.spark_query import SparkTable, read_table
from ebbflow.spark.audit.tables import AppendedTable, open_audit_table
from ebbflow.spark.audit.writer import AuditTimes, AuditWriter
from ebbflow.streams.audit import AuditBatch
from tests.processes import frozen
from tests.streams.audited import Audited

pytestmark = pytest.mark.slow

COUNT = 200


def work(datum):
    number = json.loads(datum.value)["value"]
    if number % 20 == 1 and datum.deliveries == 1:
        raise Nack(delay="50ms", reason="not yet")
    if number % 50 == 2:
        raise Nack(max_deliveries=0, reason="never")
    return None if number % 10 == 3 else [Message(datum.value)] * 2


@pytest.fixture
def audited(link, names, tmp_path: Path) -> Audited:
    return Audited(link, names, str(tmp_path / "table"))


def counts_of(rows: list[dict[str, Any]], vertex: str) -> Counts:
    ends = Counter(row["outcome"] for row in rows if row["vertex"] == vertex)
    return Counts(
        read=ends.total(),
        done=ends["done"],
        redelivered=ends["redelivered"],
        dead_lettered=ends["dead_lettered"],
        dropped=ends["dropped"],
    )


def ask(query: str, *pipeline: str, state: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Returns the result of a query, after comparing both engines."""
    answers = []
    for on_spark in (False, True):
        with query_audit(query, *pipeline, state=state, spark=on_spark) as result:
            answers.append((result.columns, sorted(result.rows(), key=repr)))
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.guarantee("every-delivery-has-one-audit-row")
def test_every_outcome_at_every_vertex_has_one_row_and_can_be_queried_and_traced(
    run, spark, tmp_path
):
    folder, state = tmp_path / "table", tmp_path / "state"
    audit = Audit(options={"path": str(folder)})
    sink = {"format": "json", "options": {"path": str(tmp_path / "made")}, "schema": "value INT"}
    summary = run(
        Pipeline("audited", audit=audit)
        .source("in", Generator(messages=COUNT, rpu=100, duration="1s"), partitions=2)
        .map("work", work)
        .map("query", sql="SELECT id, value FROM messages")
        .sink("out", Spark(**sink)),
        epoch="1.5s",
    )
    rows = ds.dataset(folder).to_table().to_pylist()
    for vertex, counts in summary.vertices.items():
        assert counts_of(rows, vertex) == replace(counts, written=0), vertex
    ended = Counter((row["vertex"], row["id"]) for row in rows if row["final"])
    assert set(ended.values()) == {1}
    assert {row["sent_to"] for row in rows if row["vertex"] == "work"} == {"query", ""}
    assert len({row["batch"] for row in rows}) > 1, "it was written during the run"
    days = {f"day={row['ended']:%Y-%m-%d}" for row in rows}
    assert {path.name for path in folder.iterdir()} == {"_ebbflow", *days}
    assert list((folder / "_ebbflow").iterdir()) == []
    assert len([*folder.glob("*/*.parquet")]) == len(days), "one file for all vertices and epochs"
    assert spark.read.parquet(str(folder)).count() == len(rows)

    query = "SELECT vertex, count(*), count(DISTINCT root) FROM audit WHERE final GROUP BY 1"
    columns, found = ask(query, "audited", state=state)
    assert columns == ["vertex", "count(1)", "count(DISTINCT root)"]
    assert ("in", COUNT, COUNT) in found
    letters = [row[0] for row in ask("SELECT id FROM dead_letters", state=state)[1]]
    assert len(letters) == summary.vertices["work"].dead_lettered == 4
    assert len(ask("SELECT * FROM audit", state=state)[1]) == len(rows)
    for on_spark in (False, True):
        with (
            pytest.raises(EbbflowError, match="The query does not work"),
            query_audit("SELECT nothing FROM audit", state=state, spark=on_spark) as result,
        ):
            list(result.rows())

    way = trace_message("audited", letters[0], state=state)
    assert [step.outcome for step in way.steps] == ["done", "dead_lettered"]
    assert way.now[0].number in range(1, 5)


@pytest.mark.parametrize("name", ["parquet", "json", "csv", "orc"])
def test_a_batch_that_is_written_twice_is_stored_once(spark, audited: Audited, tmp_path, name):
    audited.settle("in", "a", "b")
    audited.settle("work", "a", at=None)
    batch = audited.link.run(audited.stream().begin_batch())
    assert batch is not None
    folder = tmp_path / "table"
    # With a setting of Spark's own writer, Spark writes Parquet as well.
    options = {"path": str(folder)} | ({"compression": "gzip"} if name == "parquet" else {})
    format = Format(name, tuple(options.items()))
    rows = BatchRows(audited.link.server, audited.names.pipeline, batch)
    table = open_audit_table(spark, format)
    table.check()
    for _ in range(2):
        table.write(rows)
        (file,) = [path for path in folder.iterdir() if path.name[0] not in "._"]
        assert file.name.startswith(f"{batch.name}.")
    table.write(replace(rows, batch=AuditBatch(f"{batch.name[:-1]}9", batch.frames)))
    lives = f"{audited.names.pipeline}-{audited.life}-"
    found = list(SparkTable(format).find(lives, ["a"], "a/"))
    assert sorted((row["vertex"], row["outcome"], row["final"]) for row in found) == [
        *[("in", "done", True)] * 2,
        *[("work", "done", True)] * 2,
    ], "two batches of the same rows"
    if name == "parquet":
        query = "SELECT vertex, outcome, final, ended, day FROM audit WHERE id = 'a' ORDER BY 1"
        with open_local_query({audited.names.pipeline: TableFiles(folder)}, None) as run_query:
            local = list(run_query(query).rows())
        assert [(*row[:3], row[3], row[3].date()) for row in local] == local
        ends = sorted((row["vertex"], row["ended"]) for row in found)
        assert [(row[0], row[3]) for row in local] == ends


def test_duplicates_in_an_append_only_table_are_recognised_by_their_batch(spark, audited, tmp_path):
    audited.settle("in", "a", "b")
    batch = audited.link.run(audited.stream().begin_batch())
    format = Format("parquet", (("path", str(tmp_path / "appended")),))
    rows = BatchRows(audited.link.server, audited.names.pipeline, batch)
    for _ in range(2):
        AppendedTable(spark, format).write(rows)
    table = ds.dataset(tmp_path / "appended").to_table()
    assert table.num_rows == 4
    assert set(table.column("batch").to_pylist()) == {batch.name}


def test_an_impossible_table_folder_is_reported_before_the_run(spark, tmp_path):
    (tmp_path / "file").touch()
    format = Format("parquet", (("path", str(tmp_path / "file" / "table")),))
    with pytest.raises(SetupError, match="The audit table cannot be written to"):
        open_audit_table(spark, format).check()


class Broken:
    """A table that cannot be written at first."""

    merges = True

    def __init__(self) -> None:
        self.is_broken = True
        self.batches: list[str] = []
        self.merged: BatchSpan | None = None
        self.expired = ""

    def check(self) -> None:
        pass

    def write(self, rows: BatchRows) -> None:
        if self.is_broken:
            raise SparkError("Refused", "the disk is full")
        self.batches.append(rows.batch.name)

    def is_merge_due(self, interval: float) -> bool:
        return False

    def merge(self, span: BatchSpan) -> None:
        self.merged = span

    def expire(self, pipeline: str, before: datetime) -> None:
        self.expired = pipeline


def test_rows_that_cannot_be_written_wait_and_the_run_reports_it(spark, audited: Audited):
    audited.settle("in", "a")
    table, reported = Broken(), list[str]()
    plan = SimpleNamespace(
        run=SimpleNamespace(server=audited.link.server), pipeline=audited.names.pipeline
    )
    times = AuditTimes(lambda: 0.01, 60, timedelta(days=1))
    parts = (spark, table, audited.stream(), audited.link, plan, times, reported.append)
    writer = AuditWriter(*parts)
    assert writer.list_concerns() == ()
    assert not writer._attempt()
    (concern,) = writer.list_concerns()
    assert "cannot be written" in concern.what
    assert "the disk is full" in concern.what
    assert reported == [concern.what]
    assert audited.waiting() == 1
    table.is_broken = False
    writer.start()
    writer.finish()
    assert writer.list_concerns() == ()
    life = f"{audited.names.pipeline}-{audited.life}"
    assert table.batches == [f"{life}-00000000"]
    assert table.merged == BatchSpan(life, 0, 1)
    assert table.expired == audited.names.pipeline
    assert audited.waiting() == 0


def test_a_silent_server_does_not_delay_the_end_of_a_run(spark, names, tmp_path):
    with start_embedded(tmp_path) as server, open_link(server) as link:
        audited = Audited(link, names, str(tmp_path / "table"))
        audited.settle("in", "a")
        table, reported = Broken(), list[str]()
        table.is_broken = False
        plan = SimpleNamespace(run=SimpleNamespace(server=server), pipeline=names.pipeline)
        times = AuditTimes(lambda: 60, 60, answer=0.5)
        writer = AuditWriter(spark, table, audited.stream(), link, plan, times, reported.append)
        writer.start()
        finishing = threading.Thread(target=writer.finish)
        with frozen(int((tmp_path / "nats" / "pid").read_text())):
            finishing.start()
            finishing.join(120)
            assert not finishing.is_alive(), "it would wait for a minute or two"
        assert reported[-1].endswith("The next run writes the waiting rows.")
        assert table.batches == []
        assert audited.waiting() == 1


def test_a_table_without_day_folders_is_continued_and_waiting_rows_are_read(
    spark, audited: Audited, tmp_path
):
    folder = tmp_path / "table"
    format = Format("parquet", (("path", str(folder)),))
    table, stream = open_audit_table(spark, format), audited.stream()
    table.check()
    life = f"{audited.names.pipeline}-{audited.life}"

    def write(*ids: str) -> None:
        audited.settle("in", *ids)
        batch = audited.link.run(stream.begin_batch())
        assert batch is not None
        table.write(BatchRows(audited.link.server, audited.names.pipeline, batch))
        audited.link.run(stream.finish_batch())

    def ids_read() -> list[str]:
        on_spark = sorted(row["id"] for row in read_table(spark, format, tmp_path).collect())
        with open_local_query({audited.names.pipeline: TableFiles(folder)}, None) as run_query:
            assert [
                row[0] for row in run_query("SELECT id FROM audit ORDER BY 1").rows()
            ] == on_spark
        return on_spark

    write("a")
    assert ids_read() == ["a"]
    assert list(folder.glob("*.parquet")) == [], "it waits"
    assert not table.is_merge_due(3600)
    assert table.is_merge_due(0)
    table.merge(BatchSpan(life, 0, 1))
    (first,) = folder.glob("day=*/*.parquet")
    first.rename(folder / f"{life}-00000000.parquet")  # the former layout of tables
    first.parent.rmdir()
    write("b")
    assert ids_read() == ["a", "b"]
    found = TableFiles(folder).find(f"{life}-", ["b"], "b/")
    assert [row["id"] for row in found] == ["b"]
    table.merge(BatchSpan(life, 1, 2))
    assert len(TableFiles(folder).list_table()) == len([*folder.glob("*.parquet")]) == 2
    assert spark.read.parquet(str(folder)).count() == 2
    table.expire(audited.names.pipeline, datetime.now(UTC) + timedelta(days=2))
    assert ids_read() == []
