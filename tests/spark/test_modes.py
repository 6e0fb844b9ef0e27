"""The modes of user code, what it receives, stored answers, and a paused pipeline."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ebbflow import Backoff, Limits, Message, MonoVertex, NackOptions, Pipeline, Response
from ebbflow.builders import NatsStore
from ebbflow.connectors import Blackhole, Generator, Serve
from ebbflow.operations import answers
from tests.spark.runs import StopWhen

pytestmark = pytest.mark.slow


def value(datum):
    return json.loads(datum.value)["value"]


def generated(count, **options):
    return Pipeline("test").source("in", Generator(**{"messages": count} | options))


def test_a_batch_map_answers_by_id_and_nacks_single_messages(run, journal, store):
    def squares(data):
        assert len(data) <= 50
        results = {}
        for datum in data:
            if value(datum) % 10 == 0 and datum.deliveries == 1:
                results[datum.id] = Message.to_nack(NackOptions(delay=20))
            elif value(datum) % 10 == 1:
                results[datum.id] = None
            else:
                results[datum.id] = [Message(str(value(datum)).encode())]
        return results

    pipeline = generated(300).map("m", squares, mode="batch", limits=Limits(read_batch_size=50))
    summary = run(pipeline.sink("out", store))

    assert sorted(map(int, journal.read())) == [n for n in range(300) if n % 10 != 1]
    assert (summary.vertices["m"].redelivered, summary.vertices["m"].dropped) == (30, 30)


def test_a_batch_map_that_omits_an_id_fails_only_that_message(run, journal, store, server_letters):
    def forgetful(data):
        return {d.id: Message(str(value(d)).encode()) for d in data if value(d) != 7}

    quick = Backoff("10ms", steps=1)
    run(generated(50).map("m", forgetful, mode="batch", on_error=quick).sink("out", store))

    assert sorted(map(int, journal.read())) == [n for n in range(50) if n != 7]
    (letter,) = server_letters("test")
    assert "returned no result for 1" in letter.error


def test_a_stream_map_forwards_outputs_before_it_has_returned(run, journal):
    def slowly(datum):
        for part in range(4):
            yield Message(f"{part} {time.time()}".encode())
            time.sleep(0.4)

    def arrived(data):
        journal.write(*(f"{datum.value.decode()} {time.time()}" for datum in data))
        return [Response.ok(datum.id) for datum in data]

    summary = run(generated(2).map("m", slowly, mode="stream").sink("out", arrived))

    waits = [float(e.split()[2]) - float(e.split()[1]) for e in journal.read()]
    assert Counter(e.split()[0] for e in journal.read()) == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert sorted(waits)[3] < 0.6  # half of them arrived long before their input was done
    assert summary.vertices["m"].written == 8


def test_a_columnar_map_nacks_rows_through_a_column(run, journal, store):
    def columnar(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = [json.loads(v)["value"] for v in batch.column("value").to_pylist()]
        first = pc.equal(batch.column("deliveries"), 1)
        fives = pa.array([n % 5 == 0 for n in numbers])
        return pa.RecordBatch.from_pydict(
            {
                "value": pa.array([str(n).encode() for n in numbers], pa.binary()),
                "tags": [["odd"] if n % 2 else ["even"] for n in numbers],
                "nack": pc.and_(first, fives),
                "nack_delay": [30] * len(numbers),
                "nack_reason": ["a five"] * len(numbers),
            }
        )

    pipeline = generated(2_000).map("m", columnar, mode="columnar")
    summary = run(pipeline.sink("out", store, tags=["odd"]).sink("rest", Blackhole()))

    assert sorted(map(int, journal.read())) == list(range(1, 2_000, 2))
    assert summary.vertices["m"].redelivered == 400


def test_a_pandas_map_may_omit_and_add_rows(run, journal, store):
    def frame(data):
        data["n"] = [json.loads(v)["value"] for v in data["value"]]
        kept = data[data["n"] < 5][["id", "n"]]
        twice = kept.loc[kept.index.repeat(2)].copy()
        twice["value"] = [str(n).encode() for n in twice["n"]]
        return twice[["id", "value"]]

    summary = run(generated(20).map("m", frame, mode="pandas").sink("out", store))

    assert Counter(journal.read()) == {str(n): 2 for n in range(5)}
    assert (summary.vertices["m"].done, summary.vertices["m"].dropped) == (5, 15)


def test_async_calls_run_concurrently_up_to_the_limit(run, journal):
    running = {"now": 0, "most": 0}

    async def waits(datum):
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0.05)
        journal.write(running["most"])
        running["now"] -= 1
        return Message(datum.value)

    run(generated(200).map("m", waits, limits=Limits(concurrency=20)).sink("out", Blackhole()))

    assert max(journal.read()) == 20


def test_user_code_finds_its_vertex_in_environment_variables(run, journal):
    def record_environment(data):
        import os

        names = ("NAMESPACE", "POD", "REPLICA", "PIPELINE_NAME", "VERTEX_NAME")
        journal.write([os.environ[f"NUMAFLOW_{name}"] for name in names])
        return [Response.ok(datum.id) for datum in data]

    run(generated(1).sink("out", record_environment))

    assert journal.read() == [["default", "test-out-0", "0", "test", "out"]]


@pytest.mark.guarantee("outcomes-hold")
def test_answers_are_stored_and_found_by_request(run, tmp_path):
    def serve(data):
        return [Response.serve(d.id, b"answer to " + d.value) for d in data]

    def split(datum):
        return [Message(b"%d.%d" % (value(datum), n)) for n in range(12)]

    pipeline = Pipeline("test", serving_store=NatsStore(bucket="elsewhere", ttl="1h"))
    pipeline = pipeline.source("in", Generator(messages=10))
    summary = run(pipeline.map("m", split).sink("out", serve).sink("as-is", Serve()))

    assert {summary.vertices[sink].served for sink in ("out", "as-is")} == {120}
    with answers("test", state=tmp_path / "state") as stored:
        in_order = [
            (sink, text % (3, n))
            for n in range(12)
            for sink, text in (("as-is", b"%d.%d"), ("out", b"answer to %d.%d"))
        ]
        assert [(a.vertex, a.payload) for a in stored.get("in-3")] == in_order
        assert stored.get("in-99") == ()
        assert Counter(a.request for a in stored.list()) == {f"in-{n}": 24 for n in range(10)}


def test_a_monovertex_stores_every_answer_to_a_request(run, tmp_path):
    mono = MonoVertex("test", serving_store="nats").source(Generator(messages=5))
    mono = mono.map(lambda d: [Message(b"%d" % n) for n in range(12)]).sink(Serve())
    counts = run(mono)

    assert counts.vertices["test"].served == 5
    with answers("test", state=tmp_path / "state") as stored:
        assert [a.payload for a in stored.get("test-3")] == [b"%d" % n for n in range(12)]


@pytest.mark.guarantee("outcomes-hold")
def test_a_store_written_by_the_user_receives_the_answers(run, journal):
    class Answers:
        def put(self, id, payloads):
            if not hasattr(self, "failed"):
                self.failed = True
                raise ConnectionError("not yet")
            journal.write([id, [payload.decode() for payload in payloads]])

        def get(self, id):
            return []

    mono = MonoVertex("test", serving_store=Answers, on_error=Backoff("10ms", steps=3))
    mono = mono.source(Generator(messages=5))
    counts = run(mono.sink(lambda data: [Response.serve(d.id, b"yes") for d in data]))

    assert sorted(journal.read()) == [[f"test-{n}", ["yes"]] for n in range(5)]
    assert (counts.vertices["test"].served, counts.vertices["test"].redelivered) == (5, 1)


def test_a_paused_pipeline_reads_nothing_new_and_finishes_its_messages(run, journal, store):
    first = generated(9_000, rpu=300).map("m", lambda d: Message(str(value(d)).encode()))
    first = first.sink("out", store)
    run(first, drain=False, watcher=StopWhen(lambda v: v["out"].counts.done))
    before = len(journal.read())
    assert 0 < before < 9_000

    paused = first.spec.model_copy(
        update={"spec": first.spec.spec.model_copy(update={"lifecycle": _paused(first.spec)})}
    )

    class Built:
        spec = paused

    summary = run(Built)

    assert summary.ended == "drained"
    assert summary.vertices["in"].read == 0


def _paused(spec):
    return type(spec.spec.lifecycle)(desired_phase="Paused")
