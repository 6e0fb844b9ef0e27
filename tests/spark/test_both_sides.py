"""The same functions in Spark's workers and over gRPC: one run each, with equal outcomes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Backoff, Function, Pipeline
from ebbflow.builders import NatsStore
from ebbflow.connectors import Generator
from ebbflow.domain.outcome import Counts
from ebbflow.engine.dead_letter import Letter
from ebbflow.status.run_report import Summary
from tests.spark import mixed_outcomes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COUNT = 200
QUICK = Backoff("10ms", steps=2)


def served(name: str) -> Function:
    """The function, served as Numaflow would run it."""
    command = [sys.executable, "-m", "ebbflow", "serve-udf", f"tests.spark.mixed_outcomes:{name}"]
    return Function(command, working_dir=ROOT)


def in_process(name: str) -> Any:
    return getattr(mixed_outcomes, name)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("side", [in_process, pytest.param(served, marks=pytest.mark.long)])
def test_functions_have_the_same_outcomes_in_process_and_over_grpc(
    side: Callable[[str], Any],
    run: Callable[..., Summary],
    server_letters: Callable[[str], list[Letter]],
) -> None:
    errors = Backoff("10ms", steps=1)
    store = NatsStore(bucket="answers")
    pipeline = (
        Pipeline("test", serving_store=store)
        .source("in", Generator(messages=COUNT))
        .map("m", side("step"), on_error=errors, retry=QUICK, on_failure="drop")
        .sink(
            "out",
            side("Store"),
            on_error=errors,
            retry=QUICK,
            on_failure="drop",
            fallback=side("take"),
            on_success=side("take"),
        )
    )
    vertices = run(pipeline).vertices
    assert vertices["m"] == Counts(
        # 2, 3 and 4 were delivered twice; 3, 4 and 6 are dead letters; 7 has two outputs.
        read=COUNT + 3,
        written=COUNT - 4 + 1,
        done=COUNT - 4,
        redelivered=3,
        dead_lettered=3,
        dropped=1,
    )
    written = COUNT - 4 + 1
    assert vertices["out"] == Counts(
        # 15 was delivered twice; 12 and 17, out of deliveries, fell back; 16 is a dead letter.
        read=written + 1,
        written=written - 1 + 1,
        done=written - 3,
        redelivered=1,
        dead_lettered=1,
        fallback=2,
        served=1,
        on_success=1,
    )
    letters = {letter.error: letter for letter in server_letters("test")}
    assert {error: letter.reason for error, letter in letters.items()} == {
        "redelivered once, max_deliveries is 1": "never",
        "ValueError: boom": "ValueError",
        "broken (after 2 retries)": "retries exhausted",
        "never (after 2 retries)": "retries exhausted",
    }
    assert "in step" in (letters["ValueError: boom"].traceback or "")
