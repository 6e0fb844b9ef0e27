"""The stream of audit rows on a real server: batches, their record, and when rows are deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ebbflow.domain.errors import Fenced, PermanentPublishError
from ebbflow.domain.message import Ack
from ebbflow.nats.publish import publish
from ebbflow.spark.audit.files import BatchRows, merge_files, write_files
from ebbflow.streams import audit
from ebbflow.streams.audit import AuditBatch, AuditStream
from tests.streams.audited import Audited


@pytest.fixture
def audited(link, names, tmp_path: Path) -> Audited:
    return Audited(link, names, str(tmp_path))


def begin(audited: Audited, stream: AuditStream | None = None) -> AuditBatch | None:
    return audited.link.run((stream or audited.stream()).begin_batch())


def stamps(batch: AuditBatch | None) -> list[tuple[str, int, int]]:
    assert batch is not None
    return [(frame.vertex, frame.stamp.number, frame.stamp.claim) for frame in batch.frames]


def test_a_batch_contains_done_chunks_and_is_deleted_when_it_is_written(audited: Audited):
    stream = audited.stream()
    assert begin(audited, stream) is None
    audited.settle("in", "a", "b")
    audited.settle("out", "a")
    audited.settle("in", "c", record=False)
    first = begin(audited, stream)
    assert stamps(first) == [("in", 1, 1), ("out", 1, 1)]
    assert first is not None
    assert first.name == f"{audited.names.pipeline}-{audited.life}-00000000"
    assert audited.waiting() == 3, "nothing is deleted before it is written"
    audited.link.run(stream.finish_batch())
    assert audited.waiting() == 1
    assert begin(audited, stream) is None, "a chunk that is not recorded as done does not count"


def test_the_next_writer_after_a_lost_one_writes_the_same_batch(audited: Audited):
    audited.settle("in", "a")
    before = begin(audited)
    audited.settle("in", "b")
    again = audited.stream()
    assert begin(audited, again) == before
    audited.link.run(again.finish_batch())
    following = begin(audited)
    assert stamps(following) == [("in", 2, 1)]
    assert following is not None
    assert following.name.endswith("-00000001")


def test_the_rows_of_a_lost_task_are_replaced_by_those_of_the_next_task(audited: Audited):
    audited.settle("in", "a", "b", record=False)
    audited.claim("in")
    audited.settle("in", "a")
    audited.settle("in", "b")
    stream = audited.stream()
    assert stamps(begin(audited, stream)) == [("in", 1, 2), ("in", 2, 2)]
    audited.link.run(stream.finish_batch())
    assert audited.waiting() == 0


def test_of_two_writers_only_one_can_continue(audited: Audited):
    audited.settle("in", "a")
    first, second = audited.stream(), audited.stream()
    begin(audited, first)
    begin(audited, second)
    audited.link.run(first.finish_batch())
    audited.settle("in", "b")
    begin(audited, first)
    with pytest.raises(Fenced):
        audited.link.run(second.finish_batch())


def test_a_record_is_stored_even_while_a_copy_of_it_is_in_process(audited: Audited, monkeypatch):
    audited.settle("in", "a")
    refused = PermanentPublishError("s", 2, 0.1, "in process", 10164)
    answers = iter([refused])

    async def publish_later(*args: Any, **options: Any) -> Ack:
        for error in answers:
            raise error
        return await publish(*args, **options)

    monkeypatch.setattr("ebbflow.streams.positions.publish", publish_later)
    stream = audited.stream()
    assert audited.link.run(stream.begin_batch()) is not None
    audited.link.run(stream.finish_batch())
    assert audited.waiting() == 0


def test_many_frames_are_written_in_several_batches(audited: Audited, monkeypatch):
    monkeypatch.setattr(audit, "MOST_FRAMES", 2)
    for number in range(5):
        audited.settle("in", f"m{number}")
    stream, sizes = audited.stream(), []
    while (batch := begin(audited, stream)) is not None:
        sizes.append(len(batch.frames))
        audited.link.run(stream.finish_batch())
    assert sizes == [2, 2, 1]


def test_the_rows_of_a_batch_are_written_to_a_file_per_day_and_merged(audited, tmp_path: Path):
    night = datetime(2026, 11, 17, tzinfo=UTC)
    audited.settle("in", *(f"m{number}" for number in range(100)), at=night - timedelta(seconds=1))
    audited.settle("out", "m1/in", deliveries=[3], at=night)
    batch = begin(audited)
    assert batch is not None
    rows = BatchRows(audited.link.server, audited.names.pipeline, batch)
    written = write_files(rows, str(tmp_path / "x"))
    assert sorted(written) == ["2026-11-16", "2026-11-17"]
    assert pq.read_table(written["2026-11-17"]).column("id").to_pylist() == ["m1/in"]
    assert merge_files([written[day] for day in sorted(written)], str(tmp_path / "y")) == 101
    table = pq.read_table(tmp_path / "y").to_pylist()
    assert [row["id"] for row in table[:100]] == [f"m{number}" for number in range(100)]
    last = table[100]
    assert (last["vertex"], last["deliveries"], last["final"]) == ("out", 3, True)
    assert {row["batch"] for row in table} == {batch.name}
    assert (table[0]["sent"], table[0]["sent_to"]) == (1, "work")


def test_an_interrupted_merge_is_repeated_with_the_same_batches(audited: Audited):
    def write() -> None:
        stream = audited.stream()
        audited.settle("in", "a")
        begin(audited, stream)
        audited.link.run(stream.finish_batch())

    write()
    write()
    assert audited.link.run(audited.stream().begin_merge()) == (0, 2)
    write()
    after = audited.stream()
    assert audited.link.run(after.begin_merge()) == (0, 2), "its name must be the same"
    audited.link.run(after.finish_merge())
    assert audited.link.run(after.begin_merge()) == (2, 3)
    audited.link.run(after.finish_merge())
    assert audited.link.run(after.begin_merge()) is None


def test_a_record_without_merges_means_that_all_batches_are_in_the_table(audited: Audited):
    old = json.dumps({"batches": 7, "written": {}, "begun": None}).encode()
    key = f"$KV.{audited.names.positions}.{audited.names.audit_key}"
    audited.link.run(publish(audited.link.client, key, old))
    stream = audited.stream()
    assert audited.link.run(stream.begin_merge()) is None
    audited.settle("in", "a")
    begin(audited, stream)
    audited.link.run(stream.finish_batch())
    assert audited.link.run(stream.begin_merge()) == (7, 8)
