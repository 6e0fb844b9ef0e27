"""Sinks and stores behind their sockets, called by gRPC's own client."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from ebbflow import Datum, Message, Response
from ebbflow.numaflow.proto import sink_pb2, store_pb2
from tests.numaflow.served import Client, client_of, serving, sink_requests, until_broken, values

SINK = "/sink.v1.Sink/SinkFn"


def answer(text: str) -> Response:
    match text:
        case "failure":
            return Response.failure(error="disk full")
        case "fallback":
            return Response.fallback()
        case "serve":
            return Response.serve(payload=b"42")
        case "original":
            return Response.on_success()
        case "other":
            return Response.on_success(message=Message(b"new", ["k"], metadata={"g": {"k": b"v"}}))
        case "nack":
            return Response.nack(reason="later", delay="5s", max_deliveries=3)
        case "bare":
            return Response.nack()
        case "away":
            return Response.unavailable(what="the database", retry_after="2s")
    return Response.ok()


def store(data: list[Datum]) -> list[Response]:
    answers = [answer(datum.value.decode()) for datum in data]
    return [replace(answer, id=datum.id) for datum, answer in zip(data, answers, strict=True)]


async def store_async(data: list[Datum]) -> list[Response]:
    return store(data)


def store_columns(batch: pa.RecordBatch) -> dict[int, Response]:
    return {row: answer(text.decode()) for row, text in enumerate(batch["value"].to_pylist())}


def store_pandas(frame: Any) -> dict[int, Response]:
    return {row: answer(text.decode()) for row, text in enumerate(frame["value"])}


def results(client: Client, *texts: str) -> dict[str, Any]:
    """The result of each id; the answers must end with their mark."""
    stream = client.stream(SINK, sink_requests(*values(*texts)))
    greeting, *responses = map(sink_pb2.SinkResponse.FromString, stream)
    assert greeting.handshake.sot
    assert [response.status.eot for response in responses] == [False] * (len(responses) - 1) + [
        True
    ]
    return {result.id: result for response in responses for result in response.results}


SINKS = [(store, None), (store_async, None), (store_columns, "columnar"), (store_pandas, "pandas")]


@pytest.mark.parametrize(("code", "mode"), SINKS)
def test_every_answer_of_a_sink_is_transmitted(code: Any, mode: str | None, tmp_path: Path) -> None:
    texts = ("ok", "failure", "fallback", "serve", "original", "other", "nack", "bare")
    with serving(code, "sink", tmp_path, mode) as served, client_of(served) as client:
        ok, failure, fallback, serve, original, other, nack, bare = results(client, *texts).values()
    assert ok.status == sink_pb2.SUCCESS
    assert (failure.status, failure.err_msg) == (sink_pb2.FAILURE, "disk full")
    assert fallback.status == sink_pb2.FALLBACK
    assert (serve.status, serve.serve_response) == (sink_pb2.SERVE, b"42")
    assert original.status == other.status == sink_pb2.ON_SUCCESS
    assert not original.HasField("on_success_msg")
    message = other.on_success_msg
    assert (message.value, list(message.keys)) == (b"new", ["k"])
    assert message.metadata.user_metadata["g"].key_value["k"] == b"v"
    assert nack.status == bare.status == sink_pb2.NACK
    options = nack.nack_options
    assert (options.delay, options.max_deliveries, options.reason) == (5_000, 3, "later")
    assert not bare.HasField("nack_options")


def test_each_sink_has_its_own_socket_and_file(tmp_path: Path) -> None:
    sockets = {"sink": "sink", "fallback-sink": "fb-sink", "on-success-sink": "ons-sink"}
    for kind, name in sockets.items():
        with serving(store, kind, tmp_path) as served, client_of(served) as client:
            assert (tmp_path / f"{name}.sock").is_socket()
            assert served.info_file == tmp_path / f"{name}er-server-info"
            assert results(client, "a")["m0"].status == sink_pb2.SUCCESS


def test_batches_follow_each_other_on_one_stream(tmp_path: Path) -> None:
    sizes: list[int] = []

    def count(data: list[Datum]) -> list[Response]:
        sizes.append(len(data))
        return store(data)

    def two_batches() -> Any:
        yield from sink_requests(*values("a", "b"))
        yield from list(sink_requests(*values("c")))[1:]
        yield sink_pb2.SinkRequest(status={"eot": True}).SerializeToString()

    with serving(count, "sink", tmp_path) as served, client_of(served) as client:
        responses = [
            sink_pb2.SinkResponse.FromString(r) for r in client.stream(SINK, two_batches())
        ]
    assert sizes == [2, 1], "an empty batch is answered without a call"
    assert sum(response.status.eot for response in responses) == 3


def answered_and_error(client: Client, *texts: str) -> tuple[list[str], Any]:
    """The ids that were answered before the stream broke, and how it did."""
    stream = client.stream(SINK, sink_requests(*values(*texts)))
    received, error = until_broken(stream)
    responses = [sink_pb2.SinkResponse.FromString(response) for response in received]
    assert not any(response.status.eot for response in responses), "not all are answered"
    return [result.id for response in responses for result in response.results], error


def test_messages_whose_system_is_unavailable_stay_unanswered(tmp_path: Path) -> None:
    with serving(store, "sink", tmp_path) as served, client_of(served) as client:
        ids, error = answered_and_error(client, "ok", "away", "nack")
        assert ids == ["m0", "m2"]
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "UDF_EXECUTION_ERROR(udsink): Unavailable: the database"
        assert results(client, "ok")["m0"].status == sink_pb2.SUCCESS, "it keeps being served"


def test_a_message_without_an_answer_breaks_the_stream(tmp_path: Path) -> None:
    def forget(data: list[Datum]) -> list[Response]:
        return [Response.ok(datum.id) for datum in data if datum.value != b"bad"]

    with serving(forget, "sink", tmp_path) as served, client_of(served) as client:
        ids, error = answered_and_error(client, "a", "bad", "b")
    assert ids == ["m0", "m2"]
    assert "UDF_EXECUTION_ERROR(udsink): ContractViolation: " in error.details()
    assert "no response for 1" in error.details()
    assert served.failure is not None


def test_a_sink_that_cannot_be_opened_is_not_served(tmp_path: Path) -> None:
    class Broken:
        def open(self) -> None:
            raise ConnectionError("refused")

        def __call__(self, data: Sequence[Datum]) -> list[Response]:
            return []

    with serving(Broken, "sink", tmp_path) as served:
        failure = served.wait()
    assert failure is not None
    assert failure.text == "UDF_EXECUTION_ERROR(udsink): ConnectionError: refused"
    assert not served.info_file.exists()


class Answers:
    def __init__(self) -> None:
        self.kept: dict[str, list[bytes]] = {}

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        if id == "away":
            raise ConnectionError("refused")
        self.kept.setdefault(id, []).extend(payloads)

    def get(self, id: str) -> list[bytes]:
        return self.kept.get(id, [])


def test_a_store_keeps_answers(tmp_path: Path) -> None:
    put, get = "/serving.v1.ServingStore/Put", "/serving.v1.ServingStore/Get"
    payloads = [{"origin": "out", "value": value} for value in (b"1", b"2")]
    with serving(Answers, "store", tmp_path) as served, client_of(served) as client:
        asked = store_pb2.PutRequest(id="r", payloads=payloads).SerializeToString()
        assert store_pb2.PutResponse.FromString(client.call(put, asked)).success
        asked = store_pb2.GetRequest(id="r").SerializeToString()
        found = store_pb2.GetResponse.FromString(client.call(get, asked))
        with pytest.raises(grpc.RpcError) as failed:
            client.call(put, store_pb2.PutRequest(id="away").SerializeToString())
    assert (found.id, [payload.value for payload in found.payloads]) == ("r", [b"1", b"2"])
    error: Any = failed.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "UDF_EXECUTION_ERROR(udstore): ConnectionError: refused"
