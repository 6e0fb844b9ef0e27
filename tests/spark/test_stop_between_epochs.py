"""A stop between two epochs closes what the last one left open for the next."""

from __future__ import annotations

import pytest

from ebbflow import Message, Pipeline
from ebbflow.testing import MemorySink, MemorySource
from ebbflow.testing.background_run import BackgroundRun, until
from ebbflow.testing.conformance.trial import processes_of


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_no_source_process_outlives_a_run_whenever_the_run_is_stopped(spark, tmp_path):
    with MemorySource() as source, MemorySink() as sink:
        pipeline = Pipeline("between").source("in", source.code).sink("out", sink.code)
        for number in range(2):
            # Epochs so short that most stops happen while none is running.
            live = BackgroundRun(pipeline, tmp_path, epoch="0.01s")
            source.put(b"%d" % number)
            assert until(lambda: len(sink.values) > number, 120)  # noqa: B023 - called at once
            live.stop()
            assert until(lambda: not processes_of("between"), 120)


@pytest.mark.long
@pytest.mark.guarantee("a-stop-loses-no-work")
def test_every_run_uses_its_own_code_whenever_the_last_one_was_stopped(spark, tmp_path):
    with MemorySource() as source, MemorySink() as sink:
        for number in range(3):
            text = b"run %d" % number
            # All names are the same in all runs; only the function differs.
            pipeline = (
                Pipeline("changing")
                .source("in", source.code)
                .map("say", lambda datum, text=text: Message(text))
                .sink("out", sink.code)
            )
            live = BackgroundRun(pipeline, tmp_path, epoch="0.01s")
            source.put(b"")
            assert until(lambda: len(sink.values) > number, 120)  # noqa: B023 - called at once
            live.stop()
    assert sink.values == [b"run 0", b"run 1", b"run 2"]
