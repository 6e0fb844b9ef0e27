"""Spark sources and sinks, here with folders of Parquet files on the other side."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbflow.connectors import Spark
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

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCHEMA = pa.schema([("value", pa.binary()), ("keys", pa.list_(pa.string()))])


class FolderUnderTest(SourceUnderTest):
    """Each file that is put into the folder is read once, in the order of their times."""

    keeps_keys = True
    waived = blocked_when_asked()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        (folder / "given").mkdir()

    def source(self):
        return Spark(
            format="parquet",
            options={"path": str(self._folder / "given")},
            schema="value BINARY, keys ARRAY<STRING>",
            keys="keys",
        )

    def put(self, samples):
        rows = {"value": [s.value for s in samples], "keys": [list(s.keys) for s in samples]}
        name = f"{next(self._numbers)}.parquet"
        pq.write_table(pa.table(rows, schema=SCHEMA), self._folder / name)
        (self._folder / name).rename(self._folder / "given" / name)


@pytest.fixture(scope="module")
def source_trial(tmp_path_factory):
    folder = FolderUnderTest(tmp_path_factory.mktemp("folder"))
    with SourceTrial(folder, tmp_path_factory.mktemp("state"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@pytest.mark.parametrize("rule", RULES_FLOODED_WHEN_ASKED)
def test_the_spark_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class TableUnderTest(SinkUnderTest):
    """The folder cannot be written to while there is a file in its place."""

    keeps_keys = True
    keeps_headers = True
    can_go_down = True
    writes_twice = True

    def __init__(self, folder: Path) -> None:
        self._table = folder / "table"
        self._aside = folder / "aside"

    def sink(self):
        columns = {"value": "value", "keys": "keys", "headers": "headers"}
        options = {"path": str(self._table)}
        return Spark(format="parquet", options=options, columns=columns)

    def landed(self):
        files = [*self._table.glob("part-*"), *self._aside.glob("part-*")]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return [Sample(row["value"], tuple(row["keys"]), dict(row["headers"])) for row in rows]

    def go_down(self):
        if self._table.exists():
            self._table.rename(self._aside)
        self._table.write_text("in the way")

    def come_up(self):
        if self._table.is_file():
            self._table.unlink()
        if self._aside.exists():
            self._aside.rename(self._table)


@pytest.fixture(scope="module")
def sink_trial(tmp_path_factory):
    table = TableUnderTest(tmp_path_factory.mktemp("table"))
    with SinkTrial(table, tmp_path_factory.mktemp("state"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_spark_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
