"""A full disk stops a pipeline, which reports it, loses nothing and continues with new room."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from random import Random

import pytest

from ebbflow import Message, Pipeline, Response
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.errors import SetupError
from ebbflow.nats.locate import start_embedded
from ebbflow.status.run_report import Watcher
from tests.spark.runs import Failures
from tests.waiting import until

pytestmark = pytest.mark.slow

MESSAGES = 8_000


@pytest.mark.guarantee("back-pressure-loses-nothing")
@pytest.mark.parametrize("whose", ["embedded", "own"])
def test_a_pipeline_on_a_full_disk_waits_and_continues_when_there_is_room(
    run, small_disk, journal, tmp_path, whose
):
    gate, stages = tmp_path / "gate", []
    sign = " is full, with " if whose == "embedded" else "confirmed nothing that work wrote"

    class MakingRoom(Watcher):
        def stage(self, text):
            stages.append(text)
            if sign in text:
                small_disk.enlarge("200m")
                gate.touch()

    def incompressible(datum):
        return Message(Random(datum.id).randbytes(4_000))

    def store(data):
        until(gate.exists, 300)
        journal.write(*(datum.id for datum in data))
        return [Response.ok(datum.id) for datum in data]

    source = Pipeline("test", inline=False)
    pipeline = source.source("in", Generator(messages=MESSAGES, msg_size=8))
    pipeline = pipeline.map("work", incompressible).sink("out", store)
    with ExitStack() as stack:
        place = {"state": small_disk.folder}
        if whose == "own":
            # The server recovers by itself; the run is not responsible for it here.
            server = stack.enter_context(start_embedded(small_disk.folder))
            place = {"nats": server.urls[0], "login": server.login}
        summary = run(pipeline, watcher=MakingRoom(), **place)

    assert any(sign in text for text in stages)
    assert Counter(journal.read()) == dict.fromkeys((f"in-{n}/work" for n in range(MESSAGES)), 1)
    assert all(c.read == c.done == MESSAGES for c in summary.vertices.values())


class Deletes(Failures):
    """Deletes the state folder as soon as messages have been read."""

    def __init__(self, state):
        self._state = state

    def look(self, status):
        if any(view.counts.read for view in status.vertices):
            shutil.rmtree(self._state, ignore_errors=True)


def test_a_run_whose_state_folder_is_deleted_ends_and_reports_what_is_lost(run, tmp_path):
    pipeline = Pipeline("test").source("in", Generator(rpu=100)).sink("out", Blackhole())
    state = tmp_path / "state"
    with pytest.raises(SetupError, match=r"was deleted while the pipeline ran\. The messages that"):
        run(pipeline, drain=False, watcher=Deletes(state), timeout="240s")
