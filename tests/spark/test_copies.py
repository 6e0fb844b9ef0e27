"""A vertex recognises frames that it has read before, even in its next run, and skips copies."""

from __future__ import annotations

import pytest

from ebbflow import Message, Pipeline, Response
from ebbflow.connectors import Generator
from ebbflow.engine import frames
from ebbflow.engine.publications import FROM
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.nats.publish import publish
from ebbflow.streams import catalogue, provision
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions

pytestmark = pytest.mark.slow


def write_again(state, rows):
    """Put frames into the buffer of ``work`` as if its writer had written its last chunk again."""
    names = Names("test")
    # Its ids are known for a tenth of a second only, as if the last run was long ago.
    window = catalogue.buffer_config(names, "work", 0, 10_000) | {"duplicate_window": 10**8}
    with start_embedded(state) as server, open_link(server) as link:
        link.run(provision.ensure(link.client, window))
        last = link.run(read_positions(link.client, names))["work", 0].done.known["in.0"]
        a, b, c, d = last.begins
        for mark, ids in rows(last.rows).items():
            batch = frames.batch_of({"id": ids, "value": [b"{}"] * len(ids)}, len(ids))
            msg_id = f"{last.lineage}:in:0:{a}.{b}-999:{c}.{d}-0:work:{mark}"
            subject, payload = names.buffer_subject("work", 0), frames.encode(batch)
            ack = link.run(publish(link.client, subject, payload, {FROM: "in.0"}, msg_id=msg_id))
            assert not ack.duplicate


MAPS = {
    "map": lambda pipeline: pipeline.map("work", lambda datum: Message(datum.value)),
    "sql": lambda pipeline: pipeline.map("work", sql="SELECT id, value FROM messages"),
}


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("kind", ["map", pytest.param("sql", marks=pytest.mark.long)])
def test_frames_that_a_writer_repeats_are_skipped_in_the_next_run(run, journal, tmp_path, kind):
    def store(data):
        journal.write(*(datum.id for datum in data))
        return [Response.ok(datum.id) for datum in data]

    source = Pipeline("test", inline=False).source("in", Generator(messages=40))
    pipeline = MAPS[kind](source).sink("out", store)
    run(pipeline)
    assert len(journal.read()) == 40

    write_again(tmp_path / "state", lambda known: {known[0]: ["copy-1"], known[-1]: ["copy-2"]})
    again = run(pipeline)
    assert again.ended == "drained", "nothing is left in the buffer"
    assert again.vertices["work"].read == 0

    write_again(
        tmp_path / "state",
        lambda known: {known[0]: ["copy-3"], "f" * 32: ["new-1", "new-2"], known[-1]: ["copy-4"]},
    )
    again = run(pipeline)
    assert again.ended == "drained"
    assert again.vertices["work"].read == again.vertices["out"].read == 2
    assert sorted(journal.read())[-2:] == ["new-1/work", "new-2/work"]
    assert len(journal.read()) == 42
