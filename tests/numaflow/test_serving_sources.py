"""Sources behind their sockets, called by gRPC's own client."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from ebbflow import NackOffset, NackOptions, Source, SourceMessage
from ebbflow.numaflow.proto import source_pb2
from tests.numaflow.served import Client, ack_requests, client_of, read_requests, serving

READ, ACK, NACK = (f"/source.v1.Source/{name}" for name in ("ReadFn", "AckFn", "NackFn"))
EARLY = datetime(2020, 1, 1, tzinfo=UTC)


class Numbers(Source):
    """Provides numbers from a list; receives acks, and handles no nacks itself."""

    def __init__(self) -> None:
        self.left = list(range(5))
        self.acked: list[bytes] = []
        self.opened = False

    def open(self) -> None:
        self.opened = True

    def read(self, limit: int, timeout: timedelta) -> Any:
        assert self.opened
        given, self.left = self.left[:limit], self.left[limit:]
        return [self.message(number) for number in given]

    def message(self, number: int) -> SourceMessage:
        offset = b"%d" % number
        if number == 0:
            return SourceMessage(
                b"zero", offset, EARLY, ["k"], {"h": "1"}, 7, metadata={"g": {"k": b"v"}}
            )
        return SourceMessage(offset, offset)

    def ack(self, offsets: Sequence[bytes]) -> None:
        self.acked += offsets

    def pending(self) -> int:
        return len(self.left)


class Nacking(Numbers):
    nacks: Sequence[NackOffset] = ()

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        Nacking.nacks = nacks


class Columns(Numbers):
    async def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        given, self.left = self.left[:limit], self.left[limit:]
        offsets = pa.array([b"%d" % number for number in given], pa.binary())
        return pa.record_batch({"offset": offsets, "value": offsets})

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        self.acked += offsets.to_pylist()


def read(client: Client, limit: int) -> list[Any]:
    """The messages of one read; the answer must end with its mark."""
    stream = client.stream(READ, read_requests(limit))
    greeting, *messages, end = map(source_pb2.ReadResponse.FromString, stream)
    assert greeting.handshake.sot
    assert end.status.eot
    assert not any(message.status.eot for message in messages)
    return [message.result for message in messages]


def ack(client: Client, *offsets: bytes) -> None:
    stream = client.stream(ACK, ack_requests(*offsets))
    greeting, answer = map(source_pb2.AckResponse.FromString, stream)
    assert greeting.handshake.sot
    assert answer.result.HasField("success")


def nack(client: Client, offset: bytes, **options: Any) -> None:
    entry = {"offsets": [{"offset": offset}], "nack_options": options}
    request = source_pb2.NackRequest(request=[entry]).SerializeToString()
    answer = source_pb2.NackResponse.FromString(client.call(NACK, request))
    assert answer.result.HasField("success")


def offsets_of(results: list[Any]) -> list[bytes]:
    return [result.offset.offset for result in results]


@pytest.mark.parametrize("code", [Numbers, Nacking, Columns])
def test_a_source_is_read_acknowledged_and_counted(code: Any, tmp_path: Path) -> None:
    source = code()
    with serving(_just(source), "source", tmp_path) as served, client_of(served) as client:
        assert offsets_of(read(client, 2)) == [b"0", b"1"]
        pending = client.call("/source.v1.Source/PendingFn")
        assert source_pb2.PendingResponse.FromString(pending).result.count == 3
        assert offsets_of(read(client, 9)) == [b"2", b"3", b"4"]
        ack(client, b"0", b"1", b"2")
        assert source.acked == [b"0", b"1", b"2"]
        assert read(client, 9) == []
        partitions = client.call("/source.v1.Source/PartitionsFn")
        assert source_pb2.PartitionsResponse.FromString(partitions).result.partitions == [0]
        assert served.info["version"] == "0.14.0", "from 0.11.0 on Numaflow calls NackFn"


def _just(source: Source) -> Any:
    """A class whose instance is known to the test."""

    class Just:
        def __new__(cls) -> Any:
            return source

    return Just


def test_a_message_keeps_every_field_that_the_source_sets(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NUMAFLOW_REPLICA", "3")
    with serving(Numbers, "source", tmp_path) as served, client_of(served) as client:
        full, bare = read(client, 2)
    assert (full.payload, list(full.keys), dict(full.headers)) == (b"zero", ["k"], {"h": "1"})
    assert (full.offset.partition_id, bare.offset.partition_id) == (7, 3)
    assert full.metadata.user_metadata["g"].key_value["k"] == b"v"
    assert full.event_time.seconds == int(EARLY.timestamp())
    assert abs(bare.event_time.seconds - datetime.now(UTC).timestamp()) < 60, "Numaflow needs one"


def test_a_source_receives_nacks_with_exactly_their_options(tmp_path: Path) -> None:
    with serving(Nacking, "source", tmp_path) as served, client_of(served) as client:
        read(client, 2)
        nack(client, b"1", delay=50, max_deliveries=0, reason="busy")
        assert list(Nacking.nacks) == [NackOffset(b"1", NackOptions(50, 0, "busy"))]
        nack(client, b"0")
        assert list(Nacking.nacks) == [NackOffset(b"0", NackOptions())], "unset is not zero"
        assert offsets_of(read(client, 9)) == [b"2", b"3", b"4"], "redelivery is left to the source"


def test_nacked_messages_are_redelivered_for_a_source_that_cannot_do_so(tmp_path: Path) -> None:
    source = Numbers()
    with serving(_just(source), "source", tmp_path) as served, client_of(served) as client:
        first = read(client, 2)
        nack(client, b"1", delay=300)
        nack(client, b"0")
        again = read(client, 2)
        assert offsets_of(again) == [b"0", b"2"], "the one whose delay is over comes first"
        assert again[0] == first[0]
        ack(client, b"0", b"2")
        seen: list[bytes] = []
        while b"1" not in seen:
            seen += offsets_of(read(client, 1))
        ack(client, b"1")
        nack(client, b"1")
        assert b"1" not in offsets_of(read(client, 9)), "what is acknowledged is done"
    assert source.acked == [b"0", b"2", b"1"]


def test_a_source_that_raises_ends_its_stream(tmp_path: Path) -> None:
    class Broken(Numbers):
        def read(self, limit: int, timeout: timedelta) -> Any:
            raise ValueError("boom")

    with serving(Broken, "source", tmp_path) as served, client_of(served) as client:
        with pytest.raises(grpc.RpcError) as failed:
            read(client, 1)
        failure = served.wait()
    error: Any = failed.value
    assert error.details() == "UDF_EXECUTION_ERROR(udsource): ValueError: boom"
    assert failure is not None
