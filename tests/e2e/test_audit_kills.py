"""A run that is killed while its audit table is written: each outcome still has exactly one row."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from tests.chaos.kill_and_restart import kill_tree
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: audited}
spec:
  audit: {options: {path: table}, interval: 2s}
  vertices:
    - {name: in, source: {generator: {messages: 6000, rpu: 300, duration: 1s}}}
    - {name: work, partitions: 2, udf: {python: "steps:work"}}
    - {name: out, sink: {blackhole: {}}}
  edges: [{from: in, to: work}, {from: work, to: out}]
"""
STEPS = """
from ebbflow import Message, Nack

def work(datum):
    number = int(datum.id.rpartition("-")[2])
    if number % 30 == 7 and datum.deliveries == 1:
        raise Nack(delay="300ms", reason="not yet")
    if number % 500 == 13:
        raise Nack(max_deliveries=0, reason="never")
    return None if number % 10 == 9 else Message(datum.value)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "audited.yaml").write_text(SPEC)
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ebbflow", "run", "audited.yaml", "--drain", "--epoch", "2s"]
    with open(folder / "run.log", "ab") as log:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def wait(process: subprocess.Popen[bytes], seen: Callable[[], object]) -> None:
    until(seen, 240, process, lambda: "before it was killed", every=0.001)


def files(folder: Path, which: str) -> set[Path]:
    return set((folder / "table").glob(which))


def has_new(folder: Path, which: str, before: set[Path]) -> bool:
    return bool(files(folder, which) - before)


@pytest.mark.guarantee("every-delivery-has-one-audit-row")
def test_kills_while_audit_batches_are_written_or_merged_leave_one_row_per_delivery(folder: Path):
    for which in ("_ebbflow/*.part", "_ebbflow/*.waiting", "day=*/*.parquet"):
        before = files(folder, which)
        process = start(folder)
        wait(process, partial(has_new, folder, which, before))
        kill_tree(process.pid)
        process.wait()

    assert start(folder).wait(300) == 0, (folder / "run.log").read_text()[-3000:]
    rows = ds.dataset(folder / "table").to_table().to_pylist()
    with open_link_to_pipeline(folder / ".ebbflow", None) as link:
        positions = link.run(read_positions(link.client, Names("audited")))
    for vertex in ("in", "work", "out"):
        counts = [p.counts for (name, _), p in positions.items() if name == vertex]
        ends = Counter(row["outcome"] for row in rows if row["vertex"] == vertex)
        assert ends.total() == sum(c.read for c in counts)
        assert ends["done"] == sum(c.done for c in counts)
        assert ends["redelivered"] == sum(c.redelivered for c in counts)
        assert ends["dead_lettered"] == sum(c.dead_lettered for c in counts)
    final = Counter((row["vertex"], row["id"]) for row in rows if row["final"])
    assert set(final.values()) == {1}
    assert sum(vertex == "in" for vertex, _ in final) == 6_000
