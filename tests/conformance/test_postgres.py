"""The Postgres source and sink keep the rules for all connectors, against a real server."""

from __future__ import annotations

import pytest

from ebbflow.connectors import Postgres
from ebbflow.testing import (
    SINK_RULES,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.conformance.waiving import RULES_FLOODED_WHEN_ASKED, blocked_when_asked

pytestmark = pytest.mark.slow

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ebbflow'"


class QueueUnderTest(SourceUnderTest):
    """A table that programs insert into."""

    waived = blocked_when_asked()

    def __init__(self, postgres) -> None:
        self._postgres = postgres
        columns = "id bigserial PRIMARY KEY, value bytea NOT NULL, due_at timestamptz, tries int"
        self._table = postgres.table(columns, "jobs")

    def source(self):
        url, table = self._postgres.url, self._table
        return Postgres(url=url, table=table, value="value", nacks="tries", lease="3s")

    def put(self, samples):
        values = [sample.value for sample in samples]
        insert = f"INSERT INTO {self._table} (value) SELECT unnest(%s::bytea[])"
        self._postgres.ask(insert, values)

    def unsettled(self):
        return self._postgres.ask(f"SELECT count(*) FROM {self._table}")[0][0]

    def left_behind(self):
        return [f"session {pid}" for (pid,) in self._postgres.ask(SESSIONS)]


@pytest.fixture(scope="module")
def source_trial(postgres, tmp_path_factory):
    with SourceTrial(QueueUnderTest(postgres), tmp_path_factory.mktemp("state"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", RULES_FLOODED_WHEN_ASKED)
def test_the_postgres_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class TableUnderTest(SinkUnderTest):
    """A table of a server that can be stopped, with a trigger that refuses values."""

    keeps_keys = keeps_headers = can_refuse = can_go_down = True

    def __init__(self, postgres) -> None:
        self._postgres = postgres
        self._up = True
        columns = "id text PRIMARY KEY, value bytea, keys text[], headers jsonb"
        table = self._table = postgres.table(columns, "landed")
        postgres.ask(f"CREATE TABLE {table}_refused (value bytea)")
        postgres.ask(
            f"CREATE FUNCTION {table}_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF EXISTS (SELECT FROM {table}_refused r WHERE r.value = NEW.value) THEN "
            "RAISE EXCEPTION 'the table does not want it'; END IF; RETURN NEW; END $$; "
            f"CREATE TRIGGER refusing BEFORE INSERT ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {table}_check()"
        )

    def sink(self):
        facts = {"id": "$id", "value": "$value", "keys": "$keys", "headers": "$headers"}
        return Postgres(url=self._postgres.url, table=self._table, columns=facts)

    def landed(self):
        if not self._up:
            return []
        rows = self._postgres.ask(f"SELECT value, keys, headers FROM {self._table}")
        return [Sample(value, tuple(keys), headers) for value, keys, headers in rows]

    def refuse(self, values):
        self._postgres.ask(f"TRUNCATE {self._table}_refused")
        insert = f"INSERT INTO {self._table}_refused SELECT unnest(%s::bytea[])"
        self._postgres.ask(insert, list(values))

    def go_down(self):
        self._up = False
        self._postgres.stop("immediate")

    def come_up(self):
        if not self._up:
            self._postgres.start()
        self._up = True

    def left_behind(self):
        return [f"session {pid}" for (pid,) in self._postgres.ask(SESSIONS)]


@pytest.fixture(scope="module")
def sink_trial(postgres, tmp_path_factory):
    with SinkTrial(TableUnderTest(postgres), tmp_path_factory.mktemp("state"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_postgres_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
