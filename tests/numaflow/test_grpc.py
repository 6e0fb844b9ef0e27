"""The gRPC client, against a real grpcio server and against one that is only a socket."""

import base64
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.errors import CallTimeout, StreamBroken
from ebbflow.numaflow import http2
from ebbflow.numaflow.grpc import LARGEST, PREFIX, GrpcConnection, Splitter
from ebbflow.numaflow.http2 import frame, settings_payload
from ebbflow.usercode.call_watch import RUNNING, watch_calls

SOON = 20.0
STACK = "goroutine 7 [running]:\nmain.go:12"


def details(stack: str) -> bytes:
    """A ``google.rpc.Status`` with a ``DebugInfo``, as the SDK for Go makes it."""

    def field(number: int, content: bytes) -> bytes:
        size, written = len(content), b""
        while size > 0x7F:
            written += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + written + bytes([size]) + content

    info = field(2, stack.encode())
    kind = b"type.googleapis.com/google.rpc.DebugInfo"
    return b"\x08\x0d" + field(2, b"boom") + field(3, field(1, kind) + field(2, info))


def echo(requests, context):
    for request in requests:
        if request == b"fail":
            context.set_trailing_metadata([("grpc-status-details-bin", details(STACK))])
            context.abort(grpc.StatusCode.INTERNAL, "böse, 100% sure\nreally")
        if request.startswith(b"wait "):
            time.sleep(float(request.removeprefix(b"wait ")))
        yield request


def swell(requests, context):
    """Answers a megabyte for each message, as soon as the first is there."""
    for _ in requests:
        yield b"x" * 1_000_000


METHODS = {
    "/t.T/Echo": grpc.stream_stream_rpc_method_handler(echo),
    "/t.T/Swell": grpc.stream_stream_rpc_method_handler(swell),
    "/t.T/Hello": grpc.unary_unary_rpc_method_handler(lambda request, _: b"hello " + request),
    "/t.T/Refuse": grpc.unary_unary_rpc_method_handler(
        lambda _, context: context.abort(grpc.StatusCode.NOT_FOUND, "no")
    ),
    "/t.T/Twice": grpc.unary_stream_rpc_method_handler(lambda request, _: iter([request, request])),
}


class Methods(grpc.GenericRpcHandler):
    def service(self, details):
        return METHODS.get(details.method)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("s") / "echo.sock")
    sizes = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
    threads = futures.ThreadPoolExecutor(8)
    running = grpc.server(threads, options=[(name, LARGEST) for name in sizes])
    running.add_generic_rpc_handlers((Methods(),))
    running.add_insecure_port(f"unix:{path}")
    running.start()
    yield path
    running.stop(0).wait()
    threads.shutdown()


@pytest.fixture
def connection(server) -> Iterator[GrpcConnection]:
    made = GrpcConnection(server)
    yield made
    made.close()


def receive_all(stream, count: int) -> list[bytes]:
    received: list[bytes] = []
    while len(received) < count:
        more = stream.receive(SOON)
        assert more
        received += more
    return received


# --- a real server ------------------------------------------------------------------------------


def test_a_call_returns_its_answer(connection):
    assert connection.call("/t.T/Hello", b"you", SOON) == b"hello you"
    assert connection.call("/t.T/Hello", b"", SOON) == b"hello "


def test_messages_of_all_sizes_return_in_order_while_many_are_in_flight(connection):
    stream = connection.open_stream("/t.T/Echo")
    messages = [os.urandom(n * 7919 % 3_000) for n in range(5_000)] + [b"", b"x" * 20_000]
    stream.send(messages)
    assert receive_all(stream, len(messages)) == messages


def test_the_largest_message_passes_both_ways(connection):
    stream = connection.open_stream("/t.T/Echo")
    large = os.urandom(LARGEST - 1)
    stream.send([b"before", large, b"after"])
    assert receive_all(stream, 3) == [b"before", large, b"after"]


def test_packed_messages_arrive_as_single_messages(connection):
    stream = connection.open_stream("/t.T/Echo")
    stream.send_packed(b"".join(PREFIX.pack(0, 3) + b"%03d" % n for n in range(300)))
    assert receive_all(stream, 300) == [b"%03d" % n for n in range(300)]


def test_a_stream_that_ended_without_an_error_returns_nothing_more(connection):
    stream = connection.open_stream("/t.T/Echo")
    stream.send([b"last"])
    stream.end()
    assert receive_all(stream, 1) == [b"last"]
    assert stream.receive(SOON) == []
    assert stream.receive(SOON) == []


def test_streams_and_calls_share_a_connection(connection):
    streams = [connection.open_stream("/t.T/Echo") for _ in range(3)]
    for number, stream in enumerate(streams):
        stream.send([b"%d" % number] * 100)
    assert connection.call("/t.T/Hello", b"you", SOON) == b"hello you"
    for number, stream in enumerate(streams):
        assert receive_all(stream, 100) == [b"%d" % number] * 100


def test_a_failure_has_its_status_message_and_stack_and_follows_the_answers(connection):
    stream = connection.open_stream("/t.T/Echo")
    stream.send([b"good", b"fail", b"never seen"])
    assert receive_all(stream, 1) == [b"good"]
    with pytest.raises(StreamBroken) as failure:
        stream.receive(SOON)
    assert str(failure.value) == "INTERNAL: böse, 100% sure\nreally"
    assert (failure.value.code, failure.value.trace) == (13, STACK)


def test_a_failure_without_any_answer_is_also_reported(connection):
    with pytest.raises(StreamBroken, match=r"^NOT_FOUND: no$"):
        connection.call("/t.T/Refuse", b"", SOON)
    with pytest.raises(StreamBroken, match=r"^UNIMPLEMENTED: "):
        connection.call("/t.T/Nothing", b"", SOON)


def test_a_call_that_is_answered_twice_fails(connection):
    with pytest.raises(StreamBroken, match=r"^/t.T/Twice was answered 2 times instead of once$"):
        connection.call("/t.T/Twice", b"", SOON)


def test_a_cancelled_stream_ends_and_other_calls_continue(connection):
    stream = connection.open_stream("/t.T/Echo")
    stream.cancel()
    with pytest.raises(StreamBroken, match="cancelled"):
        stream.receive(SOON)
    assert connection.call("/t.T/Hello", b"you", SOON) == b"hello you"


def test_a_silent_server_is_waited_for_no_longer_than_the_timeout(connection):
    stream = connection.open_stream("/t.T/Echo")
    stream.send([b"a", b"wait 1"])
    assert receive_all(stream, 1) == [b"a"]
    with pytest.raises(CallTimeout):
        stream.receive(0.05)


def test_the_call_timeout_applies_to_each_wait_without_the_call_watch_interrupting_it(
    connection,
):
    stream = connection.open_stream("/t.T/Echo")
    with watch_calls(0.4, lambda _: None), RUNNING:
        stream.send([b"wait 0.25"] * 4 + [b"wait 1"])
        for _ in range(4):  # longer than the limit in all
            assert stream.receive() == [b"wait 0.25"]
        began = time.monotonic()
        with pytest.raises(CallTimeout):
            stream.receive()
        assert time.monotonic() - began >= 0.4


def test_both_sides_may_send_more_than_the_buffers_hold_without_a_deadlock(connection):
    stream = connection.open_stream("/t.T/Swell")
    stream.send([b"y" * 1_000_000] * 40)
    assert sum(map(len, receive_all(stream, 40))) == 40_000_000


def test_a_socket_path_without_a_listener_is_reported():
    with pytest.raises(StreamBroken, match=r"^nothing listens at /nowhere/map.sock: "):
        GrpcConnection("/nowhere/map.sock")


# --- a server that is only a socket -------------------------------------------------------------


@contextmanager
def bare_server(folder: Path) -> Iterator[tuple[str, socket.socket]]:
    """A path to connect to, and the socket on which the connection is accepted."""
    path = str(folder / "bare.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield path, listening


HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def answer(*messages: bytes) -> bytes:
    data = b"".join(PREFIX.pack(0, len(message)) + message for message in messages)
    block = Encoder().encode(HEAD)
    opening = frame(http2.FrameType.SETTINGS, 0, 0) + frame(
        http2.FrameType.HEADERS, http2.END_HEADERS, 1, block
    )
    return opening + frame(http2.FrameType.DATA, 0, 1, data)


def test_answers_of_a_process_that_ended_are_returned_before_its_end_is_reported(tmp_path):
    with bare_server(tmp_path) as (path, listening):
        connection = GrpcConnection(path)
        stream = connection.open_stream("/t.T/Echo")
        peer, _ = listening.accept()
        peer.sendall(
            answer(b"one", b"two") + frame(http2.FrameType.DATA, 0, 1, PREFIX.pack(0, 9) + b"thr")
        )
        peer.close()
        stream.send([b"x" * 1_000_000])  # which the peer no longer reads
        assert stream.receive(SOON) == [b"one", b"two"]
        with pytest.raises(StreamBroken, match="the function's process "):
            stream.receive(SOON)
        with pytest.raises(StreamBroken, match="the function's process "):
            connection.open_stream("/t.T/Echo")
        connection.close()


def test_answers_of_a_server_that_stops_reading_still_arrive(tmp_path):
    with bare_server(tmp_path) as (path, listening):
        connection = GrpcConnection(path)
        stream = connection.open_stream("/t.T/Echo")
        peer, _ = listening.accept()
        large = [(4, 2**31 - 1), (5, 2**24 - 1)]
        window = frame(http2.FrameType.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
        peer.sendall(frame(http2.FrameType.SETTINGS, 0, 0, settings_payload(large)) + window)
        stream.send([b"x" * 30_000_000])  # far more than the socket holds
        writer = threading.Thread(target=peer.sendall, args=(answer(*[b"y" * 200_000]) * 1,))
        writer.start()
        assert stream.receive(SOON) == [b"y" * 200_000]
        writer.join()
        with pytest.raises(CallTimeout):
            stream.receive(0.05)
        peer.close()
        connection.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (PREFIX.pack(1, 3) + b"abc", "it is compressed"),
        (PREFIX.pack(0, LARGEST + 1), "it has 67,108,865 bytes"),
    ],
    ids=["compressed", "large"],
)
def test_a_message_that_cannot_be_decoded_breaks_the_stream(tmp_path, sent, why):
    with bare_server(tmp_path) as (path, listening):
        connection = GrpcConnection(path)
        stream = connection.open_stream("/t.T/Echo")
        peer, _ = listening.accept()
        peer.sendall(answer(b"good") + frame(http2.FrameType.DATA, 0, 1, sent))
        assert receive_all(stream, 1) == [b"good"]
        with pytest.raises(StreamBroken, match=f"a message that cannot be decoded: {why}$"):
            stream.receive(SOON)
        peer.close()
        connection.close()


@pytest.mark.parametrize(
    ("trailers", "text", "code"),
    [
        ([("grpc-status", "2")], "UNKNOWN", 2),
        ([("grpc-status", "77"), ("grpc-message", "odd")], "status 77: odd", 77),
        ([("grpc-status", "x")], "UNKNOWN", 2),
        (
            [("grpc-status", "13"), ("grpc-status-details-bin", "!!")],
            "INTERNAL",
            13,
        ),
        (
            [
                ("grpc-status", "13"),
                ("grpc-status-details-bin", base64.b64encode(b"\x1a\xff").decode()),
            ],
            "INTERNAL",
            13,
        ),
        ([], "the function ended the stream without a result (HTTP 503)", None),
    ],
    ids=["bare", "unknown", "no number", "no base64", "cut short", "no status"],
)
def test_a_response_of_trailers_alone_ends_the_call(tmp_path, trailers, text, code):
    with bare_server(tmp_path) as (path, listening):
        connection = GrpcConnection(path)
        stream = connection.open_stream("/t.T/Echo")
        peer, _ = listening.accept()
        block = Encoder().encode([(":status", "503" if not trailers else "200"), *trailers])
        flags = http2.END_HEADERS | http2.END_STREAM
        peer.sendall(
            frame(http2.FrameType.SETTINGS, 0, 0) + frame(http2.FrameType.HEADERS, flags, 1, block)
        )
        with pytest.raises(StreamBroken) as failure:
            stream.receive(SOON)
        assert (str(failure.value), failure.value.code, failure.value.trace) == (text, code, "")
        peer.close()
        connection.close()


# --- splitting ----------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=60), max_size=12),
    st.lists(st.integers(0, 800), max_size=12),
    st.lists(st.booleans(), min_size=13, max_size=13),
)
def test_messages_are_the_same_however_frames_and_reads_cut_them(messages, cuts, gaps):
    packed = b"".join(PREFIX.pack(0, len(message)) + message for message in messages)
    ends = sorted({0, len(packed), *(cut for cut in cuts if cut < len(packed))})
    splitter, received = Splitter(), []
    for (start, end), gap in zip(pairwise(ends), gaps, strict=False):
        middle = (start + end) // 2 if gap else start
        edges = [start, middle, middle, end]
        for part in splitter.split(packed, edges):
            received += part.messages()
    assert received == messages
    assert splitter.fault is None
