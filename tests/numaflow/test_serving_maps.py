"""Maps and transformers behind their sockets, called by gRPC's own client."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ebbflow import Datum, Message, NackOptions, Unavailable, nack
from ebbflow.numaflow.proto import map_pb2
from ebbflow.numaflow.proto import sourcetransform_pb2 as transform_pb2
from tests.numaflow.served import (
    Client,
    client_of,
    map_requests,
    serving,
    transform_requests,
    until_broken,
    values,
)

MAP, TRANSFORM = "/map.v1.Map/MapFn", "/sourcetransformer.v1.SourceTransform/SourceTransformFn"
NACK, DROP, FAIL = ("U+005C__NACK__", "U+005C__DROP__", "U+005C__FAIL__")


def upper(datum: Datum) -> Any:
    match datum.value.decode().split():
        case ["drop"]:
            return None
        case ["two"]:
            return [Message(b"1", keys=["k"], tags=["t"]), Message(b"2", metadata={"g": {}})]
        case ["nack"]:
            return Message.to_nack(NackOptions("5s", 3, "later"))
        case ["deep"]:
            nack("later", delay="5s", max_deliveries=3)
        case ["mixed"]:
            return [Message(b"1"), Message.to_nack(NackOptions(reason="no"))]
        case ["fail"]:
            return Message.to_fail("bad")
        case ["raise"]:
            raise ValueError("boom")
        case ["away"]:
            raise Unavailable("the database", retry_after="1500ms")
    return Message(datum.value.upper())


async def upper_async(datum: Datum) -> Any:
    await asyncio.sleep(0)
    return upper(datum)


class Upper:
    opened = 0

    def open(self) -> None:
        Upper.opened += 1

    def __call__(self, datum: Datum) -> Any:
        return upper(datum)


def upper_batch(data: list[Datum]) -> dict[str, Any]:
    return {datum.id: upper(datum) for datum in data}


def upper_stream(datum: Datum) -> Iterator[Message]:
    result = upper(datum)
    yield from result if isinstance(result, list) else [] if result is None else [result]


def upper_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    texts = pc.ascii_upper(batch.column("value").cast(pa.string())).cast(pa.binary())
    return pa.record_batch({"value": texts})


def upper_pandas(frame: Any) -> Any:
    return frame.assign(value=frame["value"].map(bytes.upper))


def answers(client: Client, requests: Iterator[bytes]) -> list[Any]:
    """All responses after the handshake."""
    greeting, *rest = map(map_pb2.MapResponse.FromString, client.stream(MAP, requests))
    assert greeting.handshake.sot
    return rest


def by_id(responses: list[Any]) -> dict[str, list[Any]]:
    """The results of each id, of stream maps as of others; end marks left out."""
    results: dict[str, list[Any]] = {}
    for response in responses:
        if response.id:
            results.setdefault(response.id, []).extend(response.results)
    return results


KINDS = [
    ("map", upper),
    ("map", upper_async),
    ("map", Upper),
    ("batch-map", upper_batch),
    ("stream-map", upper_stream),
]


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_every_kind_of_result_of_a_map_is_transmitted(kind: str, code: Any, tmp_path: Path) -> None:
    texts = ("a", "drop", "two", "nack", "mixed", "fail")
    with serving(code, kind, tmp_path) as served, client_of(served) as client:
        messages = [{**value, "keys": ["own"]} for value in values(*texts)]
        requests = map_requests(*messages, end=kind == "batch-map")
        results = by_id(answers(client, requests))
    assert list(results) == [f"m{number}" for number in range(len(texts))]
    assert [(r.value, list(r.keys)) for r in results["m0"]] == [(b"A", ["own"])]
    assert results["m1"] == []
    assert [(r.value, list(r.keys), list(r.tags)) for r in results["m2"]] == [
        (b"1", ["k"], ["t"]),
        (b"2", ["own"], []),
    ]
    (nacked,), (mixed,) = results["m3"], results["m4"][-1:]
    assert list(nacked.tags) == [NACK]
    options = nacked.nack_options
    assert (options.delay, options.max_deliveries, options.reason) == (5_000, 3, "later")
    assert list(mixed.tags) == [NACK]
    assert not mixed.nack_options.HasField("delay"), "unset is not zero"
    (failed,) = results["m5"]
    assert (list(failed.tags), failed.nack_options.reason) == ([FAIL], "bad")


def test_the_siblings_of_a_nack_are_not_forwarded(tmp_path: Path) -> None:
    with serving(upper, "map", tmp_path) as served, client_of(served) as client:
        responses = answers(client, map_requests(*values("mixed", "deep")))
    tags = [[list(result.tags) for result in response.results] for response in responses]
    assert tags == [[[NACK]], [[NACK]]]
    assert responses[1].results[0].nack_options.max_deliveries == 3


@pytest.mark.parametrize(("mode", "code"), [("columnar", upper_columns), ("pandas", upper_pandas)])
@pytest.mark.parametrize("kind", ["map", "batch-map"])
def test_columnar_maps_are_served(kind: str, mode: str, code: Any, tmp_path: Path) -> None:
    with serving(code, kind, tmp_path, mode) as served, client_of(served) as client:
        requests = map_requests(*values("a", "b", "c"), end=kind == "batch-map")
        responses = answers(client, requests)
    assert [r[0].value for r in by_id(responses).values()] == [b"A", b"B", b"C"]
    ends = [response.status.eot for response in responses]
    assert ends == ([False] * 3 + [True] if kind == "batch-map" else [False] * 3)


def test_the_server_info_describes_how_to_call_the_function(tmp_path: Path) -> None:
    modes = {"map": "unary-map", "batch-map": "batch-map", "stream-map": "stream-map"}
    for kind, mode in modes.items():
        with serving(upper, kind, tmp_path) as served:
            assert served.info["metadata"] == {"MAP_MODE": mode}
            facts = ("protocol", "language", "version", "minimum_numaflow_version")
            assert [served.info[fact] for fact in facts] == ["uds", "python", "0.14.0", "1.4.0-z"]
            with client_of(served) as client:
                ready = client.call("/map.v1.Map/IsReady")
            assert map_pb2.ReadyResponse.FromString(ready).ready
        assert not served.info_file.exists(), "no client must find a server that has ended"


def test_a_function_sees_the_whole_message(tmp_path: Path) -> None:
    seen: list[Datum] = []

    def look(datum: Datum) -> Message:
        seen.append(datum)
        return Message(b"")

    system = {
        "sink": {"key_value": {"retry_count": b"2"}},
        "ebbflow": {"key_value": {"deliveries": b"3", "nack_reason": b"busy"}},
    }
    user = {"g": {"key_value": {"k": b"v"}}}
    message = {
        "value": b"v",
        "keys": ["a", "b"],
        "event_time": {"seconds": 10, "nanos": 5_000_000},
        "watermark": {"seconds": 9},
        "headers": {"h": "1"},
        "metadata": {"user_metadata": user, "sys_metadata": system},
    }
    bare = {"value": b"", "watermark": {"seconds": -1, "nanos": 999_000_000}}
    with serving(look, "map", tmp_path) as served, client_of(served) as client:
        (first, second) = answers(client, map_requests(message, bare))
    datum, other = seen
    assert (datum.id, datum.value, datum.keys) == ("m0", b"v", ("a", "b"))
    assert datum.event_time == datetime(1970, 1, 1, 0, 0, 10, 5_000, UTC)
    assert datum.watermark == datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert (datum.headers, datum.metadata) == ({"h": "1"}, {"g": {"k": b"v"}})
    assert (datum.deliveries, datum.nack_reason) == (3, "busy")
    assert datum.system_metadata == {"sink": {"retry_count": b"2"}}
    assert (other.deliveries, other.nack_reason, other.watermark) == (1, None, None)
    (kept,) = first.results
    assert kept.metadata.user_metadata["g"].key_value["k"] == b"v"
    assert not kept.metadata.sys_metadata
    assert not second.results[0].HasField("metadata")


def test_a_failure_ends_the_stream_after_the_answers_of_the_others(tmp_path: Path) -> None:
    with serving(upper_batch, "batch-map", tmp_path) as served:
        with client_of(served) as client:
            requests = map_requests(*values("a", "raise", "b"), end=True)
            received, error = until_broken(client.stream(MAP, requests))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "UDF_EXECUTION_ERROR(udf): ValueError: boom"
        trailers = dict(error.trailing_metadata())
        assert b"google.rpc.DebugInfo" in trailers["grpc-status-details-bin"]
        assert b"raise ValueError" in trailers["grpc-status-details-bin"]
        failure = served.wait()
        assert failure is not None
        assert "in upper" in failure.stack
    assert len(received) == 1, "each is to be tried alone: one of them is bad"


def test_all_single_messages_before_the_bad_one_are_answered(tmp_path: Path) -> None:
    with serving(upper, "map", tmp_path) as served, client_of(served) as client:
        responses = client.stream(MAP, map_requests(*values("a", "b", "raise", "c")))
        received, _ = until_broken(responses)
    answered = [map_pb2.MapResponse.FromString(response).id for response in received]
    assert answered[:3] == ["", "m0", "m1"]
    assert "m2" not in answered


def test_an_outage_ends_the_stream_and_the_function_is_reopened(tmp_path: Path) -> None:
    Upper.opened = 0
    with serving(Upper, "map", tmp_path) as served, client_of(served) as client:
        _, error = until_broken(client.stream(MAP, map_requests(*values("a", "away"))))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "UDF_EXECUTION_ERROR(udf): Unavailable: the database"
        assert b"google.rpc.RetryInfo" in dict(error.trailing_metadata())["grpc-status-details-bin"]
        assert Upper.opened == 1
        (response,) = answers(client, map_requests(*values("a")))
        assert response.results[0].value == b"A"
        assert Upper.opened == 2
    assert served.failure is None


def test_a_stream_begins_with_a_handshake(tmp_path: Path) -> None:
    with serving(upper, "map", tmp_path) as served, client_of(served) as client:
        request = map_pb2.MapRequest(id="1", request={"value": b"a"}).SerializeToString()
        _, error = until_broken(client.stream(MAP, [request]))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_messages_of_many_megabytes_are_accepted(tmp_path: Path) -> None:
    value = bytes(60 * 1024 * 1024)
    with serving(upper, "map", tmp_path) as served, client_of(served) as client:
        (response,) = answers(client, map_requests({"value": value}))
    assert len(response.results[0].value) == len(value)


@pytest.mark.parametrize("kind", ["map", "transformer"])
def test_an_async_map_answers_each_request_when_it_is_done(kind: str, tmp_path: Path) -> None:
    class Meet:
        """The first message waits until a hundred others have been worked on."""

        def open(self) -> None:
            self.others = 0
            self.met = asyncio.Event()

        async def __call__(self, datum: Datum) -> Message:
            if datum.value == b"0":
                await asyncio.wait_for(self.met.wait(), 10)
            self.others += 1
            if self.others == 100:
                self.met.set()
            return Message(datum.value)

    texts = list(map(str, range(500)))
    requests = map_requests if kind == "map" else transform_requests
    method = MAP if kind == "map" else TRANSFORM
    with serving(Meet, kind, tmp_path) as served, client_of(served) as client:
        responses = list(client.stream(method, requests(*values(*texts))))[1:]
    ids = [map_pb2.MapResponse.FromString(response).id for response in responses]
    assert sorted(ids) == sorted(f"m{number}" for number in range(500))
    assert ids.index("m0") >= 99


def test_an_async_map_that_fails_ends_its_stream_after_the_calls_in_flight(tmp_path: Path) -> None:
    async def fail(datum: Datum) -> Message:
        if datum.value == b"raise":
            raise ValueError("boom")
        await asyncio.sleep(0.01)
        return Message(datum.value)

    with serving(fail, "map", tmp_path) as served, client_of(served) as client:
        stream = client.stream(MAP, map_requests(*values("a", "raise")))
        received, error = until_broken(stream)
        assert served.wait() is not None
    assert [map_pb2.MapResponse.FromString(r).id for r in received] == ["", "m0"]
    assert error.details() == "UDF_EXECUTION_ERROR(udf): ValueError: boom"


def test_an_async_map_serves_the_next_client_after_one_disconnects(tmp_path: Path) -> None:
    async def echo(datum: Datum) -> Message:
        return Message(datum.value)

    with serving(echo, "map", tmp_path) as served, client_of(served) as client:
        for _ in range(3):
            call: Any = client.stream(MAP, map_requests(*values("a")))
            next(call)
            call.cancel()
        assert len(answers(client, map_requests(*values("a", "b")))) == 2


def test_a_stream_map_sends_outputs_while_it_continues(tmp_path: Path) -> None:
    received = threading.Event()

    def slow(datum: Datum) -> Iterator[Message]:
        yield Message(b"first")
        assert received.wait(120), "the first message did not arrive before the second was made"
        yield Message(b"second")

    with serving(slow, "stream-map", tmp_path) as served, client_of(served) as client:
        responses = client.stream(MAP, map_requests(*values("a")))
        assert map_pb2.MapResponse.FromString(next(responses)).handshake.sot
        first = map_pb2.MapResponse.FromString(next(responses))
        received.set()
        second, end = map(map_pb2.MapResponse.FromString, responses)
    assert [r.results[0].value for r in (first, second)] == [b"first", b"second"]
    assert (end.id, end.status.eot, len(end.results)) == ("m0", True, 0)


def test_a_transformer_gives_every_result_an_event_time(tmp_path: Path) -> None:
    early = datetime(2020, 1, 1, tzinfo=UTC)

    def assign(datum: Datum) -> Any:
        match datum.value:
            case b"drop":
                return Message.to_drop(early)
            case b"none":
                return None
            case b"nack":
                return Message.to_nack(NackOptions(delay=10), early)
            case b"keep":
                return Message(b"kept")
        return Message(b"early", event_time=early)

    texts = ("drop", "none", "nack", "keep", "set")
    messages = [{**value, "event_time": {"seconds": 7, "nanos": 7}} for value in values(*texts)]
    with serving(assign, "transformer", tmp_path) as served, client_of(served) as client:
        stream = client.stream(TRANSFORM, transform_requests(*messages))
        parse = transform_pb2.SourceTransformResponse.FromString
        greeting, *responses = map(parse, stream)
        assert served.info["metadata"] == {}
    assert greeting.handshake.sot
    results = [result for response in responses for result in response.results]
    assert [list(result.tags) for result in results] == [[DROP], [DROP], [NACK], [], []]
    started = int(early.timestamp())
    assert [result.event_time.seconds for result in results] == [started, 7, started, 7, started]
    assert results[3].event_time.nanos == 7, "what was not set is not rounded either"
    assert results[2].nack_options.delay == 10
