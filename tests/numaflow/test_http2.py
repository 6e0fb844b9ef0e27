"""HTTP/2 as a client speaks it, against a peer simulated by frames."""

import struct
from itertools import pairwise

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.errors import StreamBroken
from ebbflow.numaflow import http2
from ebbflow.numaflow.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    PREFACE,
    FrameType,
    Http2,
    frame,
    settings_payload,
)

INITIAL_WINDOW, MAX_FRAME, TABLE_SIZE = 4, 5, 1
REQUEST = [(":method", "POST"), (":path", "/a")]


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def frames_in(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, exchange and payload of each frame."""
    found = []
    data = data.removeprefix(PREFACE)
    while data:
        word, flags, exchange = struct.unpack_from(">IBI", data)
        found.append((word & 0xFF, flags, exchange, data[9 : 9 + (word >> 8)]))
        data = data[9 + (word >> 8) :]
    return found


def begun(window: int = http2.WINDOW) -> tuple[Http2, http2.Http2Exchange]:
    """A connection with one exchange, whose first frames are written."""
    connection = Http2(window)
    exchange = connection.request(REQUEST)
    connection.take()
    return connection, exchange


def data_in(exchange: http2.Http2Exchange) -> bytes:
    return b"".join(
        buffer[start:end]
        for buffer, edges in exchange.arrived
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    )


# --- what is sent -------------------------------------------------------------------------------


def test_a_connection_begins_with_the_preface_and_our_settings_and_a_request_with_its_headers():
    connection = Http2()
    connection.request(REQUEST)
    sent = connection.take()
    assert sent.startswith(PREFACE)
    kinds = [(kind, flags, exchange) for kind, flags, exchange, _ in frames_in(sent)]
    assert kinds == [
        (FrameType.SETTINGS, 0, 0),
        (FrameType.WINDOW_UPDATE, 0, 0),
        (FrameType.HEADERS, END_HEADERS, 1),
    ]
    assert Decoder().decode(frames_in(sent)[2][3]) == REQUEST


def test_headers_larger_than_a_frame_continue_in_the_next_one():
    connection = Http2()
    connection.request([("x", "y" * 50_000)])
    headers = [
        f
        for f in frames_in(connection.take())
        if f[0] in (FrameType.HEADERS, FrameType.CONTINUATION)
    ]
    assert [(kind, flags) for kind, flags, _, _ in headers[:-1]] == [
        (FrameType.HEADERS, 0),
        *[(FrameType.CONTINUATION, 0)] * (len(headers) - 2),
    ]
    assert headers[-1][:2] == (FrameType.CONTINUATION, END_HEADERS)
    assert Decoder().decode(b"".join(f[3] for f in headers)) == [("x", "y" * 50_000)]


def test_data_fills_frames_up_to_the_limit_of_the_peer_and_the_last_ends_the_stream():
    connection, exchange = begun()
    connection.receive(
        frame(
            FrameType.SETTINGS,
            0,
            0,
            settings_payload([(INITIAL_WINDOW, 10**6), (MAX_FRAME, 20_000)]),
        )
    )
    exchange.unsent += b"x" * 45_000
    exchange.finishing = True
    sent = frames_in(connection.take())
    assert sent[0][:3] == (FrameType.SETTINGS, ACK, 0)
    assert [(flags, len(payload)) for _, flags, _, payload in sent[1:]] == [
        (0, 20_000),
        (0, 20_000),
        (END_STREAM, 5_000),
    ]
    assert not exchange.wants_to_send


def test_an_end_without_data_is_an_empty_frame():
    connection, exchange = begun()
    exchange.finishing = True
    assert frames_in(connection.take()) == [(FrameType.DATA, END_STREAM, 1, b"")]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 100_000)),
        st.tuples(st.just("connection"), st.integers(1, 200_000)),
        st.tuples(st.just("exchange"), st.integers(1, 200_000)),
        st.tuples(st.just("initial"), st.integers(0, 300_000)),
        st.tuples(st.just("frame"), st.integers(16_384, 60_000)),
    ),
    max_size=30,
)


@given(steps)
def test_exactly_as_much_is_sent_as_both_windows_allow(steps):
    connection, exchange = begun()
    initial = granted = 65_535
    in_all, largest, sent, asked = 65_535, 16_384, 0, 0
    for what, size in steps:
        if what == "send":
            exchange.unsent += b"x" * size
            asked += size
        elif what == "connection":
            connection.receive(frame(FrameType.WINDOW_UPDATE, 0, 0, number(size)))
            in_all += size
        elif what == "exchange":
            connection.receive(frame(FrameType.WINDOW_UPDATE, 0, 1, number(size)))
            granted += size
        elif what == "initial":
            connection.receive(
                frame(FrameType.SETTINGS, 0, 0, settings_payload([(INITIAL_WINDOW, size)]))
            )
            granted += size - initial
            initial = size
        else:
            connection.receive(
                frame(FrameType.SETTINGS, 0, 0, settings_payload([(MAX_FRAME, size)]))
            )
            largest = size
        while written := [f for f in frames_in(connection.take()) if f[0] == FrameType.DATA]:
            sizes = [len(payload) for _, _, _, payload in written]
            assert max(sizes) <= largest
            sent += sum(sizes)
            assert sent <= min(in_all, granted)
        assert sent == asked or sent >= min(in_all, granted)


def test_exchanges_share_the_window_of_the_connection():
    connection, first = begun()
    second = connection.request(REQUEST)
    first.unsent += b"a" * 60_000
    second.unsent += b"b" * 60_000
    sent = [f for f in frames_in(connection.take()) if f[0] == FrameType.DATA]
    assert sum(len(payload) for _, _, _, payload in sent) == 65_535
    connection.receive(frame(FrameType.WINDOW_UPDATE, 0, 0, number(10**6)))
    connection.take()
    assert not first.unsent
    assert not second.unsent


# --- what arrives -------------------------------------------------------------------------------


def transcript() -> bytes:
    """A whole response, with everything that may stand between its frames."""
    encoder = Encoder()
    head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
    trailers = encoder.encode([("grpc-status", "0"), ("grpc-message", "")])
    return b"".join(
        [
            frame(
                FrameType.SETTINGS,
                0,
                0,
                settings_payload([(INITIAL_WINDOW, 70_000), (TABLE_SIZE, 4_096)]),
            ),
            frame(FrameType.SETTINGS, ACK, 0),
            frame(
                FrameType.HEADERS,
                PADDED | HAS_PRIORITY,
                1,
                b"\x03" + b"prior" + head[:4] + b"\0\0\0",
            ),
            frame(FrameType.CONTINUATION, 0, 1, head[4:5]),
            frame(FrameType.CONTINUATION, END_HEADERS, 1, head[5:]),
            frame(FrameType.DATA, 0, 1, b"one"),
            frame(FrameType.PING, 0, 0, b"12345678"),
            frame(FrameType.DATA, PADDED, 1, b"\x02two\0\0"),
            frame(0x2A, 0xFF, 1, b"nobody knows this kind"),
            frame(FrameType.DATA, 0, 3, b"of an exchange that is over"),
            frame(FrameType.DATA, 0, 1),
            frame(FrameType.WINDOW_UPDATE, 0, 1, number(5)),
            frame(FrameType.DATA, 0, 1, b"three" * 100),
            frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, trailers),
        ]
    )


def outcome(pieces: list[bytes]) -> tuple[object, ...]:
    connection, exchange = begun()
    for piece in pieces:
        connection.receive(piece)
    return (
        data_in(exchange),
        exchange.headers,
        exchange.trailers,
        exchange.ended,
        exchange.broken,
        exchange.window,
        connection.lost,
        connection.take(),
    )


def test_a_response_is_read_the_same_wherever_it_is_cut():
    whole = transcript()
    expected = outcome([whole])
    assert expected[0] == b"onetwo" + b"three" * 100
    assert expected[1] == {":status": "200", "content-type": "application/grpc"}
    assert expected[2:7] == ({"grpc-status": "0", "grpc-message": ""}, True, None, 70_005, None)
    assert frames_in(expected[7]) == [
        (FrameType.SETTINGS, ACK, 0, b""),
        (FrameType.PING, ACK, 0, b"12345678"),
    ]
    for cut in range(1, len(whole)):
        assert outcome([whole[:cut], whole[cut:]]) == expected
    assert outcome([whole[at : at + 1] for at in range(len(whole))]) == expected


@given(st.lists(st.integers(0, len(transcript())), max_size=8))
def test_a_response_is_read_the_same_in_any_pieces(cuts):
    whole = transcript()
    ends = [0, *sorted(cuts), len(whole)]
    assert outcome([whole[a:b] for a, b in pairwise(ends)]) == outcome([whole])


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.booleans())
def test_window_space_that_the_peer_used_is_returned_in_large_steps(sizes, padded):
    connection, _ = begun(window=4_000)
    returned = {0: 0, 1: 0}
    used = 0
    for size in sizes:
        payload = b"\x05" + b"x" * size + b"\0" * 5 if padded else b"x" * size
        used += len(payload)
        connection.receive(frame(FrameType.DATA, PADDED if padded else 0, 1, payload))
        for kind, _, exchange, more in frames_in(connection.take()):
            assert kind == FrameType.WINDOW_UPDATE
            assert struct.unpack(">I", more)[0] > 1_000
            returned[exchange] += struct.unpack(">I", more)[0]
        for exchange in (0, 1):
            assert used - 1_000 <= returned[exchange] <= used


def test_the_reserved_bit_of_a_stream_number_is_ignored():
    connection, exchange = begun()
    headers = Encoder().encode([(":status", "200")])
    connection.receive(frame(FrameType.HEADERS, END_HEADERS, 1 | 1 << 31, headers))
    connection.receive(frame(FrameType.DATA, END_STREAM, 1 | 1 << 31, b"all"))
    assert (data_in(exchange), exchange.ended) == (b"all", True)


def test_informational_headers_before_the_response_are_ignored():
    connection, exchange = begun()
    encoder = Encoder()
    connection.receive(
        frame(FrameType.HEADERS, END_HEADERS, 1, encoder.encode([(":status", "103")]))
    )
    connection.receive(
        frame(FrameType.HEADERS, END_HEADERS, 1, encoder.encode([(":status", "200")]))
    )
    assert exchange.headers == {":status": "200"}


def test_headers_of_an_ended_exchange_are_decoded_since_later_ones_refer_to_them():
    connection, exchange = begun()
    encoder = Encoder()
    connection.receive(
        frame(FrameType.HEADERS, END_HEADERS, 99, encoder.encode([("x-long-name", "value")]))
    )
    connection.receive(
        frame(FrameType.HEADERS, END_HEADERS, 1, encoder.encode([("x-long-name", "value")]))
    )
    assert exchange.headers == {"x-long-name": "value"}


# --- ends ---------------------------------------------------------------------------------------


def test_a_reset_ends_only_its_own_exchange():
    connection, first = begun()
    second = connection.request(REQUEST)
    first.unsent += b"never sent"
    connection.receive(
        frame(FrameType.DATA, 0, 1, b"before") + frame(FrameType.RST_STREAM, 0, 1, number(2))
    )
    assert (first.ended, first.broken) == (True, "the function reset the stream: INTERNAL_ERROR")
    assert data_in(first) == b"before"
    assert not first.wants_to_send
    assert not second.ended
    assert connection.lost is None


def test_after_a_goaway_accepted_exchanges_continue_and_none_begins():
    connection, first = begun()
    second = connection.request(REQUEST)
    connection.receive(frame(FrameType.GOAWAY, 0, 0, number(1) + number(11) + b"slow down"))
    assert not first.ended
    assert second.broken == "the function refused the stream: ENHANCE_YOUR_CALM slow down"
    connection.receive(frame(FrameType.DATA, 0, 1, b"more"))
    assert data_in(first) == b"more"
    with pytest.raises(StreamBroken, match="accepts no more requests"):
        connection.request(REQUEST)


def test_a_cancelled_exchange_is_reset_and_its_late_data_is_counted_and_discarded():
    connection, exchange = begun(window=1_000)
    connection.cancel(exchange)
    assert frames_in(connection.take()) == [(FrameType.RST_STREAM, 0, 1, number(8))]
    connection.receive(frame(FrameType.DATA, 0, 1, b"x" * 600))
    assert exchange.arrived == []
    assert frames_in(connection.take()) == [(FrameType.WINDOW_UPDATE, 0, 0, number(600))]


def test_a_lost_connection_ends_all_exchanges_and_accepts_no_new_one():
    connection, exchange = begun()
    connection.lose("it is gone")
    assert (exchange.ended, exchange.broken) == (True, "it is gone")
    with pytest.raises(StreamBroken, match="it is gone"):
        connection.request(REQUEST)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, number(2)), "pushed a response"),
        (frame(FrameType.DATA, PADDED, 1, b"\x09abc"), "more padding than content"),
        (
            frame(FrameType.HEADERS, 0, 1, b"") + frame(FrameType.DATA, 0, 1, b"x"),
            "cut its headers short",
        ),
        (
            frame(FrameType.HEADERS, 0, 1, b"") + frame(FrameType.CONTINUATION, 0, 3, b"x"),
            "cut its headers short",
        ),
        (frame(FrameType.CONTINUATION, END_HEADERS, 1, b"x"), "had not begun"),
        (
            frame(FrameType.HEADERS, 0, 1)
            + frame(FrameType.CONTINUATION, 0, 1, b"x" * 200_000) * 6,
            "without end",
        ),
        (frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff\xff\xff"), "cannot be decoded"),
        (frame(FrameType.HEADERS, END_HEADERS | PADDED, 1, b""), "cannot be decoded"),
        (frame(FrameType.WINDOW_UPDATE, 0, 1, b"x"), "cannot be decoded"),
        (frame(FrameType.WINDOW_UPDATE, 0, 0, number(2**31 - 1)), "larger than allowed"),
        (
            frame(FrameType.SETTINGS, 0, 0, settings_payload([(MAX_FRAME, 16_383)])),
            "smaller than allowed",
        ),
        (struct.pack(">IBI", 300_000 << 8 | FrameType.DATA, 0, 1), "larger than allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_connection_to_a_peer_that_violates_http2_is_closed(sent, why):
    connection, exchange = begun()
    connection.receive(sent)
    assert why in connection.lost
    assert exchange.broken == connection.lost
    assert FrameType.GOAWAY in [kind for kind, *_ in frames_in(connection.take())]


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing(noise):
    connection, exchange = begun()
    connection.receive(noise)
    connection.take()
    assert exchange.ended or connection.lost is None
