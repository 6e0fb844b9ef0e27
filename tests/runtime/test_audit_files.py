"""Files of an audit table: each row is there once, whenever writers crash and readers read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.spark.audit import files as module
from ebbflow.spark.audit.files import BatchSpan, TableFiles
from tests.thorough import examples

LIFE = "orders-0a1b"
DAYS = ("2026-11-16", "2026-11-17")


class Crash(BaseException):
    """The writer is gone."""


class Steps:
    """Calls ``look`` before everything that changes the folder, and crashes at one of them."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self.left: int | None = None

    def before(self, change: Callable[..., object]) -> Callable[..., object]:
        def changed(*args: object, **options: object) -> object:
            self._look()
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Crash
            return change(*args, **options)

        return changed


class Writer:
    """Writes batches of a table and merges them, continuing from its record after a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches = self.merged = 0
        self.merging: int | None = None
        self.rows: list[str] = []

    def write(self, days: Sequence[str]) -> None:
        files, batch = TableFiles(self.folder), f"{LIFE}-{self.batches:08d}"
        stem, written = files.begin(batch), {}
        for day in days:
            written[day] = f"{stem}~{day}.part"
            Path(written[day]).write_text(f"{batch} {day}\n")
        files.keep(batch, written)
        self.batches += 1
        self.rows += [f"{batch} {day}" for day in days]

    def merge(self) -> None:
        self.merging = self.batches if self.merging is None else self.merging
        TableFiles(self.folder).publish(BatchSpan(LIFE, self.merged, self.merging), concat)
        self.merged, self.merging = self.merging, None


def concat(paths: Sequence[str], target: str) -> None:
    Path(target).write_text("".join(Path(path).read_text() for path in paths))


def rows_in(paths: Sequence[Path]) -> list[str]:
    return [line for path in paths for line in path.read_text().splitlines()]


class Reader:
    """Lists the files at one moment and opens them at a later one, as slow readers do."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._files = TableFiles(writer.folder)
        self._listed: tuple[list[Path], list[str]] | None = None

    def look(self) -> None:
        if self._listed is not None:
            self._open(*self._listed)
        self._listed = (self._files.list_rows(LIFE), list(self._writer.rows))
        self._open(*self._listed)
        table = rows_in(self._files.list_table())
        assert not [row for row, count in Counter(table).items() if count > 1]
        assert set(table) <= set(self._writer.rows)

    def _open(self, paths: list[Path], expected: list[str]) -> None:
        try:
            found = rows_in(paths)
        except FileNotFoundError:  # it lists them again
            return
        # Some days of a batch that is being written may be waiting already.
        assert not [row for row, count in Counter(found).items() if count > 1]
        assert set(expected) <= set(found)


@pytest.mark.guarantee("every-delivery-has-one-audit-row")
@pytest.mark.parametrize("flat", [False, True], ids=["days", "flat"])
@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "write both", "merge"]), st.none() | st.integers(0, 6)),
        max_size=12,
    )
)
def test_each_row_is_there_once_at_every_moment_whenever_a_writer_crashes(flat, acts):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if flat:
            (Path(folder) / "orders-0a1b-00009999.parquet").touch()
        writer = Writer(Path(folder))
        steps = Steps(Reader(writer).look)
        patch.setattr(module.os, "replace", steps.before(os.replace))
        patch.setattr(module.os, "link", steps.before(os.link))
        patch.setattr(module.Path, "unlink", steps.before(Path.unlink))
        for act, crash in acts:
            steps.left = crash
            work = partial(writer.write, DAYS[: act.count("write") + act.count("both")])
            if act == "merge":
                work = writer.merge
            with suppress(Crash):
                work()
            steps.left = None
            work()  # by the next writer; a batch that was begun is written again
        writer.write(DAYS)
        writer.merge()
        files = TableFiles(Path(folder))
        assert files.list_waiting() == []
        assert sorted(rows_in(files.list_table())) == sorted(writer.rows)
        folders = {path.parent.name for path in files.list_table()}
        assert all(name.startswith("day=") for name in folders) is not flat


def test_a_writer_that_wakes_up_late_does_not_change_the_table(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.write(DAYS[:1])
    writer.write(DAYS[:1])

    def wake_up_late(paths: Sequence[str], target: str) -> None:
        writer.merge()  # another one, while this one was frozen
        Path(target).write_text("only some rows\n")

    TableFiles(tmp_path).publish(BatchSpan(LIFE, 0, 2), wake_up_late)
    files = TableFiles(tmp_path)
    assert rows_in(files.list_table()) == writer.rows
    # A batch that it still has is known to be in the table, and is removed by the next merge.
    (files.aside / f"{LIFE}-00000001~{DAYS[0]}.waiting").write_text("again\n")
    assert rows_in(files.list_rows()) == writer.rows


def test_waiting_batches_of_an_earlier_life_are_found(tmp_path: Path):
    Writer(tmp_path).write(DAYS)
    files = TableFiles(tmp_path)
    assert files.list_leftovers(BatchSpan("orders-ffff", 0, 1)) == [BatchSpan(LIFE, 0, 1)]
    assert files.list_leftovers(BatchSpan("orders-eu-ffff", 0, 1)) == []
    assert files.list_leftovers(BatchSpan(LIFE, 0, 1)) == []


def test_incomplete_files_of_earlier_lives_of_the_pipeline_are_deleted(tmp_path: Path):
    files = TableFiles(tmp_path)
    lives = (LIFE, "orders-ffff", "orders-eu-ffff")
    left = [files.begin(f"{life}-00000003").with_suffix(".part") for life in lives]
    for path in left:
        path.touch()
    files.clean(BatchSpan("orders-ffff", 0, 1))
    assert [path.exists() for path in left] == [False, True, True]


def test_files_expire_with_their_last_row_and_only_those_of_the_pipeline(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.write(DAYS)
    writer.merge()
    others = tmp_path / "day=2026-11-16" / "orders-eu-0a1b-00000000-00000007.parquet"
    others.touch()
    files, noon = TableFiles(tmp_path), datetime(2026, 11, 17, 12, tzinfo=UTC)
    files.expire("orders", noon - timedelta(days=1))
    assert len(files.list_table()) == 3, "the day is not over"
    files.expire("orders", noon)
    assert [path.parent.name for path in files.list_table()] == ["day=2026-11-16", "day=2026-11-17"]
    files.expire("orders-eu", noon)
    assert [path.name for path in tmp_path.iterdir()] == ["_ebbflow", "day=2026-11-17"]

    flat = tmp_path / "flat"
    flat.mkdir()
    old, new = (flat / f"orders-0a1b-0000000{number}.parquet" for number in (1, 2))
    for path in (old, new, flat / "mine.parquet"):
        path.touch()
    os.utime(old, (0, 0))
    os.utime(flat / "mine.parquet", (0, 0))
    TableFiles(flat).expire("orders", noon)
    assert sorted(path.name for path in flat.iterdir()) == ["mine.parquet", new.name]
