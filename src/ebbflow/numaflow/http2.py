"""The client side of HTTP/2, many messages a frame: bytes in, bytes out, no socket.

Data that has arrived is cut into frames all at once, and data to send goes into frames as large as
the peer accepts. Both flow-control windows are honoured in both directions. If the peer misbehaves,
the affected exchanges end with a reason, and the others continue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from hpack import Decoder, Encoder, HPACKError

from ebbflow.domain.errors import StreamBroken

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

ACK = END_STREAM = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20
_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW, _MAX_FRAME, _MAX_HEADER_LIST = 1, 2, 4, 5, 6
_NO_ERROR, _PROTOCOL_ERROR, _CANCEL = 0, 1, 8

WINDOW = 16 * 1024 * 1024
"""The unread bytes that the peer may send, on the connection and on each exchange."""

_DEFAULT_WINDOW, _LARGEST_WINDOW = 65_535, 2**31 - 1
_DEFAULT_FRAME, _OUR_FRAME = 16_384, 256 * 1024
_LONGEST_BLOCK = 1024 * 1024
# A frame's length and kind are read as one number, of which the kind is the last byte.
_HEAD, _HEAD_SIZE = struct.Struct(">IBI"), 9
_SETTING, _NUMBER = struct.Struct(">HI"), struct.Struct(">I")
_ID = 0x7FFFFFFF

ERRORS = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
    "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
    "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip

Headers = list[tuple[str, str]]


class FrameType(IntEnum):
    """The frame types of HTTP/2; frames of other types are ignored."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """Returns a frame of the exchange with that number; 0 is the connection itself."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, number) + payload


def settings_payload(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Returns the payload of a settings frame."""
    return b"".join(_SETTING.pack(name, value) for name, value in pairs)


@dataclass(slots=True)
class Http2Exchange:
    """One request and its response. ``arrived`` holds the unread data; a reader removes it.

    Each piece is a buffer with the start and end of every frame's data in it. ``headers`` and
    ``trailers`` are those of the response. ``ended`` is true when no more follows, and ``broken``
    then says why if the peer did not end it properly.
    """

    number: int
    window: int
    headers: dict[str, str] | None = None
    trailers: dict[str, str] | None = None
    ended: bool = False
    broken: str | None = None
    arrived: list[tuple[bytes, list[int]]] = field(default_factory=list)
    unsent: bytearray = field(default_factory=bytearray)
    finishing: bool = False
    consumed: int = 0

    @property
    def wants_to_send(self) -> bool:
        """Whether data or the end is still to be sent, now or when the peer allows it."""
        return bool(self.unsent or self.finishing)


class Http2:
    """The client side of one connection. ``lost`` says why it can no longer be used."""

    def __init__(self, window: int = WINDOW) -> None:
        self.lost: str | None = None
        self._window = window
        self._exchanges: dict[int, Http2Exchange] = {}
        self._over: list[int] = []
        self._next = 1
        self._going_away: int | None = None
        self._rest = b""
        self._block: tuple[int, int, bytearray] | None = None
        self._encoder, self._decoder = Encoder(), Decoder(_LONGEST_BLOCK)
        self._send_window = self._initial_window = _DEFAULT_WINDOW
        self._max_frame = _DEFAULT_FRAME
        self._consumed = 0
        self._control = bytearray(PREFACE + self._greeting())

    def _greeting(self) -> bytes:
        settings = [
            (_ENABLE_PUSH, 0),
            (_INITIAL_WINDOW, self._window),
            (_MAX_FRAME, _OUR_FRAME),
            (_MAX_HEADER_LIST, _LONGEST_BLOCK),
        ]
        more = _NUMBER.pack(max(1, self._window - _DEFAULT_WINDOW))
        opening = frame(FrameType.SETTINGS, 0, 0, settings_payload(settings))
        return opening + frame(FrameType.WINDOW_UPDATE, 0, 0, more)

    # --- requests -------------------------------------------------------------------------------

    def request(self, headers: Headers) -> Http2Exchange:
        """Begins an exchange; its data follow with ``send`` and ``finish``."""
        self._raise_if_unusable()
        number, self._next = self._next, self._next + 2
        exchange = self._exchanges[number] = Http2Exchange(number, self._initial_window)
        block = self._encoder.encode(headers)
        pieces = [block[at : at + self._max_frame] for at in range(0, len(block), self._max_frame)]
        for place, piece in enumerate(pieces):
            flags = END_HEADERS if place == len(pieces) - 1 else 0
            kind = FrameType.CONTINUATION if place else FrameType.HEADERS
            self._control += frame(kind, flags, number, piece)
        return exchange

    def _raise_if_unusable(self) -> None:
        if self.lost is not None:
            raise StreamBroken(self.lost)
        if self._going_away is not None:
            raise StreamBroken("the function accepts no more requests on this connection")

    def cancel(self, exchange: Http2Exchange) -> None:
        """Ends an exchange from this side and notifies the peer, unless the peer has ended it."""
        if self._exchanges.pop(exchange.number, None) is not None and not exchange.ended:
            self._control += frame(FrameType.RST_STREAM, 0, exchange.number, _NUMBER.pack(_CANCEL))
            exchange.ended, exchange.broken = True, "cancelled"

    def take(self, most: int = 256 * 1024) -> bytes:
        """Returns the data that may be written now, about ``most`` bytes, or none.

        All of it must be written, in this order.
        """
        parts = [bytes(self._control)]
        self._control.clear()
        room = most
        for exchange in list(self._exchanges.values()):
            if exchange.wants_to_send:
                for part in self._cut_frames(exchange, room):
                    parts.append(part)
                    room -= len(part)
        return b"".join(parts)

    def _cut_frames(self, exchange: Http2Exchange, room: int) -> Iterator[bytes]:
        """Yields frames of an exchange's data, as far as both windows allow it."""
        unsent = exchange.unsent
        while exchange.wants_to_send and room > 0:
            allowed = min(self._max_frame, self._send_window, exchange.window)
            size = min(len(unsent), allowed)
            if size <= 0 and unsent:
                return
            ends = exchange.finishing and size == len(unsent)
            flags = END_STREAM if ends else 0
            yield frame(FrameType.DATA, flags, exchange.number, bytes(unsent[:size]))
            del unsent[:size]
            exchange.window -= size
            self._send_window -= size
            room -= size
            exchange.finishing = exchange.finishing and not ends

    # --- what arrives ---------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Processes bytes from the socket, which may begin and end anywhere in a frame."""
        buffer = self._rest + data if self._rest else data
        arrived: dict[int, list[int]] = {}
        at, end, current = 0, len(buffer), -1
        edges: list[int] = []
        unpack, data_frame = _HEAD.unpack_from, int(FrameType.DATA)
        while end - at >= _HEAD_SIZE and self.lost is None:
            word, flags, number = unpack(buffer, at)
            start = at + _HEAD_SIZE
            stop = start + (word >> 8)
            if stop > end:
                if word >> 8 > _OUR_FRAME:
                    self.lose("the function sent a frame that is larger than allowed")
                break
            if word & 0xFF == data_frame and self._block is None:
                if number != current:
                    current, edges = number, arrived.setdefault(number & _ID, [])
                if flags:
                    start, last = self._open_data(buffer, start, stop, flags, number & _ID)
                    edges += (start, last)
                else:
                    edges += (start, stop)
            else:
                self._handle_frame(word & 0xFF, flags, number & _ID, buffer[start:stop])
            at = stop
        self._rest = buffer[at:]
        for number, pairs in arrived.items():
            self._deliver(number, buffer, pairs)
        self._return_window()
        while self._over:
            self._exchanges.pop(self._over.pop(), None)

    def _open_data(
        self, buffer: bytes, start: int, stop: int, flags: int, number: int
    ) -> tuple[int, int]:
        """Returns start and end of a frame's data; padding counts towards the windows too."""
        last = stop
        if flags & PADDED:
            padding = buffer[start] if stop > start else 0
            start, last = min(start + 1, stop), stop - padding
            if last < start:
                self.lose("the function sent a frame with more padding than content")
                last = start
            self._consume(number, stop - last + 1)
        if flags & END_STREAM and number in self._exchanges:
            self._end(self._exchanges[number], None)
        return start, last

    def _deliver(self, number: int, buffer: bytes, edges: list[int]) -> None:
        self._consume(number, sum(edges[1::2]) - sum(edges[::2]))
        exchange = self._exchanges.get(number)
        if exchange is not None:
            exchange.arrived.append((buffer, edges))

    def _consume(self, number: int, size: int) -> None:
        self._consumed += size
        if number in self._exchanges:
            self._exchanges[number].consumed += size

    def _return_window(self) -> None:
        """Lets the peer send more, in large steps."""
        step = self._window // 4
        if self._consumed > step:
            self._control += frame(FrameType.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._consumed))
            self._consumed = 0
        for exchange in self._exchanges.values():
            if exchange.consumed > step and not exchange.ended:
                more = _NUMBER.pack(exchange.consumed)
                self._control += frame(FrameType.WINDOW_UPDATE, 0, exchange.number, more)
                exchange.consumed = 0

    def _handle_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != FrameType.CONTINUATION or number != self._block[0]):
            self.lose("the function cut its headers short")
            return
        try:
            match kind:
                case FrameType.HEADERS:
                    self._handle_headers(flags, number, payload)
                case FrameType.CONTINUATION:
                    self._handle_continuation(flags, number, payload)
                case FrameType.SETTINGS:
                    self._handle_settings(flags, payload)
                case FrameType.PING if not flags & ACK:
                    self._control += frame(FrameType.PING, ACK, 0, payload)
                case FrameType.WINDOW_UPDATE:
                    self._handle_window_update(number, payload)
                case FrameType.RST_STREAM:
                    self._handle_reset(number, payload)
                case FrameType.GOAWAY:
                    self._handle_goaway(payload)
                case FrameType.PUSH_PROMISE:
                    self.lose("the function pushed a response without a request")
        except (struct.error, IndexError, HPACKError, UnicodeDecodeError) as error:
            self.lose(f"the function sent a frame that cannot be decoded: {error}")

    # --- headers --------------------------------------------------------------------------------

    def _handle_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        self._block = (number, flags, bytearray(payload))
        if flags & END_HEADERS:
            self._end_block()

    def _handle_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            self.lose("the function continued headers that it had not begun")
            return
        self._block[2].extend(payload)
        if len(self._block[2]) > _LONGEST_BLOCK:
            self.lose("the function sent headers without end")
        elif flags & END_HEADERS:
            self._end_block()

    def _end_block(self) -> None:
        """Decodes headers, also of ended exchanges, because later headers refer to them."""
        assert self._block is not None
        (number, flags, block), self._block = self._block, None
        headers = {str(name): str(value) for name, value in self._decoder.decode(bytes(block))}
        exchange = self._exchanges.get(number)
        if exchange is None:
            return
        if flags & END_STREAM:
            if exchange.headers is None:
                exchange.headers = headers
            exchange.trailers = headers
            self._end(exchange, None)
        elif exchange.headers is None and not headers.get(":status", "").startswith("1"):
            exchange.headers = headers

    # --- the connection -------------------------------------------------------------------------

    def _handle_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW:
                for exchange in self._exchanges.values():
                    exchange.window += value - self._initial_window
                self._initial_window = value
            elif name == _MAX_FRAME and value < _DEFAULT_FRAME:
                self.lose("the function only accepts frames that are smaller than allowed")
            elif name == _MAX_FRAME:
                self._max_frame = value
            elif name == _TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4_096)
        self._control += frame(FrameType.SETTINGS, ACK, 0)

    def _handle_window_update(self, number: int, payload: bytes) -> None:
        more = _NUMBER.unpack(payload)[0] & _ID
        if not number:
            self._send_window += more
            if self._send_window > _LARGEST_WINDOW:
                self.lose("the function opened a window that is larger than allowed")
        elif number in self._exchanges:
            self._exchanges[number].window += more

    def _handle_reset(self, number: int, payload: bytes) -> None:
        exchange = self._exchanges.get(number)
        if exchange is not None:
            self._end(exchange, f"the function reset the stream: {_name(payload)}")

    def _handle_goaway(self, payload: bytes) -> None:
        last, text = _NUMBER.unpack(payload[:4])[0] & _ID, payload[8:].decode("utf-8", "replace")
        self._going_away = last
        why = f"the function refused the stream: {_name(payload[4:8])} {text}".rstrip()
        for exchange in [e for number, e in self._exchanges.items() if number > last]:
            self._end(exchange, why)

    def _end(self, exchange: Http2Exchange, broken: str | None) -> None:
        """Ends an exchange; data that arrived before the end is still delivered."""
        if not exchange.ended:
            exchange.ended, exchange.broken = True, broken
            self._over.append(exchange.number)
        exchange.unsent.clear()
        exchange.finishing = False

    def close(self) -> None:
        """Ends the connection and its exchanges from this side, without an error."""
        self.lose("the connection was closed", _NO_ERROR)

    def lose(self, why: str, code: int = _PROTOCOL_ERROR) -> None:
        """Ends all exchanges: the connection is gone, or the peer violates HTTP/2."""
        if self.lost is None:
            self.lost = why
            self._control += frame(FrameType.GOAWAY, 0, 0, _NUMBER.pack(0) + _NUMBER.pack(code))
        for exchange in self._exchanges.values():
            self._end(exchange, why)


def _name(payload: bytes) -> str:
    code = int(_NUMBER.unpack(payload)[0])
    return ERRORS[code] if code < len(ERRORS) else f"error {code}"
