"""Served functions answer in messages that Numaflow's own SDK for Python reads."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2

from ebbflow import Datum, Message, Response, Source, SourceMessage
from tests.numaflow.served import Served, serving

pynumaflow = pytest.importorskip("pynumaflow")


def channel_to(served: Served) -> grpc.Channel:
    return grpc.insecure_channel(f"unix://{served.kind.socket_path(served.folder)}")


def test_the_sdk_reads_the_answers_of_a_map_and_a_transformer(tmp_path: Path) -> None:
    from pynumaflow.proto.mapper import map_pb2, map_pb2_grpc
    from pynumaflow.proto.sourcetransformer import transform_pb2, transform_pb2_grpc

    def step(datum: Datum) -> Message:
        return Message(datum.value.upper(), tags=["t"], metadata={"g": {"k": datum.value}})

    def requests(module: Any, name: str, **outer: Any) -> Iterator[Any]:
        request = getattr(module, name)
        yield request(handshake=module.Handshake(sot=True))
        inner = {"value": b"a", "keys": ["k"]} | ({} if outer else {"id": "1"})
        yield request(request=request.Request(**inner), **outer)

    with serving(step, "map", tmp_path) as served, channel_to(served) as channel:
        stub = map_pb2_grpc.MapStub(channel)
        assert stub.IsReady(empty_pb2.Empty()).ready
        greeting, mapped = stub.MapFn(requests(map_pb2, "MapRequest", id="1"))
    with serving(step, "transformer", tmp_path) as served, channel_to(served) as channel:
        stub = transform_pb2_grpc.SourceTransformStub(channel)
        assert stub.IsReady(empty_pb2.Empty()).ready
        _, transformed = stub.SourceTransformFn(requests(transform_pb2, "SourceTransformRequest"))
    assert greeting.handshake.sot
    for response in (mapped, transformed):
        (result,) = response.results
        assert response.id == "1"
        assert (result.value, list(result.keys), list(result.tags)) == (b"A", ["k"], ["t"])
        assert result.metadata.user_metadata["g"].key_value["k"] == b"a"


def test_the_sdk_reads_the_answers_of_a_sink(tmp_path: Path) -> None:
    from pynumaflow.proto.sinker import sink_pb2, sink_pb2_grpc

    def requests() -> Iterator[Any]:
        yield sink_pb2.SinkRequest(handshake=sink_pb2.Handshake(sot=True))
        for name in ("ok", "failure"):
            yield sink_pb2.SinkRequest(request=sink_pb2.SinkRequest.Request(id=name))
        yield sink_pb2.SinkRequest(status=sink_pb2.TransmissionStatus(eot=True))

    def sink(data: list[Datum]) -> list[Response]:
        return [Response.ok(data[0].id), Response.failure(data[1].id, "full")]

    with serving(sink, "sink", tmp_path) as served, channel_to(served) as channel:
        stub = sink_pb2_grpc.SinkStub(channel)
        assert stub.IsReady(empty_pb2.Empty()).ready
        greeting, answers, end = stub.SinkFn(requests())
    assert greeting.handshake.sot
    assert [(r.id, r.status, r.err_msg) for r in answers.results] == [
        ("ok", sink_pb2.SUCCESS, ""),
        ("failure", sink_pb2.FAILURE, "full"),
    ]
    assert end.status.eot


class One(Source):
    """Provides one message, and receives nacks that name several offsets in one entry."""

    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        return [SourceMessage(b"v", b"1", keys=["k"], partition=2)]

    def ack(self, offsets: Any) -> None:
        self.acked = offsets


def test_the_sdk_reads_the_answers_of_a_source(tmp_path: Path) -> None:
    from pynumaflow.proto.sourcer import source_pb2, source_pb2_grpc

    def reads() -> Iterator[Any]:
        yield source_pb2.ReadRequest(handshake=source_pb2.Handshake(sot=True))
        yield source_pb2.ReadRequest(
            request=source_pb2.ReadRequest.Request(num_records=5, timeout_in_ms=10)
        )

    with serving(One, "source", tmp_path) as served, channel_to(served) as channel:
        stub = source_pb2_grpc.SourceStub(channel)
        assert stub.IsReady(empty_pb2.Empty()).ready
        greeting, message, end = stub.ReadFn(reads())
        offset = message.result.offset
        nack = source_pb2.NackRequest(request=source_pb2.NackRequest.Request(offsets=[offset]))
        assert stub.NackFn(nack).result.HasField("success")
        assert stub.PendingFn(empty_pb2.Empty()).result.count == -1
        assert list(stub.PartitionsFn(empty_pb2.Empty()).result.partitions) == [0]
    assert greeting.handshake.sot
    assert (message.result.payload, offset.offset, offset.partition_id) == (b"v", b"1", 2)
    assert end.status.eot
