"""Code for pynumaflow in Spark's workers: the example pipeline, and a MonoVertex."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbflow import Backoff, MonoVertex
from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spec.lint import load
from ebbflow.testing.background_run import BackgroundRun, until
from tests.numaflow.pynumaflow import functions

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "pynumaflow" / "pipeline.yaml"


@pytest.fixture(scope="module", autouse=True)
def session(spark: Any) -> Any:
    return spark


def test_the_example_runs_unchanged(tmp_path: Path) -> None:
    lines: list[str] = []
    builder: Any = SimpleNamespace(spec=load(EXAMPLE))
    live = BackgroundRun(builder, tmp_path, on_line=lines.append, search=EXAMPLE.parent)
    # 320 readings are not of the fifth thermometer; 80 of them are hot, with two warnings each.
    arrived = until(lambda: len(lines) >= 400, 120)
    summary = live.stop()
    assert arrived, live.failures

    mild = [json.loads(line) for line in lines if line.startswith("{")]
    warnings = [line for line in lines if line.startswith("warning")]
    kept = [line for line in lines if line.startswith("kept warning")]
    assert (len(mild), len(warnings), len(kept)) == (240, 120, 40)
    assert {"of": "1", "celsius": 21, "at": "2026-08-01T12:01:01", "fahrenheit": 69} in mild
    assert all('"of": "0"' in line for line in kept)
    vertices = summary.vertices
    assert (vertices["in"].dropped, vertices["in"].written) == (80, 320)
    assert (vertices["judge"].done, vertices["warn"].written) == (320, 160)
    assert vertices["out"].fallback == 40


def test_a_source_receives_nacks_and_a_failure_affects_only_its_message(tmp_path: Path) -> None:
    lines: list[str] = []
    # A server cannot be sent to a worker; what is in it can.
    server: Any = functions.SourceAsyncServer(functions.Numbers(20))
    mono = (
        MonoVertex("numbers", on_error=Backoff("10ms", steps=1))
        .source(server, transformer=functions.nack_once)
        .map(functions.Tell)
        .sink(functions.print_all)
    )
    live = BackgroundRun(mono, tmp_path, on_line=lines.append)
    arrived = until(
        lambda: len(lines) >= 19 and live.status["numbers"].counts.dead_lettered > 0, 60
    )
    summary = live.stop()
    assert arrived, live.failures

    assert sorted(lines, key=lambda line: int(line.split()[0])) == [
        f"{n} ['k{n}'] {n} {{'n': '{n}'}} b'{n}'" for n in range(20) if n != 7
    ]
    counts = summary.vertices["numbers"]
    # Each of 0, 3, 6 … 18 once, by the tag; number 7 once, after it failed for the first time.
    assert (counts.redelivered, counts.dead_lettered) == (8, 1)
    with start_embedded(tmp_path) as embedded, open_link(embedded) as link:
        (stored,) = DeadLetters(link, "numbers").list()
    assert stored.letter.error == "ValueError: seven"
    assert "in handler" in (stored.letter.traceback or "")
