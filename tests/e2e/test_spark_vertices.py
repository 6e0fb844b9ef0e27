"""A pipeline of Spark vertices that is killed in the middle of its batches loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.kill_and_restart import kill_tree
from tests.waiting import until

pytestmark = pytest.mark.slow

MESSAGES = 900
SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: killed}
spec:
  limits: {readBatchSize: 150}
  vertices:
    - name: in
      source:
        spark: {format: json, options: {path: given, maxFilesPerTrigger: 3}, schema: n INT}
    - name: double
      udf:
        sql: |
          SELECT id, to_json(struct(data.n AS n, 2 * data.n AS twice)) AS value
          FROM (SELECT id, from_json(CAST(value AS STRING), 'n INT') AS data FROM messages)
    - name: out
      sink:
        spark: {format: json, options: {path: made}, schema: "n INT, twice INT"}
  edges:
    - {from: in, to: double}
    - {from: double, to: out}
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    log = open(folder / "run.log", "ab")  # noqa: SIM115
    return subprocess.Popen(
        [sys.executable, "-m", "ebbflow", "run", "killed.yaml", "--drain"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"COLUMNS": "200"},
    )


def rows(folder: Path) -> list[dict[str, int]]:
    files = (folder / "made").glob("part-*.json")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@pytest.mark.timeout(600)
@pytest.mark.long
def test_spark_vertices_killed_in_the_middle_of_their_batches_lose_nothing(tmp_path):
    (tmp_path / "killed.yaml").write_text(SPEC)
    (tmp_path / "given").mkdir()
    for first in range(0, MESSAGES, 150):
        lines = "".join(f'{{"n": {n}}}\n' for n in range(first, first + 150))
        (tmp_path / "given" / f"{first}.json").write_text(lines)

    process = start(tmp_path)
    log = tmp_path / "run.log"
    until(lambda: len(rows(tmp_path)) >= 300, 240, process, log.read_text, every=0.02)
    kill_tree(process.pid)
    process.wait()
    before = len(rows(tmp_path))
    assert start(tmp_path).wait(240) == 0, log.read_text()

    found = rows(tmp_path)
    assert all(row["twice"] == 2 * row["n"] for row in found)
    times = Counter(row["n"] for row in found)
    print(f"{before} rows before the kill, {times.total() - len(times)} of {MESSAGES} twice")
    assert set(times) == set(range(MESSAGES))
    assert before < MESSAGES
