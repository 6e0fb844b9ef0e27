"""The job on single messages: filling its streams, the floor, and detecting lost messages."""

from __future__ import annotations

import pytest

from benchmarks import bento, peers
from benchmarks.contest import watched
from benchmarks.end_to_end import BULK, contestants
from benchmarks.outside import IN, IN_SUBJECT, OUT, OUT_SUBJECT, NotOnce, outside
from benchmarks.wire import Wire
from benchmarks.work import numbered


@pytest.fixture(scope="module")
def server():
    with outside(seed=1) as server:
        yield server


def test_a_stream_is_filled_and_read_in_bulk(server):
    server.load(9_000, 50)

    read = [delivery.payload for delivery in Wire(server.link.server).read(IN, 9_000)]

    assert read == [*numbered(9_000, 50, seed=1)]
    assert (len(set(read)), {len(text) for text in read}) == (9_000, {50})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda texts: texts[1:], "99 stored for 100 messages: 1 are missing, 0 "),
        (lambda texts: [*texts, texts[0]], "101 stored for 100 messages: 0 are missing, 0 "),
        (lambda texts: [b"?", *texts[1:]], "100 stored for 100 messages: 1 are missing, 1 "),
    ],
    ids=["lost", "doubled", "changed"],
)
def test_lost_doubled_and_changed_messages_are_detected(server, change, expected):
    server.load(100, 50)
    texts = [text.upper() for text in numbered(100, 50, seed=1)]
    Wire(server.link.server).store(OUT_SUBJECT, change(texts))

    with pytest.raises(NotOnce, match=expected):
        server.check(100, 50)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [50, 20_000])
def test_the_bulk_process_does_the_whole_job(server, size):
    server.load(1_500, size)

    with peers.started(server, "bulk", [IN, OUT_SUBJECT, "publish"]) as process:
        watched(lambda: [process], lambda: server.messages(OUT), 1_500)
        watched(lambda: [process], lambda: server.acked("bulk"), 1_500)

    server.check(1_500, size)


def test_a_refused_publish_is_not_counted_as_stored(server):
    server.fresh({"name": IN, "subjects": [IN_SUBJECT], "max_msg_size": 10})

    with pytest.raises(RuntimeError, match="not stored"):
        Wire(server.link.server).store(IN_SUBJECT, [b"x" * 100])


def test_without_bento_the_others_run_and_the_reason_is_reported(monkeypatch):
    monkeypatch.setenv("EBBFLOW_BENCH_BENTO", "/nowhere/bento")
    left_out = []

    names = [contestant.name for contestant in contestants(left_out)]

    assert BULK in names
    assert not any(bento.NAME in name for name in names)
    assert left_out == ["Bento: there is no /nowhere/bento"]
