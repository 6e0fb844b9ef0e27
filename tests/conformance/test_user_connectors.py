"""Sources and sinks that users write, put through the same rules as Ebbflow's own.

How to do that with a connector of your own:

    class MyQueueUnderTest(SourceUnderTest):
        def source(self):                  # what Pipeline(...).source("in", ...) takes
            return MyQueue                 # or a kind with its fields: {"http": {"port": 8443}}

        def put(self, samples):            # called by several threads
            my_queue.send([sample.value for sample in samples])

    @pytest.fixture(scope="module")
    def trial(tmp_path_factory):
        with SourceTrial(MyQueueUnderTest(), tmp_path_factory.mktemp("queue")) as trial:
            yield trial

    @pytest.mark.parametrize("rule", SOURCE_RULES)
    def test_my_queue(rule, trial):
        rule(trial)
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import pytest

from ebbflow import Response
from ebbflow.testing import (
    SINK_RULES,
    SOURCE_RULES,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.conformance.waiving import blocked_elsewhere
from tests.connectors.user_code.queue import Queue, QueueFile, RedeliveringQueue

pytestmark = pytest.mark.slow


class QueueUnderTest(SourceUnderTest):
    """The queue in a SQLite file; ``base`` is the class that reads it."""

    def __init__(self, file: QueueFile, base: type[Queue]) -> None:
        self._file = file
        self._base = base
        if base is Queue:
            self.waived = blocked_elsewhere(RedeliveringQueue.__name__)

    def source(self):
        return type("MyQueue", (self._base,), {"path": str(self._file.path), "ends": False})

    def put(self, samples: list[Sample]) -> None:
        self._file.fill(sample.value for sample in samples)

    def waiting(self) -> int:
        ((count,),) = self._file.ask("select count(*) from messages where state = 'ready'")
        return count

    def unsettled(self) -> int:
        ((count,),) = self._file.ask("select count(*) from messages where state != 'done'")
        return count


QUEUES = [pytest.param(Queue, marks=pytest.mark.long), RedeliveringQueue]


@pytest.fixture(scope="module", params=QUEUES, ids=lambda base: base.__name__)
def queue_trial(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("queue")
    under_test = QueueUnderTest(QueueFile(folder / "queue.db"), request.param)
    with SourceTrial(under_test, folder / "state", PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_a_users_queue_keeps_every_rule(rule, queue_trial):
    rule(queue_trial)


class Table:
    """A user's sink: a table in a SQLite file. A message that the table refuses has failed."""

    def __init__(self, path) -> None:
        self.path = path

    def open(self) -> None:
        self.database = sqlite3.connect(self.path, timeout=120)

    def __call__(self, data):
        with self.database:
            for datum in data:
                row = (datum.id, datum.value, ",".join(datum.keys))
                try:
                    self.database.execute("insert or replace into messages values (?, ?, ?)", row)
                    yield Response.ok(datum.id)
                except sqlite3.IntegrityError as error:
                    yield Response.failure(datum.id, str(error))

    def close(self) -> None:
        self.database.close()


class TableUnderTest(SinkUnderTest):
    """The table; its triggers refuse messages, and without its name nothing can be written."""

    keeps_keys = True
    can_refuse = True
    can_go_down = True

    def __init__(self, path) -> None:
        self._path = path
        self._do("pragma journal_mode = wal")
        self._do("create table messages (id primary key, value, keys)")
        self._do("create table refused (value)")
        self._do(
            "create trigger refusing before insert on messages "
            "when new.value in (select value from refused) "
            "begin select raise(abort, 'refused'); end"
        )

    def _do(self, statement, *rows):
        with closing(sqlite3.connect(self._path, timeout=120)) as database, database:
            if rows:
                database.executemany(statement, rows)
            return database.execute(statement).fetchall() if not rows else []

    def sink(self):
        return partial(Table, str(self._path))

    def landed(self):
        table = "messages" if self._is_up() else "gone"
        rows = self._do(f"select value, keys from {table}")
        return [Sample(value, tuple(keys.split(",")) if keys else ()) for value, keys in rows]

    def _is_up(self):
        return bool(self._do("select 1 from sqlite_schema where name = 'messages'"))

    def refuse(self, values):
        self._do("delete from refused")
        if values:
            self._do("insert into refused values (?)", *((value,) for value in values))

    def go_down(self):
        self._do("alter table messages rename to gone")

    def come_up(self):
        if not self._is_up():
            self._do("alter table gone rename to messages")


@pytest.fixture(scope="module")
def table_trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    with SinkTrial(TableUnderTest(folder / "table.db"), folder / "state", PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_a_users_table_keeps_every_rule(rule, table_trial):
    rule(table_trial)
